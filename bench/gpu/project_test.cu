// Projections against scalar arithmetic.
#include <cstring>
#include <memory>
#include <utility>

#include "device/gpu/kernels/gemm.cuh"
#include "harness.h"

namespace tessera::gpu::bench {
namespace {

struct Case {
  BlockType type;
  int rows, cols, batch;
  InputKind kind;
  float size = 1.0f;  // of the rows; other than 1: their bits are compared, not their values
};

std::vector<float> input_of(const Case& c, const float* x, const std::vector<float>& weight,
                            const float* gate, int head_dim) {
  if (c.kind == InputKind::plain) return {x, x + c.cols};
  if (c.kind == InputKind::rms_norm) return rms_normed(x, weight.data(), 1e-6f, c.cols);
  std::vector<float> out;
  for (int h = 0; h < c.cols / head_dim; ++h) {
    std::vector<float> part = rms_normed(x + h * head_dim, weight.data(), 1e-6f, head_dim);
    for (int i = 0; i < head_dim; ++i)
      part[std::size_t(i)] *= float(silu(double(gate[h * head_dim + i])));
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

void run(const Case& c, std::uint64_t seed) {
  Random random(seed);
  const std::string name = std::string(block_type_name(c.type)) + " " + std::to_string(c.rows) +
                           "x" + std::to_string(c.cols) + " rows " + std::to_string(c.batch) +
                           " kind " + std::to_string(int(c.kind));
  TestMatrix w(c.type, c.rows, c.cols, seed);
  const int head_dim = 32;
  const std::size_t n = std::size_t(c.batch) * std::size_t(c.cols);
  const std::vector<float> x = random.normals(n, c.size), gate = random.normals(n);
  std::vector<float> weight = random.normals(std::size_t(c.cols), 0.2f);
  for (float& v : weight) v += 1;
  const bool open = seed % 2 == 1 || block_format(c.type).elems == 256;
  std::vector<float> factors = gate;
  if (open)
    for (float& z : factors) z = float(silu(double(z)));
  DeviceArray<float> dx(x), dgate(factors), dweight(weight);
  DeviceArray<float> out(std::size_t(c.batch) * std::size_t(c.rows));
  Runner runner(project_workspace(c.batch, c.cols, 2 * c.rows) + 256);
  ProjectArgs args{.input = {.kind = c.kind,
                             .x = dx.data(),
                             .stride = c.cols,
                             .cols = c.cols,
                             .weight = dweight.data(),
                             .eps = 1e-6f,
                             .gate = dgate.data(),
                             .gate_stride = c.cols,
                             .gate_open = open,
                             .head_dim = head_dim},
                   .rows = c.batch,
                   .n_outputs = 1,
                   .outputs = {{{w.matrix, out.data(), c.rows, false}}}};
  GPU_OK(project(runner.launch, args));
  runner.sync();
  const std::vector<float> got = out.get();
  std::vector<double> want;
  const bool decode = c.batch <= kDecodeRows && !is_plain(c.type);
  for (int b = 0; b < c.batch; ++b) {
    std::vector<float> row = input_of(c, x.data() + std::size_t(b) * c.cols, weight,
                                      gate.data() + std::size_t(b) * c.cols, head_dim);
    if (decode) row = rounded(row);
    for (int r = 0; r < c.rows; ++r) want.push_back(dot(w.row(r), row.data(), c.cols));
  }
  const bool f32 = is_plain(c.type);
  if (c.size == 1.0f) compare(name, got, want, f32 ? 1e-5 : decode ? 1e-3 : 1.2e-2);
  // Tiles of few tokens give the same bits; plain weights are cut otherwise in long prompts.
  const bool cut = f32 && runner.launch.gemm && c.batch >= kGemmRows;
  if (c.batch > kNarrowTokens && !cut) {
    const int few = 50;
    if (is_plain(c.type)) runner.launch.multiprocessors = 1;  // of plain weights the large ones
    out.poison();
    args.rows = few;
    args.input.x = dx.data() + std::size_t(c.batch - few) * c.cols;
    args.input.gate = dgate.data() + std::size_t(c.batch - few) * c.cols;
    GPU_OK(project(runner.launch, args));
    runner.sync();
    check(name + ": the last rows apart",
          std::memcmp(out.get().data(), got.data() + std::size_t(c.batch - few) * c.rows,
                      sizeof(float) * std::size_t(few * c.rows)) == 0);
  }
  if (c.batch > kDecodeRows || c.batch == 1) return;
  // A row alone gives the same bits.
  for (int b = 0; b < c.batch; ++b) {
    out.poison();
    args.rows = 1;
    args.input.x = dx.data() + std::size_t(b) * c.cols;
    args.input.gate = dgate.data() + std::size_t(b) * c.cols;
    GPU_OK(project(runner.launch, args));
    runner.sync();
    const std::vector<float> alone = out.get();
    check(name + " row " + std::to_string(b) + " alone",
          std::memcmp(alone.data(), got.data() + std::size_t(b) * c.rows,
                      sizeof(float) * std::size_t(c.rows)) == 0);
  }
}

using Shapes = std::vector<std::pair<BlockType, int>>;

// Matrices of several types side by side, plain ones among them: a row as among others, bit by bit,
// and `apart` as each of them alone (a large matrix is cut by what stands beside it). Of many rows
// all at once.
void run_several(const Shapes& shapes, int cols, int batch, bool apart, std::uint64_t seed) {
  Random random(seed);
  const std::vector<float> host_x = random.normals(std::size_t(batch) * std::size_t(cols));
  const std::vector<float> host_weight = random.normals(std::size_t(cols), 0.2f);
  DeviceArray<float> x(host_x), weight(host_weight);
  int all_rows = 0;
  for (const auto& [type, rows] : shapes) all_rows += (rows + 15) / 16 * 32;
  Runner runner(project_workspace(batch, cols, all_rows) + 256);
  std::vector<std::unique_ptr<TestMatrix>> matrices;
  std::vector<std::unique_ptr<DeviceArray<float>>> outs;
  ProjectArgs args{.input = {.kind = InputKind::rms_norm,
                             .x = x.data(),
                             .stride = cols,
                             .cols = cols,
                             .weight = weight.data(),
                             .eps = 1e-6f},
                   .rows = batch};
  for (const auto& [type, rows] : shapes) {
    matrices.push_back(std::make_unique<TestMatrix>(type, rows, cols, ++seed));
    outs.push_back(std::make_unique<DeviceArray<float>>(std::size_t(batch) * std::size_t(rows)));
    outs.back()->poison();
    args.outputs[std::size_t(args.n_outputs++)] = {matrices.back()->matrix, outs.back()->data(),
                                                   rows, false};
  }
  GPU_OK(project(runner.launch, args));
  runner.sync();
  const bool decode = batch <= kDecodeRows;
  const int each = decode ? 1 : batch;
  std::vector<std::vector<float>> together;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    together.push_back(outs[i]->get());
    std::vector<double> want;
    for (int b = 0; b < batch; ++b) {
      std::vector<float> row =
          rms_normed(host_x.data() + std::size_t(b * cols), host_weight.data(), 1e-6f, cols);
      if (decode && !is_plain(shapes[i].first)) row = rounded(row);
      for (int r = 0; r < shapes[i].second; ++r)
        want.push_back(dot(matrices[i]->row(r), row.data(), cols));
    }
    compare("several of " + std::to_string(cols) + " columns, matrix " + std::to_string(i),
            together[i], want,
            is_plain(shapes[i].first) ? 1e-5
            : decode                  ? 1e-3
                                      : 1.2e-2);
  }
  for (int b = 0; b < batch; b += each)
    for (std::size_t first = 0; first < (apart ? shapes.size() : 1); ++first) {
      const std::size_t count = apart ? 1 : shapes.size();
      ProjectArgs one = args;
      one.rows = each, one.n_outputs = int(count), one.input.x = x.data() + std::size_t(b * cols);
      for (std::size_t i = 0; i < count; ++i) {
        one.outputs[i] = args.outputs[first + i];
        outs[first + i]->poison();
      }
      GPU_OK(project(runner.launch, one));
      runner.sync();
      for (std::size_t i = first; i < first + count; ++i) {
        const auto rows = std::size_t(shapes[i].second);
        check("several of " + std::to_string(cols) + " columns, row " + std::to_string(b) + " of " +
                  std::to_string(batch) + ", matrix " + std::to_string(i),
              std::memcmp(outs[i]->get().data(), together[i].data() + std::size_t(b) * rows,
                          rows * std::size_t(each) * 4) == 0);
      }
    }
}

// Matrices that give every multiprocessor many super-blocks: a dense model's. Of few
// multiprocessors one or several teams; with more the last round is incomplete.
void test_dense(std::uint64_t seed) {
  for (const int multiprocessors : {0, 7, 5, 4, 3, 1}) {
    pretended_multiprocessors() = multiprocessors;
    for (const int batch : {1, 2, 8}) {
      run({BlockType::Q4_K, 157, 5120, batch, InputKind::rms_norm}, seed++);
      run({BlockType::Q6_K, 150, 4352, batch, InputKind::gated_rms}, seed++);
      run({BlockType::Q4_K, 40, 17408, batch, InputKind::plain}, seed++);
      run({BlockType::Q6_K, 33, 17408, batch, InputKind::plain}, seed++);
    }
    for (const int batch : {1, 3, 8}) {
      run_several(
          {{BlockType::Q4_K, 150}, {BlockType::F32, 9}, {BlockType::Q6_K, 40}, {BlockType::F32, 5}},
          5120, batch, false, seed += 10);
      run_several({{BlockType::Q4_K, 100}, {BlockType::Q6_K, 70}, {BlockType::Q6_K, 1}}, 4096,
                  batch, false, seed += 10);
    }
    // Plain rows beside them by more than one cluster: 16 to 24 super-blocks, and one more.
    for (const int cols : {4096, 4352, 5888, 6144, 6400})
      for (const bool clusters : {true, false}) {
        without_clusters() = !clusters;
        run_several({{BlockType::Q4_K, 260}, {BlockType::F32, 33}, {BlockType::F32, 40}}, cols,
                    multiprocessors + 1, false, seed += 10);
      }
    without_clusters() = false;
  }
  pretended_multiprocessors() = 0;
}

// A router; and a mixture's delta net: plain rows beside quantised ones, whose rows are rounded
// with them. By clusters of blocks where the GPU has them, and as where it has none.
void test_plain_beside(std::uint64_t seed) {
  for (int batch = 1; batch <= 8; ++batch)
    for (const bool clusters : {true, false}) {
      pretended_multiprocessors() = batch % 2 * 3;
      without_clusters() = !clusters;
      run_several({{BlockType::Q6_K, 300},
                   {BlockType::Q4_K, 150},
                   {BlockType::F32, 32},
                   {BlockType::F32, 31}},
                  2048, batch, false, seed);
      run_several({{BlockType::F32, 256}, {BlockType::F16, 3}}, 2048, batch, false, seed += 10);
    }
  pretended_multiprocessors() = 0;
  without_clusters() = false;
}

// Long prompts on a device that decodes their weights once: odd numbers of token tiles, several
// matrices at once. For few multiprocessors, so that small matrices go this way; for a few more by
// small tiles of weights.
void test_long(std::uint64_t seed) {
  for (const int multiprocessors : {48, 9}) {
    pretended_multiprocessors() = multiprocessors;
    Runner runner(256);
    const Output few{.w = {BlockType::Q8_0, 300, 352}};
    check("tiles of 64 rows where those of 256 are too few",
          takes_small_tiles(runner.launch, 1100, {&few, 1}) == (multiprocessors == 48));
    for (const BlockType type : all_block_types()) {
      const bool k_quant = block_format(type).elems == 256;
      run({type, 300, k_quant ? 768 : 352, 1100, InputKind::plain}, seed++);
      run({type, 561, k_quant ? 512 : 480, 1025, InputKind::rms_norm}, seed++);
    }
  }
  run({BlockType::Q4_K, 2300, 512, 1290, InputKind::gated_rms}, seed++);
  run({BlockType::F32, 700, 2048, 1290, InputKind::rms_norm}, seed++);
  run({BlockType::Q4_K, 1100, 512, 515, InputKind::rms_norm}, seed++);
  for (const int rows : {8, 600})
    for (const BlockType type : {BlockType::F32, BlockType::F16, BlockType::Q8_0})
      run({type, rows, 64, 1100, InputKind::plain}, seed++);  // a step a product
  for (const int multiprocessors : {2, 9, 96}) {              // the last: small tiles
    pretended_multiprocessors() = multiprocessors;
    run_several(
        {{BlockType::Q6_K, 340}, {BlockType::F32, 32}, {BlockType::Q4_K, 270}, {BlockType::F32, 9}},
        512, 1300, false, seed += 10);
  }
  pretended_multiprocessors() = 0;
}

// Plain weights and rows that are small: neither's parts may be lost.
void test_small_values(std::uint64_t seed) {
  const int cols = 1024, batch = 1030, rows = 70;
  Random random(seed);
  for (const BlockType type : {BlockType::F32, BlockType::BF16})
    for (const auto& [x_size, w_size] : {std::pair{1e-3f, 1.0f}, {1.0f, 0.004f}, {1e-3f, 0.03f}}) {
      TestMatrix w(type, rows, cols, ++seed, true, w_size);
      const std::vector<float> x = random.normals(std::size_t(batch) * std::size_t(cols), x_size);
      DeviceArray<float> dx(x), out(std::size_t(batch) * std::size_t(rows));
      Runner runner(project_workspace(batch, cols, 2 * rows));
      GPU_OK(project(runner.launch, {.input = {.x = dx.data(), .stride = cols, .cols = cols},
                                     .rows = batch,
                                     .n_outputs = 1,
                                     .outputs = {{{w.matrix, out.data(), rows, false}}}}));
      runner.sync();
      std::vector<double> want;
      for (int b = 0; b < batch; ++b)
        for (int r = 0; r < rows; ++r)
          want.push_back(dot(w.row(r), x.data() + std::size_t(b) * cols, cols));
      compare("small values of " + std::string(block_type_name(type)), out.get(), want, 2e-6);
    }
}

// Hidden activations with room for all rows of gate and up and for a part of them.
void test_hidden_parts(std::uint64_t seed) {
  const int cols = 512, batch = 1100, n_ff = 700;
  Random random(seed);
  const TestMatrix gate(BlockType::Q4_K, n_ff, cols, seed),
      up(BlockType::Q4_K, n_ff, cols, seed + 1);
  const std::vector<float> x = random.normals(std::size_t(batch) * std::size_t(cols));
  DeviceArray<float> dx(x);
  DeviceArray<std::byte> tokens(half_rows_bytes(batch, cols));
  DeviceArray<std::byte> hidden(half_rows_bytes(batch, n_ff)), room(std::size_t(6) << 18);
  const HalfRows in{reinterpret_cast<__half*>(tokens.data()), cols / kTileCols};
  const HalfRows h{reinterpret_cast<__half*>(hidden.data()), (n_ff + kTileCols - 1) / kTileCols};
  Runner runner(256);
  GPU_OK(halve_rows(runner.launch, {.x = dx.data(), .stride = cols, .cols = cols}, batch, in, {}));
  std::vector<std::vector<std::byte>> got;
  for (const std::size_t tiles : {6, 2, 3}) {  // of 256 rows
    hidden.poison();
    GPU_OK(gemm_hidden(runner.launch, gate.matrix, up.matrix, Activation::silu, in, batch, h,
                       {room.data(), tiles << 18}));
    runner.sync();
    got.push_back(hidden.get());
    check("hidden activations in parts", got.back() == got.front());
  }
  const HalfRows host{reinterpret_cast<__half*>(got[0].data()), h.col_tiles};
  std::vector<float> values;
  std::vector<double> want;
  for (int b = 0; b < batch; ++b)
    for (int c = 0; c < n_ff; ++c) {
      const int place = half_place(c);
      values.push_back(__half2float(host.piece(
          b,
          place % kTileCols / kPieceHalves)[place / kTileCols * kHalfTile + place % kPieceHalves]));
      const float* row = x.data() + std::size_t(b) * cols;
      want.push_back(
          activated(Activation::silu, dot(gate.row(c), row, cols), dot(up.row(c), row, cols)));
    }
  compare("hidden activations", values, want, 1.2e-2);
}

// Added to what is there; with room for all of the matrix's rows and for a part of them.
void test_long_parts(std::uint64_t seed, int multiprocessors) {
  Random random(seed);
  pretended_multiprocessors() = multiprocessors;
  const int cols = 512, batch = 1100, rows = 1500;
  TestMatrix w(BlockType::Q4_K, rows, cols, seed);
  const std::vector<float> x = random.normals(std::size_t(batch) * std::size_t(cols));
  DeviceArray<float> dx(x);
  std::vector<std::vector<float>> got, second;
  for (const int room_rows : {rows, 700}) {
    DeviceArray<float> out(std::vector<float>(std::size_t(batch) * std::size_t(rows), 0.5f));
    DeviceArray<float> again(std::size_t(batch) * std::size_t(rows));
    Runner runner(project_workspace(batch, cols, room_rows));
    ProjectArgs args{.input = {.x = dx.data(), .stride = cols, .cols = cols},
                     .rows = batch,
                     .n_outputs = 1,
                     .outputs = {{{w.matrix, out.data(), rows, true}}}};
    GPU_OK(project(runner.launch, args));
    args.outputs[0] = {w.matrix, again.data(), rows, false};  // right behind, in the same room
    GPU_OK(project(runner.launch, args));
    runner.sync();
    got.push_back(out.get());
    second.push_back(again.get());
  }
  std::vector<double> sums, want;
  for (int b = 0; b < batch; ++b)
    for (int r = 0; r < rows; ++r)
      sums.push_back(dot(w.row(r), x.data() + std::size_t(b) * cols, cols));
  for (const double sum : sums) want.push_back(0.5 + sum);
  compare("a long prompt, added", got[0], want, 1.2e-2);
  compare("a long prompt, behind another", second[0], sums, 1.2e-2);
  check("a long prompt, in parts", got[0] == got[1] && second[0] == second[1]);
  pretended_multiprocessors() = 0;
}

}  // namespace

void test_projections() {
  std::uint64_t seed = 1;
  for (const BlockType type : all_block_types()) {
    const bool k_quant = block_format(type).elems == 256;
    for (const int batch : {1, 3, 8, 11, 70}) {
      run({type, 5, k_quant ? 256 : 32, batch, InputKind::plain}, seed++);
      run({type, 100, k_quant ? 768 : 352, batch, InputKind::rms_norm}, seed++);
      run({type, 272, k_quant ? 2048 : 704, batch, InputKind::gated_rms}, seed++);
    }
    // In narrow tiles, as a large GPU takes them of so few rows, and in wide ones.
    for (const int multiprocessors : {0, 3}) {
      pretended_multiprocessors() = multiprocessors;
      run({type, 300, k_quant ? 768 : 352, 333, InputKind::plain}, seed++);
    }
    pretended_multiprocessors() = 0;
  }
  run({BlockType::Q4_K, 64, 17408, 8, InputKind::plain}, seed++);
  run({BlockType::F32, 64, 5120, 8, InputKind::rms_norm}, seed++);
  // Where products of factors lose bits, or are infinite.
  for (const BlockType type : {BlockType::Q4_K, BlockType::Q6_K})
    for (const float size : {3e-35f, 2e-36f, 3e38f})
      run({type, 64, 2048, 8, InputKind::plain, size}, seed++);
  // Heads: whole tiles a warp, an odd and an even number of super-blocks each.
  run({BlockType::Q6_K, 140000, 256, 8, InputKind::rms_norm}, seed++);
  run({BlockType::Q4_K, 140000, 512, 8, InputKind::rms_norm}, seed++);
  for (const int batch : {1, 3})
    run_several({{BlockType::Q6_K, 2200},
                 {BlockType::F32, 20},
                 {BlockType::Q4_K, 1500},
                 {BlockType::F16, 33}},
                2048, batch, true, seed += 10);
  // Six tiles a multiprocessor, all on their way at once; of fewer, the first alone is a head.
  pretended_multiprocessors() = 132;
  for (const int batch : {2, 5, 8})
    run_several({{BlockType::Q4_K, 8192}, {BlockType::Q6_K, 4088}, {BlockType::F32, 64}}, 2048,
                batch, batch == 5, seed += 10);
  pretended_multiprocessors() = 0;
  for (const int batch : {40, 300})  // two of plain weights in one launch, and one apart
    run_several(
        {{BlockType::Q4_K, 70}, {BlockType::F32, 32}, {BlockType::F32, 32}, {BlockType::F32, 50}},
        512, batch, true, seed += 10);
  test_dense(seed += 10);
  test_plain_beside(seed += 10);
  if (!has_gemm()) return;
  test_long(seed += 10);
  for (const int multiprocessors : {9, 96}) test_long_parts(seed += 1000, multiprocessors);
  test_hidden_parts(seed += 10);
  test_small_values(seed += 10);
}

}  // namespace tessera::gpu::bench
