#include "device/gpu/kernels/dense_run_plan.h"

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "device/gpu/kernels/dense_run.h"
#include "device/gpu/kernels/dense_run_fits.h"
#include "device/gpu/kernels/run_plan.h"

namespace tessera::gpu {
namespace dense_run {
namespace {

std::uint64_t address_of_bytes(const void* at) {
  return reinterpret_cast<std::uintptr_t>(at);
}
// --- A block's schedule ---

// A matrix of a stage, and the tile where it begins.
struct Piled {
  MatrixIndex index;
  const Matrix* w;
  int first;
};

class ScheduleWriter {
 public:
  ScheduleWriter(const RunLayer& layer, const Shape& shape, int block, Schedule& to)
      : layer_(layer), shape_(shape), block_(block), to_(to) {}

  // False: the block has more entries or turns than there is room for.
  bool write() {
    in();
    mix_out();
    up();
    down();
    mark_ends();
    return !full_ && share_turns();
  }

 private:
  // A tile, or the half of one that the block has.
  struct Tile {
    Stage stage;
    Piled of;
    int tile, local;    // of the stage; of the block
    int supers;         // of a row of it
    int counter, sums;  // what counts them, and how many they are
    Columns columns = kAllColumns;
    int begin() const { return columns == kSecondHalf ? supers / 2 : 0; }
    int end() const { return columns == kFirstHalf ? supers / 2 : supers; }
  };
  // Super-blocks [from, to) of it, an even number, as entries of much the same size.
  void add(const Tile& t, int from, int to, int part, int row) {
    const bool six = t.of.w->type == BlockType::Q6_K;
    const int most = six ? kMostSix : kMostFour;
    for (int at = from, n = 0; at < to; at += n) {
      const int left = (to - at) / kTogether, pieces = (to - at + most - 1) / most;
      n = (left + pieces - 1) / pieces * kTogether;  // as many as the others, so none is small
      if (full_ = full_ || to_.n == kMostEntries; full_) return;
      to_.feed[to_.n] = {.at = static_cast<std::uint32_t>((t.tile - t.of.first) * t.supers + at),
                         .bytes = static_cast<std::uint32_t>(n * run::super_bytes(t.of.w->type)),
                         .supers = static_cast<std::uint16_t>(n),
                         .matrix = t.of.index,
                         .six = static_cast<std::uint8_t>(six)};
      const int first = t.stage == kIn || t.stage == kUp ? kOutSums : 0;
      to_.work[to_.n++] = {
          .row = static_cast<std::uint16_t>(row + at),
          .sum = static_cast<std::uint16_t>(first + (t.local * t.supers + at) / kTogether),
          .stage = t.stage,
          .part = static_cast<std::uint8_t>(part),
          .counter = static_cast<std::uint8_t>(t.counter),
          .ends = static_cast<std::uint8_t>(kTileArrivals - t.sums + 1),
          .tile = static_cast<std::uint16_t>(t.tile),
          .local = static_cast<std::uint8_t>(t.local),
          .six = static_cast<std::uint8_t>(six),
          .supers = static_cast<std::uint8_t>(n),
          .turns = static_cast<std::uint8_t>(n / kTogether),
          .columns = t.columns};
    }
  }
  // Tiles with the residual's columns. Of those ahead the first part, then the rest.
  void by_parts(const std::vector<Tile>& tiles, std::size_t ahead, int part) {
    const int first = first_part(part, shape_.embd), row = kMostHidden;
    ahead = std::min(ahead, tiles.size());
    for (std::size_t i = 0; i < ahead; ++i) add(tiles[i], 0, first, part, row);
    for (std::size_t i = 0; i < tiles.size(); ++i) {
      if (i >= ahead) add(tiles[i], 0, first, part, row);
      add(tiles[i], first, shape_.embd, part + 1, row);
    }
  }

  void in() {
    std::vector<Piled> matrices;
    int end = 0;
    for (int i = 0; i < (has_attention(layer_) ? 3 : 2); ++i) {
      const Matrix& w = layer_.in.outputs[static_cast<std::size_t>(i)].w;
      matrices.push_back({static_cast<MatrixIndex>(kIn0 + i), &w, end});
      end += w.rows / kTileRows;
    }
    std::vector<Tile> tiles;
    for (int tile = block_, local = 0; tile < end; tile += kBlocks, ++local) {
      std::size_t m = matrices.size() - 1;
      while (tile < matrices[m].first) --m;
      tiles.push_back({kIn, matrices[m], tile, local, shape_.embd, kInCounter + local,
                       shape_.embd / kTogether});
    }
    by_parts(tiles, kInAhead, kPartIn);
  }
  // The block's tiles of the residual. Of down, where those behind the last whole round are at most
  // half as many as blocks, two blocks have a half each; of out that is no gain, since what one
  // gives the other is on its way for longer than it takes to make.
  std::vector<Tile> residual(Stage stage, MatrixIndex index, const Matrix& w, int supers) {
    std::vector<Tile> tiles;
    const int all = w.rows / kTileRows, left = all % kBlocks, whole = all - left;
    const auto add_tile = [&](int tile, Columns columns) {
      const int local = static_cast<int>(tiles.size());
      const int sums = supers / kTogether / (columns == kAllColumns ? 1 : 2);
      const int counter = (stage == kOut ? kOutCounter : kDownCounter) + local;
      tiles.push_back({stage, {index, &w, 0}, tile, local, supers, counter, sums, columns});
    };
    for (int tile = block_; tile < whole; tile += kBlocks) add_tile(tile, kAllColumns);
    const bool halved = stage == kDown && 2 * left <= kBlocks;
    if (block_ < left)
      add_tile(whole + block_, halved ? kSecondHalf : kAllColumns);
    else if (halved && block_ < 2 * left)
      add_tile(whole + block_ - left, kFirstHalf);
    return tiles;
  }
  void mix_out() {
    for (const Tile& t : residual(kOut, kOutMatrix, layer_.out.outputs[0].w, shape_.mixed))
      for (int at = 0; at < shape_.mixed; at += kOutPart)
        add(t, at, std::min(at + kOutPart, shape_.mixed), kPartOut + at / kOutPart, 0);
  }
  void up() {
    const DenseArgs& d = layer_.ffn.dense;
    const int sums = shape_.embd / kTogether, left = d.gate.rows / kTileRows;
    std::vector<Tile> tiles;
    const auto pair = [&](int tile, int counter, int all) {
      for (const auto& [index, w] : {std::pair{kGate, &d.gate}, std::pair{kUpMatrix, &d.up}})
        tiles.push_back({kUp,
                         {index, w, 0},
                         tile,
                         static_cast<int>(tiles.size()),
                         shape_.embd,
                         kUpCounter + counter,
                         all});
    };
    for (int round = 0; round < shape_.up_rounds; ++round)
      for (int i = 0; i < 2; ++i) pair(2 * (block_ + kBlocks * round) + i, 4 * round, 4 * sums);
    // From the last block on.
    for (int tile = 2 * kBlocks * shape_.up_rounds + kBlocks - 1 - block_; tile < left;
         tile += kBlocks)
      pair(tile, static_cast<int>(tiles.size()), 2 * sums);
    by_parts(tiles, kUpAhead, kPartUp);
  }
  // Of the first two tiles, with which `in` begins, the parts that the rounds but the last of gate
  // and up make go ahead.
  void down() {
    const std::vector<Tile> tiles =
        residual(kDown, kDownMatrix, layer_.ffn.dense.down, shape_.hidden);
    const int made =
        (shape_.up_rounds - 1) * 2 * kTileRows * kBlocks / kSuperCols / kDownPart * kDownPart;
    for (const Tile& t : tiles)
      if (t.local < 2) add_parts(t, 0, made);
    for (const Tile& t : tiles) add_parts(t, t.local < 2 ? made : 0, shape_.hidden);
  }
  // What the block has of a tile's columns [from, to) of down, part by part.
  void add_parts(const Tile& t, int from, int to) {
    const int end = std::min(to, t.end());
    for (int at = std::max(from, t.begin()); at < end;) {
      const int next = std::min(end, (at / kDownPart + 1) * kDownPart);
      add(t, at, next, kPartDown + at / kDownPart, 0);
      at = next;
    }
  }

  // Of each tile, or group, the last entry alone ends it.
  void mark_ends() {
    std::array<bool, kCounters> seen{};
    for (int i = to_.n; i-- > 0;)
      if (Work& w = to_.work[i]; std::exchange(seen[w.counter], true)) w.ends = 0;
  }

  // A turn a warp, one after another.
  bool share_turns() {
    for (auto& items : to_.items) items[0] = kNoItem;
    std::array<int, kProductWarps> n{};
    int turn = 0;
    for (int i = 0; i < to_.n; ++i)
      for (int k = 0; k < to_.work[i].turns; ++k, ++turn) {
        const auto warp = static_cast<std::size_t>(turn % kProductWarps);
        if (n[warp] + 1 == kMostItems) return false;
        to_.items[warp][n[warp]++] = static_cast<std::uint16_t>(k << 8 | i);
        to_.items[warp][n[warp]] = kNoItem;
      }
    return true;
  }

  const RunLayer& layer_;
  const Shape& shape_;
  const int block_;
  Schedule& to_;
  bool full_ = false;
};

// Of one kind of layer, of all blocks.
bool write_schedules(const RunLayer& l, const Shape& shape, std::byte* to) {
  for (int block = 0; block < kBlocks; ++block) {
    auto* schedule = new (to + static_cast<std::size_t>(block) * sizeof(Schedule)) Schedule{};
    if (!ScheduleWriter(l, shape, block, *schedule).write()) return false;
  }
  return true;
}

Shape shape_of(const RunLayer& l) {
  Shape s{};
  const DenseArgs& d = l.ffn.dense;
  s.embd = supers_of(l.ffn.n_embd), s.mixed = supers_of(l.out.outputs[0].w.cols);
  s.hidden = supers_of(d.down.cols);
  s.up_rounds = up_cut(d.gate.rows).rounds;
  for (const int part : {kPartIn, kPartUp}) {
    s.arrivals[part] = first_part(part, s.embd);
    s.arrivals[part + 1] = s.embd - first_part(part, s.embd);
  }
  const auto parts = [&s](int part, int each, int supers) {
    for (int at = 0; at < supers; at += each, ++part)
      s.arrivals[part] = std::min(each, supers - at);
  };
  parts(kPartOut, kOutPart, s.mixed);
  parts(kPartDown, kDownPart, s.hidden);
  return s;
}

void write_planes(const Matrix& w, std::uint64_t (&to)[4]) {
  const PlaneLayout at = plane_layout(w.type, w.rows, w.cols);
  const std::uint64_t data = address_of_bytes(w.data);
  const auto plane = [&](std::int64_t offset) { return data + static_cast<std::uint64_t>(offset); };
  if (w.type == BlockType::Q6_K)
    to[0] = plane(at.quants), to[1] = plane(at.extra), to[2] = plane(at.scales),
    to[3] = plane(at.supers);
  else
    to[0] = plane(at.quants), to[1] = plane(at.scales), to[2] = plane(at.supers), to[3] = data;
}

void describe_net(const RunLayer& l, Layer& to) {
  const GatedDeltaSpec& d = l.delta.spec;
  to.channels = d.conv_channels();
  to.key_heads = d.n_key_head, to.heads = d.n_value_head, to.grouped = d.grouped_values ? 1 : 0;
  const Matrix &alpha = l.in.outputs[2].w, &beta = l.in.outputs[3].w;
  to.alpha_type = alpha.type, to.alpha = alpha.data;
  to.beta_type = beta.type, to.beta = beta.data;
  to.taps = l.delta.taps, to.a = l.delta.a, to.dt_bias = l.delta.dt_bias;
  to.head_norm = l.out.input.weight;
  to.head_eps = l.out.input.eps;
  to.state = l.delta.state, to.slot_stride = l.delta.slot_stride;
}

void describe_query_heads(const RunLayer& l, Layer& to) {
  const AttentionArgs& a = l.attention;
  to.attends = 1;
  to.key_heads = a.kv.kv_heads, to.heads = a.n_head, to.head_dim = a.kv.head_dim_k;
  to.query_stride = static_cast<std::int32_t>(a.q_head_stride);
  to.gated = a.gate == OutputGate::none ? 0 : 1;
  to.keys_at = l.in.outputs[0].w.rows;
  to.values_at = to.keys_at + l.in.outputs[1].w.rows;
  to.turns = a.n_rot / 2, to.cos = a.cos, to.sin = a.sin;
  to.scale = a.scale;
  to.q_norm = a.q_norm, to.k_norm = a.k_norm;
  to.head_eps = a.eps;
  to.pool = a.pool + a.layer_offset, to.page_stride = a.page_stride;
  to.page_table = a.page_table;
}

Layer layer_of(const RunLayer& l) {
  Layer to{};
  for (std::size_t i = 0; i < (has_attention(l) ? 3u : 2u); ++i)
    write_planes(l.in.outputs[i].w, to.planes[kIn0 + i]);
  write_planes(l.out.outputs[0].w, to.planes[kOutMatrix]);
  write_planes(l.ffn.dense.gate, to.planes[kGate]);
  write_planes(l.ffn.dense.up, to.planes[kUpMatrix]);
  write_planes(l.ffn.dense.down, to.planes[kDownMatrix]);
  to.norm = l.in.input.weight, to.ffn_norm = l.ffn.norm, to.eps = l.ffn.eps;
  if (has_attention(l))
    describe_query_heads(l, to);
  else
    describe_net(l, to);
  return to;
}

// What a schedule depends on, besides the shape.
struct Kind {
  std::array<BlockType, kMatrices> types{};
  std::array<int, 3> rows{};
  friend bool operator==(const Kind&, const Kind&) = default;
};
Kind kind_of(const RunLayer& l) {
  Kind k;
  for (std::size_t i = 0; i < (has_attention(l) ? 3u : 2u); ++i)
    k.types[kIn0 + i] = l.in.outputs[i].w.type, k.rows[i] = l.in.outputs[i].w.rows;
  k.types[kOutMatrix] = l.out.outputs[0].w.type;
  k.types[kGate] = l.ffn.dense.gate.type, k.types[kUpMatrix] = l.ffn.dense.up.type;
  k.types[kDownMatrix] = l.ffn.dense.down.type;
  return k;
}

std::vector<int> write_runs(std::span<const RunLayer> layers, std::byte* host) {
  std::vector<int> places(layers.size(), -1);
  std::vector<Kind> kinds;
  auto* shape = new (host) Shape{};
  Layer* before = nullptr;  // where the layer before has a place
  int nets = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const RunLayer& l = layers[i];
    Layer* const last = std::exchange(before, nullptr);
    if (!fits_dense_run(l)) continue;
    if (kinds.empty()) *shape = shape_of(l);
    if (*shape != shape_of(l)) continue;
    const Kind kind = kind_of(l);
    const auto found = std::find(kinds.begin(), kinds.end(), kind);
    const auto at = static_cast<std::size_t>(found - kinds.begin());
    if (found == kinds.end()) {
      std::byte* schedules = host + schedules_at(static_cast<int>(layers.size()));
      if (at == kMostSchedules ||
          !write_schedules(l, *shape, schedules + at * kBlocks * sizeof(Schedule)))
        continue;
      kinds.push_back(kind);
    }
    before = new (host + layers_at() + i * sizeof(Layer)) Layer(layer_of(l));
    before->schedule = static_cast<int>(at);
    before->log = nets;
    if (!has_attention(l)) ++nets;
    if (last != nullptr) last->next_schedule = before->schedule;
    places[i] = static_cast<int>(i);
  }
  return places;
}

}  // namespace
}  // namespace dense_run

std::size_t dense_runs_bytes(int layers) {
  using dense_run::Schedule;
  return static_cast<std::size_t>(dense_run::schedules_at(layers)) +
         std::size_t{dense_run::kMostSchedules} * dense_run::kBlocks * sizeof(Schedule);
}
std::size_t dense_log_bytes(int nets) {
  return static_cast<std::size_t>(nets) * dense_run::kBlocks * sizeof(dense_run::Log);
}
std::size_t dense_passed_bytes(std::int64_t context, std::int64_t query_columns) {
  const std::int64_t spans = most_spans(static_cast<int>(context));
  return static_cast<std::size_t>(dense_run::passed_layout().bytes + spans * query_columns * 16);
}
std::vector<int> write_dense_runs(std::span<const RunLayer> layers, std::byte* host) {
  return dense_run::write_runs(layers, host);
}

}  // namespace tessera::gpu
