// What blocks copy and multiply of a dense model's layer: every super-block of its matrices once,
// where the ring and the sums have room, in turns that all warps share.
#include "device/gpu/kernels/dense_run_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "device/gpu/kernels/dense_run.h"
#include "device/gpu/kernels/run_plan.h"

namespace tessera::gpu::dense_run {
namespace {

struct Model {
  int embd = 5120, mixed = 6144, hidden = 17408, heads = 48, key_heads = 16, kv = 4;
};
constexpr Model kFull{}, kSmall{4096, 7168, 9216, 56, 8};

// Matrices lie at addresses where nothing is, far apart.
class Layers {
 public:
  explicit Layers(const Model& model) : m_(model) {}

  // `some`: the type of the sensitive matrices; `others`: of all else.
  RunLayer make(bool attends, BlockType some, BlockType others = BlockType::Q4_K) {
    RunLayer l;
    l.in.rows = 1;
    l.in.input = {.kind = InputKind::rms_norm, .weight = next<float>(), .eps = 1e-6f};
    l.out.n_outputs = 1;
    l.out.outputs[0] = {matrix(others, m_.embd, m_.mixed), next<float>(), m_.embd, true};
    if (attends) {
      l.in.n_outputs = 3;
      l.in.outputs[0].w = matrix(others, 2 * m_.mixed, m_.embd);
      l.in.outputs[1].w = matrix(others, m_.kv * 256, m_.embd);
      l.in.outputs[2].w = matrix(some, m_.kv * 256, m_.embd);
      AttentionArgs& a = l.attention;
      a.kv = {m_.kv, 256, 256, KvFormat::f16};
      a.n_head = m_.mixed / 256;
      a.gate = OutputGate::sigmoid_in_query, a.q_head_stride = 512;
      a.k = next<float>(), a.v = next<float>();
      l.out.input.kind = InputKind::plain;
    } else {
      l.delta.spec = {m_.key_heads, m_.heads, 128, 128, 4, false};
      l.in.n_outputs = 4;
      l.in.outputs[0].w = matrix(some, static_cast<int>(l.delta.spec.conv_channels()), m_.embd);
      l.in.outputs[1].w = matrix(others, m_.mixed, m_.embd);
      l.in.outputs[2].w = l.in.outputs[3].w = matrix(BlockType::F32, m_.heads, m_.embd);
      l.out.input = {.kind = InputKind::gated_rms, .weight = next<float>(), .head_dim = 128};
    }
    l.ffn = {.rows = 1, .n_embd = m_.embd, .eps = 1e-6f, .norm = next<float>()};
    l.ffn.dense = {.gate = matrix(others, m_.hidden, m_.embd),
                   .up = matrix(others, m_.hidden, m_.embd),
                   .down = matrix(some, m_.embd, m_.hidden)};
    return l;
  }

 private:
  template <typename T>
  T* next() {
    at_ += std::int64_t{1} << 32;
    return reinterpret_cast<T*>(at_);
  }
  Matrix matrix(BlockType type, int rows, int cols) {
    return {type, rows, cols, next<std::byte>()};
  }
  Model m_;
  std::intptr_t at_ = 0;
};

// The layers' plans as they would lie in the GPU's memory.
struct Plans {
  explicit Plans(const std::vector<RunLayer>& of)
      : layers(of),
        bytes(dense_runs_bytes(static_cast<int>(of.size()))),
        places(write_dense_runs(of, bytes.data())) {}
  const Shape& shape() const { return *reinterpret_cast<const Shape*>(bytes.data()); }
  const Layer& layer(int i) const {
    return reinterpret_cast<const Layer*>(bytes.data() + layers_at())[i];
  }
  const Schedule& schedule(int i, int block) const {
    const auto* all = reinterpret_cast<const Schedule*>(
        bytes.data() + schedules_at(static_cast<int>(layers.size())));
    return all[layer(i).schedule * kBlocks + block];
  }
  std::vector<RunLayer> layers;
  std::vector<std::byte> bytes;
  std::vector<int> places;
};

int row_supers(int cols) {
  return cols / kSuperCols;
}

class DenseRunPlan : public testing::TestWithParam<std::tuple<int, bool, BlockType>> {
 protected:
  DenseRunPlan()
      : model_(std::get<0>(GetParam()) == 0 ? kFull : kSmall),
        source_(model_),
        plans_({source_.make(std::get<1>(GetParam()), std::get<2>(GetParam()))}) {}
  const RunLayer& layer() const { return plans_.layers[0]; }

  Model model_;
  Layers source_;
  Plans plans_;
};

TEST_P(DenseRunPlan, TakesEachSuperBlockOnce) {
  ASSERT_EQ(plans_.places, std::vector<int>{0});
  std::vector<std::vector<int>> taken(kMatrices);
  const auto expect = [&](int index, const Matrix& w) {
    taken[static_cast<std::size_t>(index)].assign(
        static_cast<std::size_t>(w.rows / kTileRows * row_supers(w.cols)), 0);
  };
  const bool attends = std::get<1>(GetParam());
  for (std::size_t i = 0; i < (attends ? 3u : 2u); ++i)
    expect(static_cast<int>(kIn0 + i), layer().in.outputs[i].w);
  expect(kOutMatrix, layer().out.outputs[0].w);
  expect(kGate, layer().ffn.dense.gate);
  expect(kUpMatrix, layer().ffn.dense.up);
  expect(kDownMatrix, layer().ffn.dense.down);
  for (int block = 0; block < kBlocks; ++block) {
    const Schedule& s = plans_.schedule(0, block);
    for (int i = 0; i < s.n; ++i) {
      const Feed& f = s.feed[i];
      EXPECT_EQ(s.work[i].supers, f.supers);
      EXPECT_EQ(s.work[i].turns * kTogether, f.supers);
      EXPECT_EQ(f.bytes, f.supers * static_cast<unsigned>(run::super_bytes(
                                        f.six != 0 ? BlockType::Q6_K : BlockType::Q4_K)));
      for (unsigned k = 0; k < f.supers; ++k) ++taken[f.matrix].at(f.at + k);
    }
  }
  for (const auto& matrix : taken)
    EXPECT_TRUE(std::all_of(matrix.begin(), matrix.end(), [](int n) { return n == 1; }));
}

// Sums of a stage that is under way have places of their own, and the last entry with a counter
// says how many it stands for.
TEST_P(DenseRunPlan, HasRoomForSums) {
  for (int block = 0; block < kBlocks; ++block) {
    const Schedule& s = plans_.schedule(0, block);
    std::set<std::pair<int, int>> sums;
    std::map<int, int> turns, ends;
    for (int i = 0; i < s.n; ++i) {
      const Work& w = s.work[i];
      for (int turn = 0; turn < w.turns; ++turn) {
        EXPECT_LT(w.sum + turn, kOutSums + kUpSums);
        EXPECT_TRUE(sums.emplace(w.stage, w.sum + turn).second);
      }
      EXPECT_LT(w.counter, kCounters);
      EXPECT_LT(w.row + w.supers, kMostHidden + kMostEmbd + 1);
      EXPECT_EQ(ends[w.counter], 0) << "an entry behind the last one";
      turns[w.counter] += w.turns;
      ends[w.counter] = w.ends;
    }
    for (const auto& [counter, n] : turns) EXPECT_EQ(n - 1 + ends[counter], kTileArrivals);
  }
}

TEST_P(DenseRunPlan, SharesTurnsAmongAllWarps) {
  for (int block = 0; block < kBlocks; ++block) {
    const Schedule& s = plans_.schedule(0, block);
    std::set<int> items;
    int most = 0, least = kMostItems;
    for (const auto& of_warp : s.items) {
      int n = 0;
      for (; of_warp[n] != kNoItem; ++n) {
        ASSERT_LT(n, kMostItems);
        EXPECT_TRUE(items.insert(of_warp[n]).second);
        if (n == 0) continue;
        EXPECT_LE(of_warp[n - 1] & 255, of_warp[n] & 255);
      }
      most = std::max(most, n), least = std::min(least, n);
    }
    int turns = 0;
    for (int i = 0; i < s.n; ++i) turns += s.work[i].turns;
    EXPECT_EQ(static_cast<int>(items.size()), turns);
    EXPECT_LE(most - least, 1);
  }
}

// Where a tile of the residual is halved, the block whose columns it makes has the second half.
TEST_P(DenseRunPlan, HalvesTilesWhereTheirColumnsAre) {
  std::map<int, std::set<int>> first, second;
  for (int block = 0; block < kBlocks; ++block) {
    const Schedule& s = plans_.schedule(0, block);
    for (int i = 0; i < s.n; ++i) {
      const Work& w = s.work[i];
      if (w.stage != kOut && w.stage != kDown) continue;
      if (w.columns == kFirstHalf)
        first[w.tile].insert(block);
      else
        EXPECT_EQ(w.tile % kBlocks, block);
      if (w.columns == kSecondHalf) second[w.tile].insert(block);
    }
  }
  EXPECT_EQ(first.size(), second.size());
  for (const auto& [tile, blocks] : first) {
    EXPECT_EQ(blocks.size(), 1u);
    EXPECT_EQ(second[tile], std::set<int>{tile % kBlocks});
    EXPECT_FALSE(blocks.contains(tile % kBlocks));
  }
  EXPECT_EQ(first.size(), model_.embd == kFull.embd ? 56u : 0u);
}

// Of a stage's row each super-block is in one part but that of all.
TEST_P(DenseRunPlan, WaitsForPartsThatCome) {
  const Shape& shape = plans_.shape();
  const auto sum = [&](int from, int to) {
    int n = 0;
    for (int i = from; i < to; ++i) n += shape.arrivals[i];
    return n;
  };
  EXPECT_EQ(sum(kPartIn, kPartUp), shape.embd);
  EXPECT_EQ(sum(kPartUp, kPartOut), shape.embd);
  EXPECT_EQ(sum(kPartOut, kPartDown), shape.mixed);
  EXPECT_EQ(sum(kPartDown, kPartsOfRows), shape.hidden);
  for (int block = 0; block < kBlocks; ++block) {
    const Schedule& s = plans_.schedule(0, block);
    for (int i = 0; i < s.n; ++i) EXPECT_GT(shape.arrivals[s.work[i].part], 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, DenseRunPlan,
                         testing::Combine(testing::Values(0, 1), testing::Bool(),
                                          testing::Values(BlockType::Q4_K, BlockType::Q6_K)));

TEST(DenseRunPlanPlaces, AreWhereLayersFit) {
  Layers source(kFull);
  std::vector<RunLayer> layers;
  for (int i = 0; i < 5; ++i) layers.push_back(source.make(i == 3, BlockType::Q4_K));
  layers[1].ffn.dense.up.type = BlockType::Q6_K;  // gate is not
  layers[2].in.outputs[0].w.type = BlockType::Q5_K;
  const Plans plans(layers);
  EXPECT_EQ(plans.places, (std::vector<int>{0, -1, -1, 3, 4}));
  // Delta nets that have a place have one in the log.
  EXPECT_EQ(plans.layer(0).log, 0);
  EXPECT_EQ(plans.layer(4).log, 1);
}

TEST(DenseRunPlanPlaces, TakeAttentionOfAllTokensInHalves) {
  Layers source(kFull);
  const auto fits = [&](auto change) {
    RunLayer l = source.make(true, BlockType::Q4_K);
    change(l.attention);
    return fits_dense_run(l);
  };
  EXPECT_TRUE(fits([](AttentionArgs&) {}));
  EXPECT_FALSE(fits([](AttentionArgs& a) { a.kv.format = KvFormat::q8_0; }));
  EXPECT_FALSE(fits([](AttentionArgs& a) { a.window = 1024; }));
  EXPECT_FALSE(fits([](AttentionArgs& a) { a.softcap = 50; }));
  EXPECT_FALSE(fits([](AttentionArgs& a) { a.gate = OutputGate::softplus_per_head; }));
  EXPECT_FALSE(fits([](AttentionArgs& a) { a.kv.kv_heads = 2; }));  // twelve share one
}

// Entries of Q6_K are short, so there are most.
TEST(DenseRunPlanPlaces, HasRoomForSixBitsEverywhere) {
  Layers source(kFull);
  for (const bool attends : {false, true}) {
    const Plans plans({source.make(attends, BlockType::Q6_K, BlockType::Q6_K)});
    EXPECT_EQ(plans.places, std::vector<int>{0});
  }
}
// What has more entries than a block's memory holds goes by launches.
TEST(DenseRunPlanPlaces, RefusesWhatHasNoRoom) {
  Model wide = kFull;
  wide.mixed = 13312, wide.key_heads = 8, wide.heads = 104, wide.kv = 13;
  Layers source(wide);
  const Plans plans({source.make(true, BlockType::Q6_K, BlockType::Q6_K)});
  EXPECT_EQ(plans.places, std::vector<int>{-1});
}

// A layer's successor may be of another kind.
TEST(DenseRunPlanPlaces, SayTheNextSchedule) {
  Layers source(kFull);
  const Plans plans({source.make(false, BlockType::Q4_K), source.make(false, BlockType::Q6_K),
                     source.make(true, BlockType::Q4_K), source.make(false, BlockType::Q4_K)});
  EXPECT_EQ(plans.places, (std::vector<int>{0, 1, 2, 3}));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(plans.layer(i).next_schedule, plans.layer(i + 1).schedule);
  EXPECT_EQ(plans.layer(3).schedule, plans.layer(0).schedule);
  EXPECT_NE(plans.layer(1).schedule, plans.layer(0).schedule);
}

TEST(DenseRunPlanPlaces, RowsHaveToFillTheBlocks) {
  Model narrow = kFull;
  narrow.embd = 2048;  // eight super-blocks
  Model odd = kFull;
  odd.hidden = 17152;  // 67
  for (const Model& model : {narrow, odd}) {
    Layers source(model);
    EXPECT_FALSE(fits_dense_run(source.make(false, BlockType::Q4_K)));
  }
}

}  // namespace
}  // namespace tessera::gpu::dense_run
