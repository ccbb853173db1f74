// The gated delta net against its formula in double precision: prompts, several sequences, then
// single rows; odd sizes, both groupings.
#include <cstring>

#include "device/gpu/kernels/sizes.h"
#include "harness.h"
#include "left_rounded.h"

namespace tessera::gpu::bench {
namespace {

struct Reference {
  GatedDeltaSpec s;
  std::vector<float> taps, dt_bias, a;
  // Of one sequence.
  std::vector<std::vector<float>> inputs;
  std::vector<double> S;

  explicit Reference(const GatedDeltaSpec& spec)
      : s(spec), S(std::size_t(spec.n_value_head * spec.dim_k * spec.dim_v), 0.0) {}

  std::vector<double> row(const float* qkv, const float* alpha, const float* beta_logits) {
    const int channels = s.conv_channels();
    inputs.emplace_back(qkv, qkv + channels);
    std::vector<double> x(static_cast<std::size_t>(channels));
    for (int c = 0; c < channels; ++c) {
      double sum = 0;
      for (int j = 0; j < s.conv_width; ++j) {
        const int at = int(inputs.size()) - s.conv_width + j;
        if (at >= 0)
          sum += double(taps[std::size_t(j * channels + c)]) *
                 double(inputs[std::size_t(at)][std::size_t(c)]);
      }
      x[std::size_t(c)] = silu(sum);
    }
    const auto normalise = [&](int first) {
      double sum = 0;
      for (int i = 0; i < s.dim_k; ++i)
        sum += x[std::size_t(first + i)] * x[std::size_t(first + i)];
      for (int i = 0; i < s.dim_k; ++i) x[std::size_t(first + i)] /= std::sqrt(sum + 1e-6);
    };
    for (int h = 0; h < 2 * s.n_key_head; ++h) normalise(h * s.dim_k);
    std::vector<double> out;
    for (int h = 0; h < s.n_value_head; ++h) {
      const int kh = s.grouped_values ? h / (s.n_value_head / s.n_key_head) : h % s.n_key_head;
      const double* q = x.data() + kh * s.dim_k;
      const double* k = q + s.key_width();
      const double* v = x.data() + 2 * s.key_width() + h * s.dim_v;
      const double decay = std::exp(double(a[std::size_t(h)]) *
                                    softplus(double(alpha[h]) + double(dt_bias[std::size_t(h)])));
      const double beta = sigmoid(double(beta_logits[h]));
      double* state = S.data() + h * s.dim_k * s.dim_v;
      for (int c = 0; c < s.dim_v; ++c) {
        double read = 0, o = 0;
        for (int i = 0; i < s.dim_k; ++i) read += (state[i * s.dim_v + c] *= decay) * k[i];
        const double delta = beta * (v[c] - read);
        for (int i = 0; i < s.dim_k; ++i) o += (state[i * s.dim_v + c] += k[i] * delta) * q[i];
        out.push_back(o / std::sqrt(double(s.dim_k)));
      }
    }
    return out;
  }
};

void run(const GatedDeltaSpec& spec, const std::vector<std::vector<int>>& steps,
         std::uint64_t seed) {
  Random random(seed);
  const int channels = spec.conv_channels(), heads = spec.n_value_head;
  const std::size_t n_sequences = steps[0].size();
  Reference proto(spec);
  proto.taps = random.normals(std::size_t(spec.conv_width * channels), 0.5f);
  proto.dt_bias = random.normals(std::size_t(heads));
  for (int h = 0; h < heads; ++h) proto.a.push_back(-0.02f - random.uniform());
  std::vector<Reference> references(n_sequences, proto);
  DeviceArray<float> taps(proto.taps), dt_bias(proto.dt_bias), a(proto.a);
  const std::int64_t stride = delta_state_floats(spec) + 64;
  DeviceArray<float> state(std::size_t(stride) * n_sequences);
  state.zero();
  std::vector<int> positions(n_sequences, 0);
  int number = 0;
  bool rounded = false;  // once a prompt's products have made part of the state
  for (const std::vector<int>& lengths : steps) {
    TestRows rows(lengths, positions);
    const std::size_t n = std::size_t(rows.step.rows);
    const std::vector<float> qkv = random.normals(n * std::size_t(channels));
    const std::vector<float> alpha = random.normals(n * std::size_t(heads)),
                             beta = random.normals(n * std::size_t(heads)),
                             gate = random.normals(n * std::size_t(spec.value_width()));
    DeviceArray<float> dqkv(qkv), dalpha(alpha), dbeta(beta), dgate(gate),
        out(n * std::size_t(spec.value_width()));
    Runner runner(delta_workspace(spec, rows.step.rows) + 256);
    runner.fresh();
    GPU_OK(gated_delta(runner.launch, {.step = rows.step,
                                       .spec = spec,
                                       .qkv = dqkv.data(),
                                       .alpha = dalpha.data(),
                                       .beta_logits = dbeta.data(),
                                       .taps = taps.data(),
                                       .dt_bias = dt_bias.data(),
                                       .a = a.data(),
                                       .state = state.data(),
                                       .slot_stride = stride,
                                       .out = out.data(),
                                       .gate = dgate.data()}));
    runner.sync();
    std::vector<double> opened;
    for (const float z : gate)
      opened.push_back(opens_gate(spec, rows.step) ? silu(double(z)) : double(z));
    compare("delta gate, step " + std::to_string(number), dgate.get(), opened, 1e-6);
    std::vector<double> want;
    for (std::size_t i = 0; i < n_sequences; ++i)
      for (int t = 0; t < lengths[i]; ++t) {
        const std::size_t row = std::size_t(rows.host[i].first_row + t);
        const auto o = references[i].row(qkv.data() + row * std::size_t(channels),
                                         alpha.data() + row * std::size_t(heads),
                                         beta.data() + row * std::size_t(heads));
        want.insert(want.end(), o.begin(), o.end());
      }
    rounded = rounded || rows.step.max_sequence_rows > kDecodeRows;
    compare("delta " + std::to_string(spec.dim_k) + "x" + std::to_string(spec.dim_v) + " step " +
                std::to_string(number),
            out.get(), want, rounded ? 5e-3 : 2e-5);
    ++number;
    for (std::size_t i = 0; i < n_sequences; ++i) positions[i] += lengths[i];
  }
}

// Rows of several sequences by whole heads, then each alone by blocks of few columns.
struct Decode {
  Decode(const GatedDeltaSpec& s, int rows, std::uint64_t seed)
      : spec(s), n(rows), random(seed), stride(delta_state_floats(s) + 64) {
    const auto r = std::size_t(rows), channels = std::size_t(s.conv_channels()),
               heads = std::size_t(s.n_value_head);
    qkv = DeviceArray<float>(random.normals(r * channels));
    alpha = DeviceArray<float>(random.normals(r * heads));
    beta = DeviceArray<float>(random.normals(r * heads));
    taps = DeviceArray<float>(random.normals(std::size_t(s.conv_width) * channels, 0.5f));
    dt_bias = DeviceArray<float>(random.normals(heads));
    a = DeviceArray<float>(std::vector<float>(heads, -0.3f));
    norm = DeviceArray<float>(random.normals(std::size_t(s.dim_v)));
    closed = random.normals(r * std::size_t(s.value_width()));
    before = random.normals(r * std::size_t(stride), 0.1f);
    for (int i = 0; i < rows; ++i) positions.push_back(int(random.next() % 9));
    gate = DeviceArray<float>(closed);
    state = DeviceArray<float>(before);
    out = DeviceArray<float>(closed.size());
  }
  // The step's rows stand from `first` on.
  void take(Runner& runner, const StepRows& step, int first) {
    gate.put(closed);
    state.put(before);
    out.poison();
    runner.fresh();
    const std::int64_t value = std::int64_t{first} * spec.value_width();
    GPU_OK(
        gated_delta(runner.launch, {.step = step,
                                    .spec = spec,
                                    .qkv = qkv.data() + std::int64_t{first} * spec.conv_channels(),
                                    .alpha = alpha.data() + first * spec.n_value_head,
                                    .beta_logits = beta.data() + first * spec.n_value_head,
                                    .taps = taps.data(),
                                    .dt_bias = dt_bias.data(),
                                    .a = a.data(),
                                    .state = state.data() + first * stride,
                                    .slot_stride = stride,
                                    .out = out.data() + value,
                                    .gate = gate.data() + value,
                                    .norm = norm.data(),
                                    .eps = 1e-6f,
                                    .gates = gates}));
    runner.sync();
  }
  Input behind() const {
    const int width = spec.value_width();
    return {.kind = InputKind::gated_rms,
            .x = out.data(),
            .stride = width,
            .cols = width,
            .weight = norm.data(),
            .eps = 1e-6f,
            .gate = gate.data(),
            .gate_stride = width,
            .gate_open = true,
            .head_dim = spec.dim_v};
  }

  GatedDeltaSpec spec;
  int n;
  Random random;
  std::int64_t stride;
  std::vector<float> closed, before;
  std::vector<int> positions;
  DeviceArray<float> qkv, alpha, beta, taps, dt_bias, a, norm, gate, state, out;
  GateProducts gates;
};

// What a product finds rounded is what it would have rounded itself.
void check_rounded(Decode& d, Runner& runner, const std::string& name) {
  const int width = d.spec.value_width(), rows = 37;
  check(name + " rounded", left_rounded(runner, d.behind(), d.n));
  const TestMatrix w(BlockType::Q4_K, rows, width, 5, false);
  DeviceArray<float> product(std::size_t(d.n * rows));
  Launch launch = runner.launch;
  launch.multiprocessors = 132;  // the way of small matrices
  ProjectArgs args{.input = d.behind(),
                   .rows = d.n,
                   .n_outputs = 1,
                   .outputs = {{{w.matrix, product.data(), rows, false}}}};
  std::vector<float> got[2];
  for (const bool there : {true, false}) {
    args.input.rounded = there;
    product.poison();
    GPU_OK(project(launch, args));
    runner.sync();
    got[there] = product.get();
    if (there) runner.fresh();
  }
  check(name + " product", std::memcmp(got[0].data(), got[1].data(), got[0].size() * 4) == 0);
}

// Alpha and beta made of a row on the way are those of project().
void check_gates(Decode& d, Runner& runner, const StepRows& step, BlockType type,
                 const std::string& name) {
  constexpr int kCols = 2048;
  const int heads = d.spec.n_value_head;
  const DeviceArray<float> x(d.random.normals(std::size_t(d.n * kCols), 3.0f)),
      weight(d.random.normals(kCols));
  const TestMatrix alpha(type, heads, kCols, 7, false), beta(type, heads, kCols, 8, false);
  const Input input{.kind = InputKind::rms_norm,
                    .x = x.data(),
                    .stride = kCols,
                    .cols = kCols,
                    .weight = weight.data(),
                    .eps = 1e-5f};
  GPU_OK(project(runner.launch, {.input = input,
                                 .rows = d.n,
                                 .n_outputs = 2,
                                 .outputs = {{{alpha.matrix, d.alpha.data(), heads, false},
                                              {beta.matrix, d.beta.data(), heads, false}}}}));
  d.take(runner, step, 0);
  const std::vector<float> out = d.out.get(), state = d.state.get();
  d.alpha.poison(), d.beta.poison();
  d.gates = {input, alpha.matrix, beta.matrix};
  check(name + " makes gates", makes_gates(runner.launch, {.step = step, .spec = d.spec}, d.gates));
  d.take(runner, step, 0);
  check(name + " out with gates",
        std::memcmp(d.out.get().data(), out.data(), out.size() * 4) == 0);
  check(name + " state with gates",
        std::memcmp(d.state.get().data(), state.data(), state.size() * 4) == 0);
}

// What a long text leaves of a state that hardly decays.
void run_long(int tokens, std::uint64_t seed) {
  const GatedDeltaSpec spec{1, 1, 128, 128, 4, true};
  Decode d(spec, 1, seed);
  d.before = std::vector<float>(std::size_t(d.stride), 0.0f);
  d.a.put(std::vector<float>{-1e-4f});
  Reference reference(spec);
  reference.taps = d.taps.get(), reference.dt_bias = d.dt_bias.get(), reference.a = d.a.get();
  Runner runner(delta_workspace(spec, 1) + 256);
  std::vector<float> got;
  std::vector<double> want;
  for (int i = 0; i < tokens; ++i) {
    const std::vector<float> qkv = d.random.normals(std::size_t(spec.conv_channels())),
                             gates = d.random.normals(2);
    d.qkv.put(qkv), d.alpha.put({gates[0]}), d.beta.put({gates[1]});
    const TestRows one({1}, {i});
    d.take(runner, one.step, 0);
    got = d.out.get(), d.before = d.state.get();
    want = reference.row(qkv.data(), &gates[0], &gates[1]);
  }
  compare("delta, token " + std::to_string(tokens), got, want, 2e-5);
}

// Rows of a sequence together, up to the most that go row by row, and one by one: the same bits.
void run_rows(const GatedDeltaSpec& spec, int n, std::uint64_t seed) {
  const std::string name = "delta, " + std::to_string(n) + " rows of a sequence: ";
  Decode d(spec, n, seed);
  Runner runner(delta_workspace(spec, n) + 256);
  const TestRows together({n}, {d.positions[0]});
  d.take(runner, together.step, 0);
  const std::vector<float> out = d.out.get(), state = d.state.get();
  std::vector<float> alone, slot = d.before;
  for (int i = 0; i < n; ++i) {
    d.before = slot;
    // take() counts slots like rows: the row's own is the sequence's.
    std::copy_n(slot.data(), d.stride, d.before.data() + i * d.stride);
    const TestRows one({1}, {d.positions[0] + i});
    d.take(runner, one.step, i);
    const auto first = std::size_t(i * spec.value_width());
    const std::vector<float> got = d.out.get(), after = d.state.get();
    alone.insert(alone.end(), got.begin() + first, got.begin() + first + spec.value_width());
    std::copy_n(after.data() + i * d.stride, d.stride, slot.data());
  }
  check(name + "out", std::memcmp(out.data(), alone.data(), alone.size() * 4) == 0);
  check(name + "state", std::memcmp(state.data(), slot.data(), std::size_t(d.stride) * 4) == 0);
}

void run_heads(const GatedDeltaSpec& spec, int n, std::uint64_t seed) {
  const std::string name = "delta heads, rows " + std::to_string(n);
  Decode d(spec, n, seed);
  const std::size_t bytes =
      std::max(delta_workspace(spec, n), project_workspace(n, spec.value_width(), 64)) + 256;
  pretended_multiprocessors() = 1;  // few: blocks of few columns would take turns
  Runner heads(bytes);
  pretended_multiprocessors() = 1 << 20;
  Runner columns(bytes);
  pretended_multiprocessors() = 0;
  const TestRows all(std::vector<int>(std::size_t(n), 1), d.positions);
  d.take(heads, all.step, 0);
  const std::vector<float> out = d.out.get(), gate = d.gate.get(), state = d.state.get();
  check(name + ": not by columns", !leaves_rounded(columns.launch, spec, all.step));
  if (leaves_rounded(heads.launch, spec, all.step)) check_rounded(d, heads, name);
  for (int i = 0; i < n; ++i) {
    const TestRows alone({1}, {d.positions[std::size_t(i)]});
    d.take(columns, alone.step, i);
    const auto same = [&](const std::vector<float>& got, const std::vector<float>& want,
                          std::int64_t each) {
      const auto at = std::size_t(i * each);
      return std::memcmp(got.data() + at, want.data() + at, std::size_t(each) * 4) == 0;
    };
    const std::string row = name + ", row " + std::to_string(i) + " alone: ";
    check(row + "out", same(d.out.get(), out, spec.value_width()));
    check(row + "gate", same(d.gate.get(), gate, spec.value_width()));
    check(row + "state", same(d.state.get(), state, d.stride));
  }
  if (n > kDecodeRows) return;
  for (const BlockType type : {BlockType::F32, BlockType::F16, BlockType::BF16}) {
    Decode with(spec, n, seed + 1);
    const TestRows rows(std::vector<int>(std::size_t(n), 1), with.positions);
    check_gates(with, heads, rows.step, type, name);
  }
}

}  // namespace

void test_gated_delta() {
  run({2, 4, 128, 128, 4, false},
      {{1, 1}, {1, 1}, {3, 1}, {70, 130}, {1, 1}, {64, 200}, {2, 1}, {1, 1}}, 1);
  run({2, 4, 128, 128, 4, true}, {{5}, {1}, {300}, {1}, {1}, {1}, {1}, {7}}, 2);
  run({2, 6, 64, 64, 4, false}, {{9, 1, 2}, {1, 1, 1}, {100, 64, 65}, {1, 1, 1}}, 3);
  run({1, 3, 48, 80, 3, true}, {{33}, {1}, {1}, {20}}, 4);
  run({1, 1, 16, 16, 2, true}, {{1}, {1}, {5}}, 5);
  // One, three and eight value heads a key head; sequences that begin anywhere in the step, go on
  // from a state and end anywhere in a chunk; a convolution of another width.
  run({2, 2, 128, 128, 4, true}, {{2, 33, 1, 64}, {95, 1, 128, 32}, {1, 40, 3, 2}}, 6);
  run({1, 3, 128, 128, 4, false}, {{37, 200}, {63, 2}, {1, 1}, {34, 65}}, 7);
  run({2, 6, 128, 128, 4, true}, {{130}, {1}, {47}}, 8);
  run({1, 8, 64, 64, 4, true}, {{50, 3}, {1, 80}}, 9);
  run({2, 4, 128, 128, 3, false}, {{35, 70}, {66, 1}, {1, 1}}, 10);
  // As on a GPU whose blocks get 99 KB of shared memory (compute capability 8.6 and 8.9), or 160.
  for (const std::size_t bytes : {99 * 1024, 160 * 1024}) {
    pretended_shared() = bytes;
    run({2, 4, 128, 128, 4, false}, {{70, 130}, {1, 1}, {64, 200}}, 20);
    run({1, 3, 64, 64, 4, true}, {{33, 150}}, 21);
  }
  pretended_shared() = 0;
  // By whole heads, and where a block has too little shared memory for it.
  pretended_multiprocessors() = 1;
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{99 * 1024}}) {
    pretended_shared() = bytes;
    run({2, 4, 128, 128, 4, false}, {{1, 1, 1}, {1, 1, 1}, {2, 1, 1}, {1, 1, 1}}, 30);
    run({2, 6, 128, 128, 4, true}, {{1, 1}, {1, 1}, {1, 1}, {1, 1}, {1, 1}}, 31);
    run({1, 3, 128, 128, 3, true}, {{1, 1}, {1, 1}}, 32);
  }
  pretended_shared() = 0;
  pretended_multiprocessors() = 0;
  for (const int rows : {2, 5, 8}) {
    run_heads({2, 4, 128, 128, 4, false}, rows, 40);
    run_heads({2, 6, 128, 128, 4, true}, rows, 41);
  }
  run_long(400, 52);
  run_rows({2, 4, 128, 128, 4, false}, 5, 50);
  run_rows({1, 3, 48, 80, 4, true}, kLeastChunkedRows - 1, 51);
  run_heads({1, 3, 128, 128, 4, true}, 3, 42);    // half a super-block at the end
  run_heads({2, 4, 128, 128, 4, false}, 11, 43);  // more rows than are rounded
}

}  // namespace tessera::gpu::bench
