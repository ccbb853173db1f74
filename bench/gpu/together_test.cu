// The FFN of several rows as one kernel, with the projections of the layer behind, and with its
// router in the kernel of the projection ahead, against the kernels of their own: the same bits,
// for every type of matrix, rows that share experts and rows that do not, layer after layer and
// step after step.
#include <algorithm>
#include <cstring>
#include <memory>

#include "device/gpu/kernels/project_decode.cuh"
#include "device/gpu/kernels/run.h"
#include "device/gpu/kernels/run_plan.h"
#include "harness.h"

namespace tessera::gpu::bench {
namespace {

constexpr int kEmbd = 2048, kExperts = 256, kUsed = 8, kFf = 512, kDistinct = 16;
constexpr int kHeads = 4096;  // columns of what a mixer leaves

// What of a layer goes together besides the FFN.
struct Besides {
  bool projections, router;
};

enum class Routing {
  any,
  // All experts' rows are the same one, but for eight or sixteen that have it several times over: a
  // token whose logits are above zero chooses among those, another one the lowest ids, since all
  // others are equal.
  eight,
  sixteen,
  wild,  // some logits are infinite or no numbers
};
int few_of(Routing routing) {
  return routing == Routing::eight ? 8 : routing == Routing::sixteen ? 16 : 0;
}

// Rows of the matrices of the layer behind: as a delta net's and as attention's, and few; zeros: no
// matrix. The last one is plain.
constexpr int kNext[3][4] = {{8192, 4096, 0, 32}, {8192, 512, 512, 0}, {96, 32, 0, 2}};

// `six`: which of Q4_K and Q6_K each matrix is, bit i that of matrix i; then three of `next`, then
// the projection out of a mixer.
struct TestLayer {
  TestLayer(unsigned six, Routing routing, std::uint64_t seed)
      : random(seed), router(BlockType::F32, kExperts, kEmbd, seed, false) {
    const auto type = [&](int i) { return six >> i & 1 ? BlockType::Q6_K : BlockType::Q4_K; };
    const auto matrix = [&](BlockType t, int rows, int cols) {
      return std::make_unique<TestMatrix>(t, rows, cols, random.next(), false);
    };
    for (int i = 0; i < 3; ++i)
      dense[i] = matrix(type(i), i < 2 ? kFf : kEmbd, i < 2 ? kEmbd : kFf);
    shape = expert_shape(type(3), type(4), type(5), kEmbd, kFf);
    experts = DeviceArray<std::byte>(static_cast<std::size_t>(shape.bytes) * kDistinct);
    for (int e = 0; e < kDistinct; ++e) {
      std::byte* at = experts.data() + e * shape.bytes;
      put(at, *matrix(shape.gate.type, kFf, kEmbd));
      put(at + shape.up_offset, *matrix(shape.up.type, kFf, kEmbd));
      put(at + shape.down_offset, *matrix(shape.down.type, kEmbd, kFf));
    }
    std::vector<const std::byte*> pointers;
    for (int e = 0; e < kExperts; ++e)
      pointers.push_back(experts.data() + e * 7 % kDistinct * shape.bytes);
    table = DeviceArray<const std::byte*>(pointers);
    norms = DeviceArray<float>(random.normals(3 * kEmbd));
    out = matrix(type(9), kEmbd, kHeads);
    gated = seed % 2 == 0;
    for (int i = 0; i < 4; ++i)
      if (const int rows = kNext[seed % 3][i]; rows > 0)
        next.push_back(matrix(i == 3 ? BlockType::F32 : type(6 + i), rows, kEmbd));
    if (routing == Routing::any) return;
    // Logits of the size of 0.01 e: weights that differ, none of them zero.
    const std::vector<float> row = random.normals(kEmbd, 2e-4f);
    const int few = few_of(routing);
    std::vector<float> all;
    for (int e = 0; e < kExperts; ++e)
      for (const float x : row)
        all.push_back(few > 0 ? (e % (kExperts / few) == 0 ? x * float(e + 2) : x)
                      : e % 5 == 3 ? x * 3e38f * 1e6f  // infinite
                      : e % 7 == 2 ? x * 3e38f
                                   : x * float(e));
    GPU_OK(TESSERA_GPU_API(Memcpy)(router.planes.data(), all.data(), all.size() * 4,
                                   TESSERA_GPU_API(MemcpyHostToDevice)));
  }
  static void put(std::byte* to, const TestMatrix& m) {
    GPU_OK(TESSERA_GPU_API(Memcpy)(to, m.planes.data(), m.planes.size(),
                                   TESSERA_GPU_API(MemcpyDeviceToDevice)));
  }

  Random random;
  TestMatrix router;
  std::unique_ptr<TestMatrix> dense[3];
  ExpertShape shape;
  DeviceArray<std::byte> experts;
  DeviceArray<const std::byte*> table;
  DeviceArray<float> norms;  // of the router, the scalar gate, of the layer behind
  std::vector<std::unique_ptr<TestMatrix>> next;
  std::unique_ptr<TestMatrix> out;
  bool gated;  // as a delta net's heads are; else as attention's
};

struct Outputs {
  explicit Outputs(int rows)
      : hidden(std::size_t(rows) * kEmbd), weights(std::size_t(rows) * kUsed),
        logits(std::size_t(rows) * kExperts), projected(std::size_t(rows) * kProjected),
        heads(std::size_t(rows) * kHeads), gate(std::size_t(rows) * kHeads),
        ids(std::size_t(rows) * kUsed) {}
  static constexpr int kProjected = 8192 + 4096 + 512;
  DeviceArray<float> hidden, weights, logits, projected, heads, gate;
  DeviceArray<std::int32_t> ids;
};

ProjectArgs next_args(const TestLayer& l, Outputs& out, float* to, int rows) {
  ProjectArgs p{.input = {.kind = InputKind::rms_norm,
                          .x = out.hidden.data(),
                          .stride = kEmbd,
                          .cols = kEmbd,
                          .weight = l.norms.data() + 2 * kEmbd,
                          .eps = 1e-5f},
                .rows = rows};
  for (const auto& m : l.next) {
    p.outputs[std::size_t(p.n_outputs++)] = {m->matrix, to, Outputs::kProjected, false};
    to += m->matrix.rows;
  }
  return p;
}

ProjectArgs out_args(const TestLayer& l, Outputs& out, int rows) {
  Input in{.kind = InputKind::plain, .x = out.heads.data(), .stride = kHeads, .cols = kHeads};
  if (l.gated) {
    in.kind = InputKind::gated_rms;
    in.weight = l.norms.data(), in.eps = 1e-6f;
    in.gate = out.gate.data(), in.gate_stride = kHeads, in.gate_open = true, in.head_dim = 128;
  }
  return {.input = in,
          .rows = rows,
          .n_outputs = 1,
          .outputs = {{{l.out->matrix, out.hidden.data(), kEmbd, true}}}};
}

FfnArgs args_of(const TestLayer& l, Outputs& out, int rows, std::byte* passed) {
  FfnArgs f{.rows = rows,
            .n_embd = kEmbd,
            .eps = 1e-6f,
            .hidden = out.hidden.data(),
            .norm = l.norms.data()};
  f.passed = passed;
  f.dense = {.gate = l.dense[0]->matrix,
             .up = l.dense[1]->matrix,
             .down = l.dense[2]->matrix,
             .scalar_gate = l.norms.data() + kEmbd};
  f.moe = {.n_expert = kExperts,
           .n_used = kUsed,
           .n_ff = kFf,
           .router_weight = l.router.matrix,
           .shape = l.shape,
           .table = l.table.data(),
           .ids = out.ids.data(),
           .weights = out.weights.data(),
           .logits = out.logits.data()};
  f.moe.router.normalize = rows % 2 == 0;
  f.moe.router.weight_scale = rows % 3 == 0 ? 2.5f : 1.0f;
  return f;
}

template <typename T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// The launches that have passed values.
std::uint32_t launches(const std::byte* passed) {
  std::uint32_t n = 0;
  GPU_OK(TESSERA_GPU_API(Memcpy)(&n, passed + run::passed_layout().rows_run, sizeof n,
                                 TESSERA_GPU_API(MemcpyDeviceToHost)));
  return n;
}

// What a step begins with, to `to`.
void begin(const Launch& launch, const TestLayer& l, Outputs& out, float* to, int rows,
           std::byte* passed) {
  const FfnArgs ffn = args_of(l, out, rows, passed);
  const ProjectArgs in = next_args(l, out, to, rows), left = plain_outputs(in);
  if (passed == nullptr) {
    GPU_OK(project(launch, in));
    return;
  }
  GPU_OK(project_first(launch, ffn, in));
  if (left.n_outputs > 0) GPU_OK(project(launch, left));
}

void layer(const Launch& launch, const TestLayer& l, Outputs& out, int rows, std::byte* passed,
           Besides besides) {
  FfnArgs ffn = args_of(l, out, rows, passed);
  const ProjectArgs in = next_args(l, out, out.projected.data(), rows), left = plain_outputs(in);
  if (besides.router) {
    ProjectArgs mixed = out_args(l, out, rows);
    // As where the mixer leaves its rows rounded, in some layers of each number of rows: what they
    // were made of is not to be read any more.
    if (passed != nullptr && l.gated == (rows % 2 == 0)) {
      GPU_OK(round_rows(launch, mixed.input, rows, static_cast<std::byte*>(launch.workspace)));
      mixed.input.rounded = true;
      mixed.input.x = out.projected.data();
    }
    ffn.routed = routes(mixed, ffn);
    check("together: routes", ffn.routed == (passed != nullptr));
    GPU_OK(ffn.routed ? project_and_route(launch, mixed, ffn) : project(launch, mixed));
  }
  if (passed == nullptr || !besides.projections) {
    GPU_OK(ffn_all(launch, ffn));
    if (besides.projections) GPU_OK(project(launch, in));
    return;
  }
  check("together: leads", leads_to(ffn, in));
  GPU_OK(ffn_and_next(launch, ffn, in));
  if (left.n_outputs > 0) GPU_OK(project(launch, left));
}

void run(std::byte* passed, const std::vector<unsigned>& six, Routing routing, int rows,
         std::uint64_t seed, Besides besides = {}) {
  std::vector<std::unique_ptr<TestLayer>> layers;
  for (const unsigned bits : six)
    layers.push_back(std::make_unique<TestLayer>(bits, routing, ++seed));
  Random random(seed);
  const std::string name = "together, " + std::to_string(rows) + " rows, routing " +
                           std::to_string(int(routing)) + ", seed " + std::to_string(seed) + ": ";
  for (int step = 0; step < 3; ++step) {
    const auto hidden = random.normals(std::size_t(rows) * kEmbd, step == 1 ? 30.0f : 1.0f);
    Outputs apart(rows), together(rows);
    const auto heads = random.normals(std::size_t(rows) * kHeads);
    const auto gate = random.normals(std::size_t(rows) * kHeads);
    Runner runner(std::max({ffn_workspace(args_of(*layers[0], apart, rows, nullptr)),
                            project_workspace(rows, kEmbd, Outputs::kProjected),
                            project_workspace(rows, kHeads, kEmbd)}) +
                  256);
    const std::uint32_t before = launches(passed);
    // What each layer would begin a step with.
    const std::size_t each = std::size_t(rows) * Outputs::kProjected;
    DeviceArray<float> first_apart(each * layers.size()), first_together(each * layers.size());
    for (Outputs* out : {&apart, &together}) {
      out->hidden.put(hidden), out->heads.put(heads), out->gate.put(gate);
      out->ids.poison(), out->projected.poison();
      DeviceArray<float>& first = out == &together ? first_together : first_apart;
      first.poison();
      runner.fresh();
      std::byte* with = out == &together ? passed : nullptr;
      for (std::size_t i = 0; i < layers.size(); ++i) {
        if (besides.projections)
          begin(runner.launch, *layers[i], *out, first.data() + i * each, rows, with);
        layer(runner.launch, *layers[i], *out, rows, with, besides);
      }
      runner.sync();
    }
    const std::string at = name + "step " + std::to_string(step) + " ";
    check(at + "launches", launches(passed) == before + std::uint32_t(layers.size()));
    check(at + "residual", same(apart.hidden.get(), together.hidden.get()));
    if (besides.projections) {
      check(at + "first projections", same(first_apart.get(), first_together.get()));
      check(at + "projections", same(apart.projected.get(), together.projected.get()));
    }
    check(at + "experts", same(apart.ids.get(), together.ids.get()));
    check(at + "weights", same(apart.weights.get(), together.weights.get()));
    bool finite = true;
    for (const float x : together.hidden.get()) finite = finite && std::isfinite(x);
    check(at + "finite", finite || routing == Routing::wild);
  }
}

}  // namespace

void test_together() {
  if (!has_runs(Runner(256).launch)) {
    std::printf("together: not on this GPU\n");
    return;
  }
  DeviceArray<std::byte> passed(run_passed_bytes(1));
  passed.zero();
  for (int rows = 2; rows <= kDecodeRows; ++rows) {
    const auto seed = [&](unsigned from) { return from + unsigned(rows); };
    run(passed.data(), {0x00, 0x24, 0x20}, Routing::any, rows, seed(10));
    run(passed.data(), {0x04, 0x20}, Routing::eight, rows, seed(30));
    run(passed.data(), {0x00, 0x3f}, Routing::sixteen, rows, seed(50));
    run(passed.data(), {0x20, 0x00}, Routing::wild, rows, seed(70));
  }
  // Each shape behind every layer, every type; wild values pass too.
  for (int rows = 2; rows <= kDecodeRows; ++rows) {
    const std::uint64_t seed = 110u + unsigned(rows);
    run(passed.data(), {0x000, 0x024, 0x1ff, 0x1c0}, Routing::any, rows, seed, {true, false});
    run(passed.data(), {0x040, 0x0a0, 0x104}, Routing::wild, rows, seed + 20, {true, false});
  }
  // The router with the projection ahead, of both types.
  for (int rows = 2; rows <= kDecodeRows; ++rows)
    for (const bool projections : {true, false}) {
      const std::uint64_t seed = 150u + unsigned(rows);
      run(passed.data(), {0x000, 0x224, 0x200}, Routing::any, rows, seed, {projections, true});
      run(passed.data(), {0x200, 0x000}, Routing::wild, rows, seed + 20, {projections, true});
    }
  for (unsigned i = 0; i < 6; ++i)
    run(passed.data(), {1u << i, 63u - (1u << i)}, Routing::any, 8, 90u + i);
  const std::uint32_t late = 0xfffffff0u;  // the last numbers before they come again
  GPU_OK(TESSERA_GPU_API(Memcpy)(passed.data() + run::passed_layout().rows_run, &late, sizeof late,
                                 TESSERA_GPU_API(MemcpyHostToDevice)));
  run(passed.data(), {0x00, 0x20, 0x00}, Routing::any, 8, 100, {true, true});
}

}  // namespace tessera::gpu::bench
