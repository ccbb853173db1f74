// The FFN of several rows as one kernel against its two kernels: the same bits, for every type of
// matrix, rows that share experts and rows that do not, layer after layer and step after step.
#include <cstring>
#include <memory>

#include "device/gpu/kernels/run.h"
#include "harness.h"

namespace tessera::gpu::bench {
namespace {

constexpr int kEmbd = 2048, kExperts = 256, kUsed = 8, kFf = 512, kDistinct = 16;

// `six`: which of Q4_K and Q6_K each matrix is, bit i that of matrix i. `few`: of all logits those of
// so many experts are far above the others, so that rows choose the same ones.
struct TestLayer {
  TestLayer(unsigned six, int few, std::uint64_t seed)
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
    norms = DeviceArray<float>(random.normals(2 * kEmbd));
    if (few == 0) return;
    // The same row for all experts but a few, which have it several times over.
    std::vector<float> row = random.normals(kEmbd), all;
    for (int e = 0; e < kExperts; ++e)
      for (const float x : row) all.push_back(e % (kExperts / few) == 0 ? x * float(e + 2) : x);
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
  DeviceArray<float> norms;
};

struct Outputs {
  explicit Outputs(int rows)
      : hidden(std::size_t(rows) * kEmbd), weights(std::size_t(rows) * kUsed),
        logits(std::size_t(rows) * kExperts), ids(std::size_t(rows) * kUsed) {}
  DeviceArray<float> hidden, weights, logits;
  DeviceArray<std::int32_t> ids;
};

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

void run(std::byte* passed, const std::vector<unsigned>& six, int few, int rows,
         std::uint64_t seed) {
  std::vector<std::unique_ptr<TestLayer>> layers;
  for (const unsigned bits : six)
    layers.push_back(std::make_unique<TestLayer>(bits, few, ++seed));
  Random random(seed);
  const std::string name = "together, " + std::to_string(rows) + " rows, few " +
                           std::to_string(few) + ", seed " + std::to_string(seed) + ": ";
  for (int step = 0; step < 3; ++step) {
    const auto hidden = random.normals(std::size_t(rows) * kEmbd, step == 1 ? 30.0f : 1.0f);
    Outputs apart(rows), together(rows);
    Runner runner(ffn_workspace(args_of(*layers[0], apart, rows, nullptr)) + 256);
    for (Outputs* out : {&apart, &together}) {
      out->hidden.put(hidden);
      out->ids.poison();
      runner.fresh();
      for (const auto& l : layers)
        GPU_OK(ffn_all(runner.launch,
                       args_of(*l, *out, rows, out == &together ? passed : nullptr)));
      runner.sync();
    }
    const std::string at = name + "step " + std::to_string(step) + " ";
    check(at + "residual", same(apart.hidden.get(), together.hidden.get()));
    check(at + "experts", same(apart.ids.get(), together.ids.get()));
    check(at + "weights", same(apart.weights.get(), together.weights.get()));
    bool finite = true;
    for (const float x : together.hidden.get()) finite = finite && std::isfinite(x);
    check(at + "finite", finite);
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
    run(passed.data(), {0x00, 0x24, 0x20}, 0, rows, 10u + unsigned(rows));
    run(passed.data(), {0x04, 0x20}, 8, rows, 30u + unsigned(rows));
    run(passed.data(), {0x00, 0x3f}, 16, rows, 50u + unsigned(rows));
  }
  for (unsigned i = 0; i < 6; ++i) run(passed.data(), {1u << i, 63u - (1u << i)}, 0, 8, 70u + i);
}

}  // namespace tessera::gpu::bench
