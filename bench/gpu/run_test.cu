// A run of layers as one kernel against the same layers by their own kernels: the same bits, for
// every type of matrix, both orders of value heads, attention at any length, sequences anywhere,
// run after run.
#include <cstring>
#include <memory>

#include "device/gpu/kernels/handover.h"
#include "device/gpu/kernels/run.h"
#include "device/gpu/kernels/run_plan.h"
#include "harness.h"

namespace tessera::gpu::bench {
namespace {

constexpr int kEmbd = 2048, kExperts = 256, kUsed = 8, kFf = 512, kDistinct = 16;

// Which of Q4_K and Q6_K each matrix is: bit i that of matrix i. kAttends: attention.
constexpr unsigned kAttends = 1u << 16;
constexpr KvGeometry kKv{2, 256, 256, KvFormat::f16};

// The pages of a sequence, in no order.
struct Pages {
  explicit Pages(int context) {
    const int n = (context + kPageTokens - 1) / kPageTokens;
    std::vector<std::int32_t> ids;
    for (int i = 0; i < n; ++i) ids.push_back((i * 7 + 3) % most(n));
    table = DeviceArray<std::int32_t>(ids);
    pages = most(n);
  }
  // Steps of 7 never meet.
  static int most(int n) { return n % 7 == 0 ? n + 1 : n; }
  static std::int64_t stride() { return kv_layer_page_bytes(kKv) + 512; }
  DeviceArray<std::int32_t> table;
  int pages = 0;
};

struct TestLayer {
  TestLayer(const GatedDeltaSpec& spec, unsigned six, std::int64_t slot_floats, int slots,
            const Pages& pages, std::uint64_t seed)
      : spec(spec), attends((six & kAttends) != 0), random(seed) {
    const auto type = [&](int i) { return six >> i & 1 ? BlockType::Q6_K : BlockType::Q4_K; };
    const auto matrix = [&](BlockType t, int rows, int cols) -> Matrix {
      matrices.push_back(std::make_unique<TestMatrix>(t, rows, cols, random.next(), false));
      return matrices.back()->matrix;
    };
    if (attends) {
      in[0] = matrix(type(0), 16 * 512, kEmbd);
      in[1] = matrix(type(1), 512, kEmbd);
      in[2] = matrix(type(9), 512, kEmbd);
    } else {
      in[0] = matrix(type(0), spec.conv_channels(), kEmbd);
      in[1] = matrix(type(1), spec.value_width(), kEmbd);
      in[2] = matrix(BlockType::F32, spec.n_value_head, kEmbd);
      in[3] = matrix(BlockType::F32, spec.n_value_head, kEmbd);
    }
    out = matrix(type(2), kEmbd, spec.value_width());
    router = matrix(BlockType::F32, kExperts, kEmbd);
    dense[0] = matrix(type(3), kFf, kEmbd);
    dense[1] = matrix(type(4), kFf, kEmbd);
    dense[2] = matrix(type(5), kEmbd, kFf);
    shape = expert_shape(type(6), type(7), type(8), kEmbd, kFf);
    experts = DeviceArray<std::byte>(static_cast<std::size_t>(shape.bytes) * kDistinct);
    std::vector<const std::byte*> pointers;
    for (int e = 0; e < kExperts; ++e)
      pointers.push_back(experts.data() + e * 7 % kDistinct * shape.bytes);
    table = DeviceArray<const std::byte*>(pointers);
    for (int e = 0; e < kDistinct; ++e) {
      std::byte* at = experts.data() + e * shape.bytes;
      put(at, matrix(shape.gate.type, kFf, kEmbd));
      put(at + shape.up_offset, matrix(shape.up.type, kFf, kEmbd));
      put(at + shape.down_offset, matrix(shape.down.type, kEmbd, kFf));
      matrices.resize(matrices.size() - 3);
    }
    norms = DeviceArray<float>(random.normals(5 * kEmbd));
    taps = DeviceArray<float>(random.normals(std::size_t(4 * spec.conv_channels()), 0.5f));
    dt_bias = DeviceArray<float>(random.normals(std::size_t(spec.n_value_head)));
    std::vector<float> decays;
    for (int h = 0; h < spec.n_value_head; ++h) decays.push_back(-0.02f - random.uniform());
    a = DeviceArray<float>(decays);
    start = random.normals(static_cast<std::size_t>(slot_floats) * std::size_t(slots), 0.3f);
    state = DeviceArray<float>(start);
    if (!attends) return;
    const std::size_t bytes = static_cast<std::size_t>(pages.pages * Pages::stride());
    for (const float x : random.normals(bytes / 2)) kv.push_back(__float2half_rn(x));
    pool = DeviceArray<__half>(kv);
  }
  static void put(std::byte* to, const Matrix& m) {
    GPU_OK(TESSERA_GPU_API(Memcpy)(
        to, m.data, static_cast<std::size_t>(plane_layout(m.type, m.rows, m.cols).bytes),
        TESSERA_GPU_API(MemcpyDeviceToDevice)));
  }

  GatedDeltaSpec spec;
  bool attends;
  Random random;
  std::vector<std::unique_ptr<TestMatrix>> matrices;
  Matrix in[4], out, router, dense[3];
  ExpertShape shape;
  DeviceArray<std::byte> experts;
  DeviceArray<const std::byte*> table;
  DeviceArray<float> norms, taps, dt_bias, a, state;
  std::vector<float> start;
  std::vector<__half> kv;
  DeviceArray<__half> pool;
};

// What the layers' own kernels write.
struct Buffers {
  DeviceArray<float> hidden{kEmbd}, wide{8192}, side{4096}, mixed{4096}, heads{64},
      dense_out{kEmbd}, pair_out{kUsed * kEmbd}, logits{kExperts}, weights{kUsed}, keys{512},
      values{512}, cos{32}, sin{32};
  DeviceArray<std::int32_t> ids{kUsed};
};

void attention_calls(const TestLayer& l, const StepRows& step, const Pages& pages, Buffers& b,
                     RunLayer& r) {
  const float* norms = l.norms.data();
  r.in.n_outputs = 3;
  r.in.outputs = {{{l.in[0], b.wide.data(), 8192, false},
                   {l.in[1], b.keys.data(), 512, false},
                   {l.in[2], b.values.data(), 512, false}}};
  r.attention = {.step = step,
                 .kv = kKv,
                 .n_head = 16,
                 .q = b.wide.data(),
                 .q_stride = 8192,
                 .q_head_stride = 512,
                 .k = b.keys.data(),
                 .v = b.values.data(),
                 .k_stride = 512,
                 .v_stride = 512,
                 .q_norm = norms + 4 * kEmbd,
                 .k_norm = norms + 4 * kEmbd + 256,
                 .eps = 1e-6f,
                 .n_rot = 64,
                 .cos = b.cos.data(),
                 .sin = b.sin.data(),
                 .scale = 0.0625f,
                 .gate = OutputGate::sigmoid_in_query,
                 .pool = reinterpret_cast<std::byte*>(l.pool.data()),
                 .page_stride = Pages::stride(),
                 .layer_offset = 512,
                 .page_table = pages.table.data(),
                 .table_stride = int(pages.table.size()),
                 .max_context = int(pages.table.size()) * kPageTokens,
                 .out = b.mixed.data(),
                 .out_stride = 4096};
}
void delta_calls(const TestLayer& l, const StepRows& step, std::int64_t slot_floats, Buffers& b,
                 RunLayer& r) {
  r.in.n_outputs = 4;
  r.in.outputs = {{{l.in[0], b.wide.data(), l.spec.conv_channels(), false},
                   {l.in[1], b.side.data(), 4096, false},
                   {l.in[2], b.heads.data(), 32, false},
                   {l.in[3], b.heads.data() + 32, 32, false}}};
  r.delta = {.step = step,
             .spec = l.spec,
             .qkv = b.wide.data(),
             .alpha = b.heads.data(),
             .beta_logits = b.heads.data() + 32,
             .taps = l.taps.data(),
             .dt_bias = l.dt_bias.data(),
             .a = l.a.data(),
             .state = l.state.data(),
             .slot_stride = slot_floats,
             .out = b.mixed.data(),
             .gate = b.side.data()};
  Input& mixed = r.out.input;
  mixed.kind = InputKind::gated_rms;
  mixed.weight = l.norms.data() + kEmbd;
  mixed.eps = 1e-5f;
  mixed.gate = b.side.data();
  mixed.gate_stride = 4096;
  mixed.gate_open = opens_gate(l.spec, step);
  mixed.head_dim = 128;
}
RunLayer calls_of(const TestLayer& l, const StepRows& step, std::int64_t slot_floats,
                  const Pages& pages, Buffers& b, float weight_scale) {
  const float* norms = l.norms.data();
  RunLayer r;
  r.in = {.input = {.kind = InputKind::rms_norm,
                    .x = b.hidden.data(),
                    .stride = kEmbd,
                    .cols = kEmbd,
                    .weight = norms,
                    .eps = 1e-6f},
          .rows = 1};
  r.out = {.input = {.kind = InputKind::plain, .x = b.mixed.data(), .stride = 4096, .cols = 4096},
           .rows = 1,
           .n_outputs = 1,
           .outputs = {{{l.out, b.hidden.data(), kEmbd, true}}}};
  if (l.attends)
    attention_calls(l, step, pages, b, r);
  else
    delta_calls(l, step, slot_floats, b, r);
  r.ffn = {.rows = 1,
           .n_embd = kEmbd,
           .eps = 1e-6f,
           .hidden = b.hidden.data(),
           .norm = norms + 2 * kEmbd};
  r.ffn.dense = {
      .gate = l.dense[0], .up = l.dense[1], .down = l.dense[2], .scalar_gate = norms + 3 * kEmbd};
  r.ffn.moe = {.n_expert = kExperts,
               .n_used = kUsed,
               .n_ff = kFf,
               .router_weight = l.router,
               .shape = l.shape,
               .table = l.table.data(),
               .ids = b.ids.data(),
               .weights = b.weights.data(),
               .logits = b.logits.data()};
  r.ffn.moe.router.weight_scale = weight_scale;
  r.ffn.moe.router.normalize = weight_scale == 1.0f;
  r.ffn.dense_out = b.dense_out.data();
  r.ffn.pair_out = b.pair_out.data();
  return r;
}

template <typename T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// The first half of the layers, which hands the row to the second.
void run_in_two(Runner& runner, const RunArgs& all, unsigned number) {
  static DeviceArray<std::byte> handed(handover_bytes(kEmbd));
  DeviceArray<float> elsewhere{kEmbd};  // NaN: the row comes by the handover alone
  RunArgs first = all, second = all;
  first.n_layers /= 2;
  first.handed = handed.data();
  first.number = second.number = number;
  second.most_ns = 10'000'000'000;
  second.plans += static_cast<std::size_t>(first.n_layers) * run_layer_bytes();
  second.n_layers -= first.n_layers;
  second.taken = handed.data();
  second.hidden = elsewhere.data();
  GPU_OK(run_layers(runner.launch, first));
  GPU_OK(run_layers(runner.launch, second));
  runner.sync();
  GPU_OK(TESSERA_GPU_API(Memcpy)(all.hidden, elsewhere.data(), kEmbd * sizeof(float),
                                 TESSERA_GPU_API(MemcpyDeviceToDevice)));
}

// `steps` tokens of a sequence in `slot` of three, through n layers, each way. `passed` is of runs
// before.
void run(DeviceArray<std::byte>& passed, const GatedDeltaSpec& spec,
         const std::vector<unsigned>& six, int slot, int position, int steps, float weight_scale,
         std::uint64_t seed) {
  const std::int64_t slot_floats = delta_state_floats(spec) + 64;
  const int slots = 3;
  const Pages pages(position + steps);
  std::vector<std::unique_ptr<TestLayer>> layers;
  for (const unsigned bits : six)
    layers.push_back(std::make_unique<TestLayer>(spec, bits, slot_floats, slots, pages, ++seed));
  Random random(seed);
  Runner runner(std::size_t(64) << 20);
  const std::string name =
      "run of " + std::to_string(six.size()) + ", seed " + std::to_string(seed) + ", ";
  std::vector<std::vector<float>> wanted;  // by step: the residual and all states
  std::vector<std::vector<std::int32_t>> chosen;
  std::vector<std::vector<float>> weights;
  for (const bool as_run : {false, true}) {
    for (const auto& l : layers) {
      l->state.put(l->start);
      if (l->attends) l->pool.put(l->kv);
    }
    Random tokens(seed + 1);
    for (int step = 0; step < steps; ++step) {
      TestRows rows({1}, {position + step});
      Sequence sequence{0, 1, position + step, slot};
      GPU_OK(TESSERA_GPU_API(Memcpy)(rows.sequences.data(), &sequence, sizeof sequence,
                                     TESSERA_GPU_API(MemcpyHostToDevice)));
      Buffers b;
      b.hidden.put(tokens.normals(kEmbd, step % 2 == 0 ? 1.0f : 30.0f));
      std::vector<float> cos, sin;
      for (int i = 0; i < 32; ++i) {
        const float angle = float(position + step) * std::pow(1e-4f, float(i) / 32.0f);
        cos.push_back(std::cos(angle)), sin.push_back(std::sin(angle));
      }
      b.cos.put(cos), b.sin.put(sin);
      std::vector<std::byte> host(run_layer_bytes() * layers.size());
      runner.fresh();
      for (std::size_t i = 0; i < layers.size(); ++i) {
        const RunLayer calls = calls_of(*layers[i], rows.step, slot_floats, pages, b, weight_scale);
        if (as_run) {
          check(name + "fits", fits_run(calls));
          write_run_layer(calls, host.data() + i * run_layer_bytes());
          continue;
        }
        GPU_OK(project(runner.launch, calls.in));
        GPU_OK(layers[i]->attends ? attention(runner.launch, calls.attention)
                                  : gated_delta(runner.launch, calls.delta));
        GPU_OK(project(runner.launch, calls.out));
        GPU_OK(ffn_all(runner.launch, calls.ffn));
      }
      if (as_run) {
        DeviceArray<std::byte> plans(host);
        GPU_OK(TESSERA_GPU_API(DeviceSynchronize)());
        RunArgs args{.plans = plans.data(),
                     .n_layers = int(layers.size()),
                     .hidden = b.hidden.data(),
                     .passed = passed.data(),
                     .sequences = rows.sequences.data()};
        if (step % 2 != 0 && layers.size() > 1) {
          run_in_two(runner, args, unsigned(step));
        } else {
          GPU_OK(run_layers(runner.launch, args));
        }
        runner.sync();
      }
      runner.sync();
      std::vector<float> got = b.hidden.get();
      for (const auto& l : layers) {
        const auto state = l->state.get();
        got.insert(got.end(), state.begin(), state.end());
        for (const __half x : l->pool.get()) got.push_back(__half2float(x));
      }
      if (!as_run) {
        wanted.push_back(got), chosen.push_back(b.ids.get()), weights.push_back(b.weights.get());
        continue;
      }
      const std::string at = name + "step " + std::to_string(step) + ": ";
      check(at + "residual and states", same(got, wanted[std::size_t(step)]));
      check(at + "experts", same(b.ids.get(), chosen[std::size_t(step)]));
      check(at + "weights", same(b.weights.get(), weights[std::size_t(step)]));
      bool finite = true;
      for (int i = 0; i < kEmbd; ++i) finite = finite && std::isfinite(got[std::size_t(i)]);
      check(at + "finite", finite);
    }
  }
}

}  // namespace

void test_runs() {
  Runner runner(256);
  if (!has_runs(runner.launch)) {
    std::printf("runs: not on this GPU\n");
    return;
  }
  // One for all, as in a device; the last runs before their numbers come again.
  DeviceArray<std::byte> passed(run_passed_bytes(40002));
  passed.zero();
  const GatedDeltaSpec alternating{16, 32, 128, 128, 4, false}, grouped{16, 32, 128, 128, 4, true},
      few_keys{4, 32, 128, 128, 4, false};
  run(passed, alternating, {0x000, 0x1ff, 0x101}, 0, 0, 6, 1.0f, 1);
  run(passed, grouped, {0x0aa, 0x155}, 2, 1021, 5, 2.5f, 10);
  run(passed, few_keys, {0x120}, 1, 7, 4, 1.0f, 20);
  run(passed, alternating, {0, 1, 2, 4, 8, 16, 32, 64, 128, 256}, 1, 2, 4, 1.0f, 30);
  // Attention: from the first token on, around the end of a page, of a span and of what is added up
  // at once, more spans than blocks.
  run(passed, alternating, {kAttends | 0x000, kAttends | 0x3ff}, 0, 0, 3, 1.0f, 50);
  run(passed, alternating, {0, kAttends | 0x201, 0x1ff, kAttends | 2}, 1, 62, 4, 1.0f, 60);
  run(passed, alternating, {kAttends | 0x155, 0}, 1, 254, 4, 1.0f, 70);
  for (const int end : {4096, 8192, 16384})  // where spans grow, and where there are more than 64
    run(passed, alternating, {kAttends}, 0, end - 2, 4, 1.0f, unsigned(end));
  run(passed, alternating, {0, kAttends, kAttends | 1}, 2, 40000, 2, 1.0f, 90);
  const unsigned late = 0x03fffffdu;
  GPU_OK(TESSERA_GPU_API(Memcpy)(passed.data() + run::passed_layout().run, &late, sizeof late,
                                 TESSERA_GPU_API(MemcpyHostToDevice)));
  run(passed, alternating, {0, kAttends, 0x1ff}, 0, 300, 6, 1.0f, 100);
}

}  // namespace tessera::gpu::bench
