// The FFN block against scalar arithmetic: with and without experts, every norm and gate, in one
// call and in parts, for few rows and many.
#include <cstring>

#include "device/gpu/kernels/sizes.h"
#include "harness.h"

namespace tessera::gpu::bench {
namespace {

struct Case {
  std::string name;
  int rows, n_embd, n_expert, n_used, n_ff, dense_ff;
  BlockType gate, up, down, dense;
  Activation activation;
  RouterSpec router;
  bool bias, expert_scale, own_norm, moe_post, scalar_gate, dense_post, post_norm, layer_scale;
};

std::vector<float> around_one(Random& random, int n) {
  std::vector<float> w = random.normals(std::size_t(n), 0.2f);
  for (float& x : w) x += 1;
  return w;
}

std::vector<double> branch(const float* x, const TestMatrix& gate, const TestMatrix& up,
                           const TestMatrix& down, Activation kind) {
  std::vector<float> h;
  for (int r = 0; r < gate.matrix.rows; ++r)
    h.push_back(float(activated(kind, dot(gate.row(r), x, gate.matrix.cols),
                                dot(up.row(r), x, gate.matrix.cols))));
  std::vector<double> out;
  for (int r = 0; r < down.matrix.rows; ++r)
    out.push_back(dot(down.row(r), h.data(), down.matrix.cols));
  return out;
}

void norm(std::vector<double>& x, const std::vector<float>& w) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] *= double(w[i]) / std::sqrt(sum / double(x.size()) + 1e-6);
}

// A row alone gives the same bits.
void check_alone(const std::string& name, FfnArgs args, const std::vector<float>& hidden,
                 const std::vector<float>& together, int row) {
  const std::size_t n = std::size_t(args.n_embd), at = std::size_t(row) * n;
  DeviceArray<float> alone(std::vector<float>(hidden.begin() + std::ptrdiff_t(at),
                                              hidden.begin() + std::ptrdiff_t(at + n)));
  args.rows = 1;
  args.hidden = alone.data();
  Runner runner(ffn_workspace(args) + 256);
  runner.fresh();
  GPU_OK(ffn_all(runner.launch, args));
  runner.sync();
  check(name + " row " + std::to_string(row) + " alone",
        std::memcmp(alone.get().data(), together.data() + at, n * sizeof(float)) == 0);
}

void run(const Case& c, std::uint64_t seed) {
  Random random(seed);
  const std::size_t n = std::size_t(c.n_embd);
  const std::vector<float> hidden = random.normals(std::size_t(c.rows) * n);
  const auto ffn_norm = around_one(random, c.n_embd), own = around_one(random, c.n_embd),
             moe_post = around_one(random, c.n_embd), dense_post = around_one(random, c.n_embd),
             post = around_one(random, c.n_embd), router_scale = around_one(random, c.n_embd);
  const auto scalar = random.normals(n, 1.0f / std::sqrt(float(n)));
  const auto bias = random.normals(std::size_t(c.n_expert + 1), 0.1f),
             factor = around_one(random, c.n_expert + 1);
  const std::vector<float> layer_scale = {0.7f};
  DeviceArray<float> dnorm(ffn_norm), down_(own), dmoe_post(moe_post), ddense_post(dense_post),
      dpost(post), drouter_scale(router_scale), dscalar(scalar), dbias(bias), dfactor(factor),
      dlayer(layer_scale);
  TestMatrix router(BlockType::F32, std::max(1, c.n_expert), c.n_embd, seed + 1000);
  const ExpertShape shape = expert_shape(c.gate, c.up, c.down, c.n_embd, std::max(32, c.n_ff));
  std::vector<TestMatrix> gates, ups, downs;
  std::vector<const std::byte*> pointers;
  DeviceArray<std::byte> arena(std::size_t(shape.bytes) * std::size_t(c.n_expert));
  for (int e = 0; e < c.n_expert; ++e) {
    gates.emplace_back(c.gate, c.n_ff, c.n_embd, seed * 100 + std::uint64_t(3 * e));
    ups.emplace_back(c.up, c.n_ff, c.n_embd, seed * 100 + std::uint64_t(3 * e + 1));
    downs.emplace_back(c.down, c.n_embd, c.n_ff, seed * 100 + std::uint64_t(3 * e + 2));
    std::byte* at = arena.data() + e * shape.bytes;
    const auto copy = [](std::byte* to, const TestMatrix& m) {
      GPU_OK(TESSERA_GPU_API(Memcpy)(to, m.planes.data(), m.planes.size(),
                                     TESSERA_GPU_API(MemcpyDeviceToDevice)));
    };
    copy(at, gates.back());
    copy(at + shape.up_offset, ups.back());
    copy(at + shape.down_offset, downs.back());
    pointers.push_back(at);
  }
  DeviceArray<const std::byte*> table(pointers);
  const int dense_rows = std::max(32, c.dense_ff);
  TestMatrix dgate(c.dense, dense_rows, c.n_embd, seed + 1),
      dup(c.dense, dense_rows, c.n_embd, seed + 2), ddown(c.dense, c.n_embd, dense_rows, seed + 3);
  const std::size_t pairs = std::size_t(c.rows) * std::size_t(std::max(1, c.n_used));
  DeviceArray<float> dhidden(hidden), weights(pairs),
      logits(std::size_t(c.rows) * std::size_t(std::max(1, c.n_expert))),
      dense_out(std::size_t(c.rows) * n), pair_out(pairs * n);
  DeviceArray<std::int32_t> ids(pairs);
  FfnArgs args{.rows = c.rows,
               .n_embd = c.n_embd,
               .eps = 1e-6f,
               .hidden = dhidden.data(),
               .norm = dnorm.data()};
  if (c.dense_ff > 0)
    args.dense = {.gate = dgate.matrix,
                  .up = dup.matrix,
                  .down = ddown.matrix,
                  .activation = c.activation,
                  .scalar_gate = c.scalar_gate ? dscalar.data() : nullptr,
                  .post_norm = c.dense_post ? ddense_post.data() : nullptr};
  if (c.n_expert > 0)
    args.moe = {.n_expert = c.n_expert,
                .n_used = c.n_used,
                .n_ff = c.n_ff,
                .activation = c.activation,
                .router = c.router,
                .router_weight = router.matrix,
                .router_scale = drouter_scale.data(),
                .router_bias = c.bias ? dbias.data() : nullptr,
                .expert_scale = c.expert_scale ? dfactor.data() : nullptr,
                .norm = c.own_norm ? down_.data() : nullptr,
                .post_norm = c.moe_post ? dmoe_post.data() : nullptr,
                .shape = shape,
                .table = table.data(),
                .ids = ids.data(),
                .weights = weights.data(),
                .logits = logits.data()};
  args.post_norm = c.post_norm ? dpost.data() : nullptr;
  args.layer_scale = c.layer_scale ? dlayer.data() : nullptr;
  args.dense_out = dense_out.data();
  args.pair_out = pair_out.data();

  std::vector<double> want(std::size_t(c.rows) * n);
  std::vector<float> want_weights(c.n_expert > 0 ? pairs : 0);
  std::vector<std::int32_t> want_ids(want_weights.size());
  in_parallel(c.rows, [&](int r) {
    const float* x = hidden.data() + std::size_t(r) * n;
    const std::vector<float> normed = rms_normed(x, ffn_norm.data(), 1e-6f, c.n_embd);
    const std::vector<float> expert_in =
        c.own_norm ? rms_normed(x, own.data(), 1e-6f, c.n_embd) : normed;
    std::vector<double> sum(n, 0.0);
    if (c.dense_ff > 0) {
      sum = branch(normed.data(), dgate, dup, ddown, c.activation);
      if (c.scalar_gate)
        for (double& v : sum) v *= sigmoid(dot(scalar.data(), normed.data(), c.n_embd));
      if (c.dense_post) norm(sum, dense_post);
    }
    if (c.n_expert > 0) {
      std::vector<float> router_in =
          c.router.own_input ? rms_normed(x, router_scale.data(), 1e-6f, c.n_embd) : expert_in;
      std::vector<double> p;
      double top = -1e300, total = 0;
      for (int e = 0; e < c.n_expert; ++e) {
        double l = dot(router.row(e), router_in.data(), c.n_embd) *
                   (c.router.own_input ? 1 / std::sqrt(double(c.n_embd)) : 1);
        if (c.router.logit_softcap > 0)
          l = double(c.router.logit_softcap) * std::tanh(l / double(c.router.logit_softcap));
        p.push_back(l);
        top = std::max(top, l);
      }
      for (double& v : p) {
        v = c.router.gating == Gating::softmax ? std::exp(v - top) : sigmoid(v);
        total += v;
      }
      if (c.router.gating == Gating::softmax)
        for (double& v : p) v /= total;
      std::vector<int> order;
      for (int e = 0; e < c.n_expert; ++e) order.push_back(e);
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        const auto score = [&](int e) {
          return p[std::size_t(e)] + (c.bias ? double(bias[std::size_t(e)]) : 0.0);
        };
        return score(a) > score(b);
      });
      double chosen = 0;
      for (int i = 0; i < c.n_used; ++i) chosen += p[std::size_t(order[std::size_t(i)])];
      std::vector<double> moe(n, 0.0);
      for (int i = 0; i < c.n_used; ++i) {
        const int e = order[std::size_t(i)];
        double w =
            p[std::size_t(e)] * double(c.router.weight_scale) / (c.router.normalize ? chosen : 1.0);
        if (c.expert_scale) w *= double(factor[std::size_t(e)]);
        const std::size_t pair = std::size_t(r * c.n_used + i);
        want_ids[pair] = e;
        want_weights[pair] = float(w);
        const auto y = branch(expert_in.data(), gates[std::size_t(e)], ups[std::size_t(e)],
                              downs[std::size_t(e)], c.activation);
        for (std::size_t k = 0; k < n; ++k) moe[k] += w * y[k];
      }
      if (c.moe_post) norm(moe, moe_post);
      for (std::size_t k = 0; k < n; ++k) sum[k] += moe[k];
    }
    if (c.post_norm) norm(sum, post);
    for (std::size_t k = 0; k < n; ++k)
      want[std::size_t(r) * n + k] = (double(x[k]) + sum[k]) * (c.layer_scale ? 0.7 : 1.0);
  });
  // What the block adds is compared, not the residual that it adds to.
  const auto added = [&](std::vector<float> got) {
    std::vector<float> out;
    for (std::size_t i = 0; i < want.size(); ++i)
      out.push_back(float(double(got[i]) - double(hidden[i]) * (c.layer_scale ? 0.7 : 1.0)));
    return out;
  };
  std::vector<double> want_added;
  for (std::size_t i = 0; i < want.size(); ++i)
    want_added.push_back(want[i] - double(hidden[i]) * (c.layer_scale ? 0.7 : 1.0));

  Runner runner(ffn_workspace(args) + 256);
  for (int mode = 0; mode < 2; ++mode) {
    dhidden.put(hidden);
    ids.poison(), weights.poison(), pair_out.poison(), dense_out.poison();
    runner.fresh();
    const std::string name =
        "ffn " + c.name + " rows " + std::to_string(c.rows) + (mode == 0 ? " whole" : " parts");
    if (mode == 0) {
      GPU_OK(ffn_all(runner.launch, args));
    } else {
      GPU_OK(ffn_route(runner.launch, args));
      GPU_OK(ffn_branches(runner.launch, args));
      GPU_OK(ffn_finish(runner.launch, args));
    }
    runner.sync();
    const std::vector<float> got = dhidden.get();
    compare(name, added(got), want_added, 1.5e-2);
    if (c.n_expert > 0) {
      check(name + " ids", ids.get() == want_ids);
      compare(name + " weights", weights.get(), want_weights, 1e-4);
    }
    if (mode == 0 && c.rows > 1 && c.rows <= kDecodeRows)
      for (int r = 0; r < c.rows; ++r) check_alone(name, args, hidden, got, r);
  }
}

}  // namespace

void test_ffn() {
  using enum BlockType;
  const RouterSpec plain{},
      sigmoid_spec{.gating = Gating::sigmoid,
                   .selection_bias = true,
                   .normalize = true,
                   .weight_scale = 2.5f},
      own{.own_input = true}, capped{.normalize = false, .logit_softcap = 5.0f};
  std::uint64_t seed = 1;
  // Of experts with 2 of 8 chosen tiles of 32, 64, 96 (200 rows, Hopper) and 128 tokens.
  std::vector<int> all_rows = {1, 5, 8, 40, 150, 200, 600};
  if (has_gemm()) all_rows.push_back(1100);  // weights are decoded once
  for (const int rows : all_rows) {
    const int pretended = rows >= kGemmRows ? 9 : 0;  // small matrices count as large ones
    pretended_multiprocessors() = pretended;
    run({"qwen",           rows,  512,   32,    8,     256,   256,  Q4_K,  Q4_K,  Q6_K, Q4_K,
         Activation::silu, plain, false, false, false, false, true, false, false, false},
        seed++);
    // So wide that a block's warps share one unit.
    run({"wide",           rows,  2048,  12,    4,     512,   512,  Q4_K,  Q4_K,  Q6_K, Q4_K,
         Activation::silu, plain, false, false, false, false, true, false, false, false},
        seed + 1000);
    run({"laguna",         rows,         256,  16,    3,     256,   512,   Q4_K,  Q5_K,  Q4_K, Q5_K,
         Activation::silu, sigmoid_spec, true, false, false, false, false, false, false, false},
        seed++);
    run({"gemma", rows,  256,  8,    2,    96,
         160,     Q8_0,  Q8_0, Q5_0, Q8_0, Activation::gelu_tanh,
         own,     false, true, true, true, false,
         true,    true,  true},
        seed++);
    // Down's tokens in shared memory are an odd number of tiles, or do not fit there; a block takes
    // several blocks of rows, the last one partly past the matrix.
    for (const int n_ff : {320, 448, 576}) {
      if (rows <= kDecodeRows) break;
      pretended_multiprocessors() = 1;
      run({"odd down",       rows,  352,   8,     2,     n_ff,  0,     Q8_0,  Q8_0,  Q8_0, Q8_0,
           Activation::silu, plain, false, false, false, false, false, false, false, false},
          seed + 6000);
      pretended_multiprocessors() = pretended;
    }
    // Down's tokens do not fit there.
    for (const int n_ff : {640, 928})
      if (rows > kDecodeRows)
        run({"long down",      rows,  256,   8,     2,     n_ff,  0,     Q8_0,  Q8_0,  Q8_0, Q8_0,
             Activation::silu, plain, false, false, false, false, false, false, false, false},
            seed + 5000);
    run({"mixed",          rows,   256,   40,    4,     96,    0,     IQ4_XS, Q3_K,  MXFP4, F32,
         Activation::silu, capped, false, false, false, false, false, false,  false, false},
        seed++);
    run({"bf16",           rows,  64,    8,     2,     96,    64,   BF16,  BF16,  BF16, F32,
         Activation::silu, plain, false, false, false, false, true, false, false, false},
        seed++);
    run({"dense",          rows,  512,   0,     0,     0,     1088,  Q4_K,  Q4_K,  Q4_K, Q8_0,
         Activation::silu, plain, false, false, false, false, false, false, false, false},
        seed++);
    // Gate and up side by side; down by super-blocks of few and of many columns.
    run({"dense K",        rows,  512,   0,     0,     0,     1280,  Q4_K,  Q4_K,  Q4_K, Q4_K,
         Activation::silu, plain, false, false, false, false, false, false, false, false},
        seed + 2000);
    run({"dense post",          rows,  256,   0,     0,     0,     768,   Q4_K, Q4_K, Q4_K, Q6_K,
         Activation::gelu_tanh, plain, false, false, false, false, false, true, true, true},
        seed + 3000);
    for (const int multiprocessors : {0, 3}) {
      pretended_multiprocessors() = multiprocessors;
      run({"dense wide",     rows,  512,   0,     0,     0,     4352,  Q4_K,  Q4_K,  Q4_K, Q4_K,
           Activation::silu, plain, false, false, false, false, false, false, false, false},
          seed + 4000);
    }
    // Teams of two blocks: of down's 20 super-blocks all, 19, 13 or none are left rounded.
    if (rows == 1 || rows == 3 || rows == 8) {
      for (const int multiprocessors : {5, 39, 27, 42}) {
        pretended_multiprocessors() = multiprocessors;
        run({"dense teams",  rows, 4096,   0,     0,     0,     5120,  Q4_K,  Q4_K,  Q4_K, Q6_K,
             Activation::silu, plain, false, false, false, false, false, false, false, false},
            seed + 6000);
      }
    }
    pretended_multiprocessors() = pretended;
    run({"f32", rows,  96,    8,     2,     32,   96,    F32,   F32,  F32, F32, Activation::silu,
         plain, false, false, false, false, true, false, false, false},
        seed++);
  }
  pretended_multiprocessors() = 0;
}

}  // namespace tessera::gpu::bench
