// What blocks copy of a layer: every byte of its matrices once, where and as bulk copies can.
#include "device/gpu/kernels/run_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "device/gpu/kernels/run.h"
#include "device/gpu/kernels/sizes.h"

namespace tessera::gpu::run {
namespace {

// Addresses that nothing lies at, far apart.
class Addresses {
 public:
  const std::byte* next() {
    at_ += std::int64_t{1} << 32;
    return reinterpret_cast<const std::byte*>(at_);
  }
  template <typename T>
  T* next_as() {
    return reinterpret_cast<T*>(const_cast<std::byte*>(next()));
  }
  Matrix matrix(BlockType type, int rows, int cols) { return {type, rows, cols, next()}; }

 private:
  std::intptr_t at_ = 0;
};

struct Shape {
  bool attends;
  BlockType some, other;
};

RunLayer layer_of(const Shape& shape, Addresses& a) {
  RunLayer l;
  l.in.input.weight = a.next_as<float>();
  l.in.input.eps = l.ffn.eps = l.attention.eps = 1e-6f;
  l.in.input.kind = InputKind::rms_norm;
  l.in.rows = 1;
  l.out.n_outputs = 1;
  l.out.input.weight = a.next_as<float>();
  l.out.outputs[0] = {a.matrix(shape.other, kCols, kValues), nullptr, kCols, true};
  if (shape.attends) {
    l.in.n_outputs = 3;
    l.in.outputs[0].w = a.matrix(shape.some, kKeysAt, kCols);
    l.in.outputs[1].w = a.matrix(shape.other, kKvHeads * kHeadDim, kCols);
    l.in.outputs[2].w = a.matrix(shape.some, kKvHeads * kHeadDim, kCols);
    l.attention.kv = {kKvHeads, kHeadDim, kHeadDim, KvFormat::f16};
    l.attention.n_head = kQueryHeads;
    l.attention.q_head_stride = 2 * kHeadDim;
    l.attention.k = l.attention.v = l.attention.q_norm = l.attention.k_norm = a.next_as<float>();
    l.attention.n_rot = 64;
    l.attention.gate = OutputGate::sigmoid_in_query;
  } else {
    l.in.n_outputs = 4;
    l.delta.spec = {16, kHeads, kDim, kDim, kTaps, false};
    l.in.outputs[0].w = a.matrix(shape.some, l.delta.spec.conv_channels(), kCols);
    l.in.outputs[1].w = a.matrix(shape.other, kValues, kCols);
    l.in.outputs[2].w = a.matrix(BlockType::F32, kHeads, kCols);
    l.in.outputs[3].w = a.matrix(BlockType::F32, kHeads, kCols);
    l.out.input.kind = InputKind::gated_rms;
    l.out.input.head_dim = kDim;
    l.delta.taps = l.delta.dt_bias = l.delta.a = a.next_as<float>();
    l.delta.state = a.next_as<float>();
  }
  l.ffn.n_embd = kCols;
  l.ffn.norm = a.next_as<float>();
  l.ffn.dense.gate = a.matrix(shape.some, kHidden, kCols);
  l.ffn.dense.up = a.matrix(shape.other, kHidden, kCols);
  l.ffn.dense.down = a.matrix(shape.some, kCols, kHidden);
  l.ffn.dense.scalar_gate = a.next_as<float>();
  l.ffn.moe.n_expert = kExperts;
  l.ffn.moe.n_used = kUsed;
  l.ffn.moe.n_ff = kHidden;
  l.ffn.moe.router_weight = a.matrix(BlockType::F32, kExperts, kCols);
  l.ffn.moe.shape = expert_shape(shape.some, shape.other, shape.some, kCols, kHidden);
  return l;
}

struct Bytes {
  std::int64_t from, size;
  auto operator<=>(const Bytes&) const = default;
};

// By base: what all blocks copy, but norms, in rising order.
std::map<std::uint32_t, std::vector<Bytes>> copied(const LayerPlans& plans) {
  std::map<std::uint32_t, std::vector<Bytes>> all;
  for (const Plan& plan : plans.plans) {
    for (const Entry* entry = plan.entries; entry->bytes > 0; ++entry) {
      if (entry->when == kSpans) continue;
      std::vector<Bytes> to;
      for (int i = entry->first; i < entry->first + entry->n; ++i) {
        const Piece& piece = plan.pieces[i];
        const auto size = static_cast<std::int64_t>(piece.size & 0xffffffu);
        EXPECT_TRUE(piece.from % 16 == 0 && piece.to % 16 == 0 && size % 16 == 0);
        to.push_back({piece.to, size});
        all[piece.size >> 24].push_back({piece.from, size});
      }
      // The entry is full: what waits for its bytes waits for all of it.
      std::sort(to.begin(), to.end());
      std::int64_t end = 0;
      for (const Bytes& piece : to) {
        EXPECT_EQ(piece.from, end);
        end += piece.size;
      }
      EXPECT_EQ(end, entry->bytes);
    }
  }
  for (auto& [base, bytes] : all) std::sort(bytes.begin(), bytes.end());
  return all;
}

// Whether exactly the planes of the matrix at `from` are copied, each byte once.
void expect_whole(const Matrix& m, std::int64_t from, const std::vector<Bytes>& all,
                  const char* name) {
  const PlaneLayout layout = plane_layout(m.type, m.rows, m.cols);
  std::int64_t bytes = 0, end = from;
  for (const Bytes& piece : all) {
    if (piece.from < from || piece.from >= from + layout.bytes) continue;
    EXPECT_GE(piece.from, end) << name;  // none twice
    end = piece.from + piece.size;
    bytes += piece.size;
  }
  const std::int64_t supers = row_tiles(m.rows) * (m.cols / kSuperCols);
  EXPECT_EQ(bytes,
            is_plain(m.type) ? std::int64_t{m.rows} * m.cols * 4 : supers * super_bytes(m.type))
      << name;
}

// Where in the block's entries those of attention's spans come; -1: nowhere.
int spans_place(const Plan& plan) {
  int place = -1, i = 0;
  for (const Entry* entry = plan.entries; entry->bytes > 0; ++entry, ++i) {
    if (entry->when != kSpans) continue;
    EXPECT_EQ(place, -1) << "twice";
    EXPECT_EQ(entry->n, 0);
    place = i;
  }
  return place;
}

class RunPlan : public ::testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Shapes, RunPlan,
                         ::testing::Values(Shape{false, BlockType::Q4_K, BlockType::Q6_K},
                                           Shape{false, BlockType::Q4_K, BlockType::Q4_K},
                                           Shape{false, BlockType::Q6_K, BlockType::Q6_K},
                                           Shape{true, BlockType::Q4_K, BlockType::Q4_K},
                                           Shape{true, BlockType::Q6_K, BlockType::Q4_K}));

TEST_P(RunPlan, CopiesEveryByteOnce) {
  Addresses addresses;
  const RunLayer l = layer_of(GetParam(), addresses);
  ASSERT_TRUE(fits_run(l));
  ASSERT_EQ(run_layer_bytes(), sizeof(LayerPlans));
  const auto plans = std::make_unique<LayerPlans>();
  write_run_layer(l, reinterpret_cast<std::byte*>(plans.get()));
  const bool q4 = GetParam().some == BlockType::Q4_K && GetParam().other == BlockType::Q4_K;
  EXPECT_EQ(plans->layer.in_is_q4, q4 ? 1 : 0);
  const auto all = copied(*plans);
  const auto whole = [&](const Matrix& m, const char* name) {
    expect_whole(m, reinterpret_cast<std::intptr_t>(m.data), all.at(kAbsolute), name);
  };
  for (int i = 0; i < l.in.n_outputs; ++i)
    whole(l.in.outputs[static_cast<std::size_t>(i)].w, "projection in");
  whole(l.out.outputs[0].w, "projection out");
  whole(l.ffn.moe.router_weight, "router");
  whole(l.ffn.dense.gate, "dense gate");
  whole(l.ffn.dense.up, "dense up");
  whole(l.ffn.dense.down, "dense down");
  const ExpertShape& e = l.ffn.moe.shape;
  for (std::uint32_t chosen = 0; chosen < kUsed; ++chosen) {
    const std::vector<Bytes>& of = all.at(kChosenExpert + chosen);
    expect_whole(e.gate, 0, of, "gate");
    expect_whole(e.up, e.up_offset, of, "up");
    expect_whole(e.down, e.down_offset, of, "down");
  }
  for (int block = 0; block < kBlocks; ++block) {
    // Behind a worker's norm and the halves of its two or three pairs; a helper has nothing before.
    const int pairs = (kProjected / kGroup - block + kWorkers - 1) / kWorkers;
    const int behind = block < kWorkers ? 1 + 2 * pairs : 0;
    EXPECT_EQ(spans_place(plans->plans[block]), GetParam().attends ? behind : -1) << block;
  }
  if (GetParam().attends) {
    EXPECT_FALSE(all.contains(kState));
    return;
  }
  // The state, head by head and column by column.
  const std::vector<Bytes>& state = all.at(kState);
  ASSERT_EQ(state.size(), static_cast<std::size_t>(kWorkers));
  for (std::size_t i = 0; i < state.size(); ++i)
    EXPECT_EQ(state[i].from, reinterpret_cast<std::intptr_t>(l.delta.state +
                                                             kTaps * l.delta.spec.conv_channels()) +
                                 static_cast<std::int64_t>(i) * kStateBytes);
}

TEST(RunPlans, AreOfOneShape) {
  Addresses addresses;
  const RunLayer whole = layer_of({false, BlockType::Q4_K, BlockType::Q6_K}, addresses);
  EXPECT_TRUE(fits_run(whole));
  const auto refuses = [&](auto change) {
    RunLayer l = whole;
    change(l);
    EXPECT_FALSE(fits_run(l));
  };
  refuses([](RunLayer& l) { l.in.rows = 2; });
  refuses([](RunLayer& l) { l.in.outputs[0].w.type = BlockType::Q5_K; });
  refuses([](RunLayer& l) { l.in.outputs[2].w.type = BlockType::F16; });
  refuses([](RunLayer& l) { l.delta.spec.conv_width = 3; });
  refuses([](RunLayer& l) { l.out.input.head_dim = 64; });
  refuses([](RunLayer& l) { l.out.outputs[0].add = false; });
  refuses([](RunLayer& l) { l.ffn.moe.n_used = 6; });
  refuses([](RunLayer& l) { l.ffn.moe.router.gating = Gating::sigmoid; });
  refuses([](RunLayer& l) { l.ffn.moe.activation = Activation::gelu_tanh; });
  refuses([](RunLayer& l) { l.ffn.dense.scalar_gate = nullptr; });
  refuses([](RunLayer& l) { l.ffn.layer_scale = l.ffn.norm; });
  refuses([](RunLayer& l) { l.ffn.n_embd = 4096; });
}

TEST(RunPlans, AreOfOneAttention) {
  Addresses addresses;
  const RunLayer whole = layer_of({true, BlockType::Q4_K, BlockType::Q6_K}, addresses);
  EXPECT_TRUE(fits_run(whole));
  const auto refuses = [&](auto change) {
    RunLayer l = whole;
    change(l.attention);
    EXPECT_FALSE(fits_run(l));
  };
  refuses([](AttentionArgs& a) { a.kv.format = KvFormat::q8_0; });
  refuses([](AttentionArgs& a) { a.kv.kv_heads = 4; });
  refuses([](AttentionArgs& a) { a.n_rot = 128; });
  refuses([](AttentionArgs& a) { a.window = 4096; });
  refuses([](AttentionArgs& a) { a.softcap = 50; });
  refuses([](AttentionArgs& a) { a.eps = 1e-5f; });
  refuses([](AttentionArgs& a) { a.q_norm = nullptr; });
  refuses([](AttentionArgs& a) { a.gate = OutputGate::none; });
  refuses([](AttentionArgs& a) { a.page_stride += 8; });
  refuses([](AttentionArgs& a) { a.layer_offset += 8; });
}

TEST(Spans, ThereIsRoomForThoseOfEveryContext) {
  EXPECT_EQ(spans_of(1), 1);
  EXPECT_EQ(spans_of(64), 1);
  EXPECT_EQ(spans_of(65), 2);
  EXPECT_EQ(spans_of(4096), 64);
  EXPECT_EQ(spans_of(4097), 33);
  EXPECT_EQ(spans_of(8193), 33);
  EXPECT_EQ(spans_of(16385), 65);
  int most = 0;
  for (int context = 1; context < 20000; ++context) {
    most = std::max(most, spans_of(context));
    ASSERT_EQ(most_spans(context), most) << context;
  }
}

// A warp's look number i has 16 bytes of each lane, lane after lane; the four looks are the lane's
// eight columns, 32g + 4t .. + 3 and 16 further.
TEST(RunPlans, RowsStandAsWarpsLook) {
  std::vector<int> places;
  for (int warp = 0; warp < kSupers; ++warp)
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 8; ++i) {
        const int column = warp * 256 + lane / 4 * 32 + lane % 4 * 4 + i % 4 + i / 4 * 16;
        const int place = row_place(static_cast<unsigned>(column));
        EXPECT_EQ(place, warp * 256 + i / 2 * 64 + lane * 2 + i % 2);
        places.push_back(place);
      }
  std::sort(places.begin(), places.end());
  EXPECT_EQ(std::unique(places.begin(), places.end()), places.end());
}

// An FFN of several rows and the projections of the layer behind it.
struct Leading {
  explicit Leading(const Shape& shape) : layer(layer_of(shape, addresses)) {
    layer.ffn.rows = layer.in.rows = 3;
    layer.ffn.hidden = addresses.next_as<float>();
    layer.ffn.passed = addresses.next_as<std::byte>();
    layer.in.input.x = layer.ffn.hidden;
    layer.in.input.stride = kCols;
  }
  bool leads() const { return leads_to(layer.ffn, layer.in); }
  Addresses addresses;
  RunLayer layer;
};

TEST_P(RunPlan, ProjectionsGoWithTheFfnBefore) {
  const Leading whole(GetParam());
  EXPECT_TRUE(whole.leads());
  const auto broken = [](const char* what, auto change) {
    Leading some(GetParam());
    change(some.layer.ffn, some.layer.in);
    EXPECT_FALSE(some.leads()) << what;
  };
  broken("no room", [](FfnArgs& f, ProjectArgs&) { f.passed = nullptr; });
  broken("one row", [](FfnArgs& f, ProjectArgs& in) { f.rows = in.rows = 1; });
  broken("nine rows", [](FfnArgs& f, ProjectArgs& in) { f.rows = in.rows = kDecodeRows + 1; });
  broken("other rows", [](FfnArgs&, ProjectArgs& in) { ++in.rows; });
  broken("chosen rows", [](FfnArgs&, ProjectArgs& in) {
    static constexpr std::int32_t kIds[3] = {};
    in.input.row_ids = kIds;
  });
  broken("another input", [](FfnArgs&, ProjectArgs& in) { ++in.input.x; });
  broken("rows apart", [](FfnArgs&, ProjectArgs& in) { in.input.stride += 4; });
  broken("not normed", [](FfnArgs&, ProjectArgs& in) { in.input.kind = InputKind::plain; });
  broken("a type", [](FfnArgs&, ProjectArgs& in) { in.outputs[1].w.type = BlockType::Q8_0; });
  broken("columns", [](FfnArgs&, ProjectArgs& in) { in.outputs[1].w.cols /= 2; });
  broken("half a pair", [](FfnArgs&, ProjectArgs& in) { in.outputs[1].w.rows += 16; });
  broken("too many", [](FfnArgs&, ProjectArgs& in) {
    in.outputs[0].w.rows = (kMostNextPairs * kBlocks + 1) * kGroup;
  });
  broken("a sum", [](FfnArgs&, ProjectArgs& in) { in.outputs[0].add = true; });
}

TEST_P(RunPlan, RoutersGoWithTheProjectionAhead) {
  const auto whole = [] {
    auto some = std::make_unique<Leading>(GetParam());
    ProjectArgs& out = some->layer.out;
    out.rows = some->layer.ffn.rows;
    out.input.gate_open = out.input.kind == InputKind::gated_rms;
    out.outputs[0].out = some->layer.ffn.hidden;
    return some;
  };
  const auto layer = whole();
  EXPECT_TRUE(routes(layer->layer.out, layer->layer.ffn));
  const auto broken = [&](const char* what, auto change) {
    const auto some = whole();
    change(some->layer.out, some->layer.ffn);
    EXPECT_FALSE(routes(some->layer.out, some->layer.ffn)) << what;
  };
  broken("no room", [](ProjectArgs&, FfnArgs& f) { f.passed = nullptr; });
  broken("one row", [](ProjectArgs& out, FfnArgs& f) { f.rows = out.rows = 1; });
  broken("other rows", [](ProjectArgs& out, FfnArgs&) { ++out.rows; });
  broken("normed", [](ProjectArgs& out, FfnArgs&) { out.input.kind = InputKind::rms_norm; });
  broken("a type", [](ProjectArgs& out, FfnArgs&) { out.outputs[0].w.type = BlockType::Q8_0; });
  broken("columns", [](ProjectArgs& out, FfnArgs&) { out.outputs[0].w.cols /= 2; });
  broken("no sum", [](ProjectArgs& out, FfnArgs&) { out.outputs[0].add = false; });
  broken("rows apart", [](ProjectArgs& out, FfnArgs&) { out.outputs[0].stride += 4; });
  broken("two matrices", [](ProjectArgs& out, FfnArgs&) { out.n_outputs = 2; });
  broken("another residual", [](ProjectArgs&, FfnArgs& f) { ++f.hidden; });
  if (GetParam().attends) return;
  broken("a gate", [](ProjectArgs& out, FfnArgs&) { out.input.gate_open = false; });
  broken("other heads", [](ProjectArgs& out, FfnArgs&) { out.input.head_dim = 64; });
}

TEST_P(RunPlan, PlainMatricesAreLeft) {
  const Leading whole(GetParam());
  const ProjectArgs left = plain_outputs(whole.layer.in);
  ASSERT_EQ(left.n_outputs, GetParam().attends ? 0 : 2);
  for (int i = 0; i < left.n_outputs; ++i)
    EXPECT_EQ(left.outputs[static_cast<std::size_t>(i)].w.data,
              whole.layer.in.outputs[static_cast<std::size_t>(2 + i)].w.data);
}

TEST(RunPlans, PassedValuesLieApart) {
  constexpr PassedLayout kAt = passed_layout();
  EXPECT_EQ(kAt.partials, kAt.bytes);
  EXPECT_EQ(kAt.rows_run - kAt.rows_h, kDecodeRows * (kUsed + 1) * kHidden / kGroup * 64);
  EXPECT_GE(kAt.rows_h, kAt.run + 4);
  EXPECT_EQ(kAt.rows_first - kAt.rows_next, kDecodeRows * kCols / kGroup * 64);
  EXPECT_EQ(kAt.rows_middle - kAt.rows_first, kDecodeRows * kCols / kGroup * 64);
  EXPECT_EQ(kAt.rows_parts - kAt.rows_middle, kDecodeRows * kCols * 8);
  EXPECT_GE(kAt.rows_squares - kAt.rows_parts, (kExperts + 1) * kDecodeRows * kRouteParts * 8);
  EXPECT_EQ(kAt.rows_rounded - kAt.rows_squares, kWorkers * kDecodeRows * 8);
  EXPECT_GE(kAt.rows_gate - kAt.rows_rounded, kDecodeRows * rounded_row_bytes(kCols));
  EXPECT_EQ(kAt.rows_rounded % 16, 0);  // bulk copies
  EXPECT_GE(kAt.partials, kAt.rows_gate + kDecodeRows * 4);
  EXPECT_GE(kAt.rows_next, kAt.rows_run + 4);
  EXPECT_EQ(run_passed_bytes(1), static_cast<std::size_t>(kAt.bytes + kSpanBytes));
  EXPECT_EQ(run_passed_bytes(257), static_cast<std::size_t>(kAt.bytes + 5 * kSpanBytes));
  EXPECT_EQ(run_passed_bytes(16384), static_cast<std::size_t>(kAt.bytes + 64 * kSpanBytes));
  EXPECT_EQ(run_passed_bytes(16385), static_cast<std::size_t>(kAt.bytes + 65 * kSpanBytes));
}

}  // namespace
}  // namespace tessera::gpu::run
