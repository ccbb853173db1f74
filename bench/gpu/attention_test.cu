// Attention over pages against its formula in double precision: a context built up in steps, every
// page format, windows, soft caps, gates, shared keys.
#include "harness.h"
#include "left_rounded.h"

namespace tessera::gpu::bench {
namespace {

struct Case {
  int n_head, n_kv, dk, dv, n_rot;
  KvFormat format;
  int window;
  float softcap;
  OutputGate gate;
  bool qk_norm, v_norm, value_is_key;
};

struct Sequences {
  std::vector<std::vector<float>> k,
      v;  // by sequence: normed and rotated keys, values; token-major
};

void turn(std::vector<float>& x, int n_rot, int position) {
  const int half = n_rot / 2;
  for (int i = 0; i < half; ++i) {
    const float freq = std::pow(1e4f, -float(i) / float(half));
    const double angle = double(float(position) * freq);
    const double a = double(x[std::size_t(i)]), b = double(x[std::size_t(i + half)]);
    x[std::size_t(i)] = float(a * std::cos(angle) - b * std::sin(angle));
    x[std::size_t(i + half)] = float(b * std::cos(angle) + a * std::sin(angle));
  }
}

// The same without clusters, which other kernels do: the same bits, in the pages too.
void run_without_clusters(const std::string& name, AttentionArgs args,
                          const DeviceArray<float>& out, const DeviceArray<std::byte>& pool) {
  if (!has_gemm() || args.step.rows > kDecodeRows) return;
  const std::vector<std::byte> pages = pool.get();
  DeviceArray<float> other(out.size());
  args.out = other.data();
  without_clusters() = true;
  Runner runner(attention_workspace(args) + 256);
  without_clusters() = false;
  runner.fresh();
  GPU_OK(attention(runner.launch, args));
  runner.sync();
  check(name + " without clusters",
        std::memcmp(other.get().data(), out.get().data(), out.size() * sizeof(float)) == 0);
  check(name + " pages without clusters", pool.get() == pages);
  if (!attention_leaves_rounded(args)) return;
  const int width = int(args.out_stride);
  const Input behind{
      .kind = InputKind::plain, .x = other.data(), .stride = width, .cols = width};
  check(name + " rounded without clusters", left_rounded(runner, behind, args.step.rows));
}

void run(const Case& c, const std::vector<std::vector<int>>& steps, std::uint64_t seed) {
  Random random(seed);
  const std::size_t n_sequences = steps[0].size();
  int longest = 0;
  for (std::size_t i = 0; i < n_sequences; ++i) {
    int sum = 0;
    for (const auto& lengths : steps) sum += lengths[i];
    longest = std::max(longest, sum);
  }
  const int table_pages = (longest + kPageTokens - 1) / kPageTokens;
  const KvGeometry kv{c.n_kv, c.dk, c.dv, c.format};
  const std::int64_t page_bytes = kv_layer_page_bytes(kv) * 2 + 512;
  // Pages in a shuffled order.
  std::vector<std::int32_t> table(n_sequences * std::size_t(table_pages));
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = std::int32_t(i);
  for (std::size_t i = table.size(); i > 1; --i) std::swap(table[i - 1], table[random.next() % i]);
  DeviceArray<std::byte> pool(table.size() * std::size_t(page_bytes));
  DeviceArray<std::int32_t> dtable(table);
  std::vector<float> q_norm = random.normals(std::size_t(c.dk), 0.2f),
                     k_norm = random.normals(std::size_t(c.dk), 0.2f);
  for (float& x : q_norm) x += 1;
  for (float& x : k_norm) x += 1;
  DeviceArray<float> dq_norm(q_norm), dk_norm(k_norm);
  std::vector<float> freq;
  for (int i = 0; i < c.n_rot / 2; ++i)
    freq.push_back(std::pow(1e4f, -float(i) / float(c.n_rot / 2)));
  DeviceArray<float> dfreq(freq);
  const bool gated_q = c.gate == OutputGate::sigmoid_in_query;
  const int q_head = gated_q ? 2 * c.dk : c.dk;
  const std::int64_t q_stride = std::int64_t{c.n_head} * q_head;
  const int gate_width = c.gate == OutputGate::softplus_per_head ? c.n_head : c.n_head * c.dv;
  const float scale = c.qk_norm ? 1.0f / std::sqrt(float(c.dk)) : 0.3f / std::sqrt(float(c.dk));
  Sequences seen;
  seen.k.resize(n_sequences);
  seen.v.resize(n_sequences);
  std::vector<int> positions(n_sequences, 0);
  int number = 0;
  for (const auto& lengths : steps) {
    TestRows rows(lengths, positions);
    const std::size_t n = std::size_t(rows.step.rows);
    const auto q = random.normals(n * std::size_t(q_stride), 1.5f);
    const auto k = random.normals(n * std::size_t(c.n_kv * c.dk)),
               v = random.normals(n * std::size_t(c.n_kv * c.dv));
    const auto gate = random.normals(n * std::size_t(gate_width));
    DeviceArray<float> dq(q), dk(k), dv(v), dgate(gate), out(n * std::size_t(c.n_head * c.dv));
    DeviceArray<float> cos(n * freq.size()), sin(n * freq.size());
    AttentionArgs args{.step = rows.step,
                       .kv = kv,
                       .n_head = c.n_head,
                       .q = dq.data(),
                       .q_stride = q_stride,
                       .q_head_stride = q_head,
                       .k = dk.data(),
                       .v = c.value_is_key ? nullptr : dv.data(),
                       .k_stride = c.n_kv * c.dk,
                       .v_stride = c.n_kv * c.dv,
                       .q_norm = c.qk_norm ? dq_norm.data() : nullptr,
                       .k_norm = c.qk_norm ? dk_norm.data() : nullptr,
                       .v_norm = c.v_norm,
                       .eps = 1e-6f,
                       .n_rot = c.n_rot,
                       .cos = cos.data(),
                       .sin = sin.data(),
                       .scale = scale,
                       .softcap = c.softcap,
                       .window = c.window,
                       .gate = c.gate,
                       .gate_logits = gated_q ? nullptr : dgate.data(),
                       .gate_stride = gate_width,
                       .pool = pool.data(),
                       .page_stride = page_bytes,
                       .layer_offset = 256,
                       .page_table = dtable.data(),
                       .table_stride = table_pages,
                       .max_context = longest,
                       .out = out.data(),
                       .out_stride = c.n_head * c.dv};
    Runner runner(attention_workspace(args) + 256);
    runner.fresh();
    GPU_OK(rope_tables(runner.launch, {.inv_freq = dfreq.data(),
                                       .half = c.n_rot / 2,
                                       .magnitude = 1.0f,
                                       .position = rows.step.position,
                                       .rows = rows.step.rows,
                                       .cos = cos.data(),
                                       .sin = sin.data()}));
    runner.sync();  // turns are read ahead of the kernel before
    GPU_OK(attention(runner.launch, args));
    runner.sync();
    std::vector<double> want;
    for (std::size_t row = 0; row < n; ++row) {
      const std::size_t s = std::size_t(rows.sequence_host[row]);
      const int position = rows.position_host[row];
      for (int h = 0; h < c.n_kv; ++h) {
        const float* from = k.data() + row * std::size_t(c.n_kv * c.dk) + h * c.dk;
        std::vector<float> key = c.qk_norm ? rms_normed(from, k_norm.data(), 1e-6f, c.dk)
                                           : std::vector<float>(from, from + c.dk);
        turn(key, c.n_rot, position);
        seen.k[s].insert(seen.k[s].end(), key.begin(), key.end());
        const float* vf =
            c.value_is_key ? from : v.data() + row * std::size_t(c.n_kv * c.dv) + h * c.dv;
        std::vector<float> value =
            c.v_norm ? rms_normed(vf, nullptr, 1e-6f, c.dv) : std::vector<float>(vf, vf + c.dv);
        seen.v[s].insert(seen.v[s].end(), value.begin(), value.end());
      }
      for (int h = 0; h < c.n_head; ++h) {
        const float* from = q.data() + row * std::size_t(q_stride) + h * q_head;
        std::vector<float> query = c.qk_norm ? rms_normed(from, q_norm.data(), 1e-6f, c.dk)
                                             : std::vector<float>(from, from + c.dk);
        turn(query, c.n_rot, position);
        const int kvh = h / (c.n_head / c.n_kv);
        const int first = c.window > 0 ? std::max(0, position - c.window + 1) : 0;
        std::vector<double> weight;
        double top = -1e300, sum = 0;
        for (int p = first; p <= position; ++p) {
          double score =
              double(scale) *
              dot(query.data(),
                  seen.k[s].data() + std::size_t(p * c.n_kv + kvh) * std::size_t(c.dk), c.dk);
          if (c.softcap > 0) score = double(c.softcap) * std::tanh(score / double(c.softcap));
          weight.push_back(score);
          top = std::max(top, score);
        }
        for (double& w : weight) sum += w = std::exp(w - top);
        for (int d = 0; d < c.dv; ++d) {
          double value = 0;
          for (int p = first; p <= position; ++p)
            value +=
                weight[std::size_t(p - first)] *
                double(
                    seen.v[s][std::size_t(p * c.n_kv + kvh) * std::size_t(c.dv) + std::size_t(d)]);
          value /= sum;
          if (gated_q) value *= sigmoid(double(from[c.dk + d]));
          if (c.gate == OutputGate::softplus_per_head)
            value *= softplus(double(gate[row * std::size_t(gate_width) + std::size_t(h)]));
          if (c.gate == OutputGate::softplus_per_element)
            value *=
                softplus(double(gate[row * std::size_t(gate_width) + std::size_t(h * c.dv + d)]));
          want.push_back(value);
        }
      }
    }
    const double tolerance = c.format == KvFormat::f32   ? 2e-5
                             : c.format == KvFormat::f16 ? 3e-3
                                                         : 2.5e-2;
    compare("attention heads " + std::to_string(c.n_head) + "/" + std::to_string(c.n_kv) +
                " dims " + std::to_string(c.dk) + "/" + std::to_string(c.dv) + " format " +
                std::to_string(int(c.format)) + " window " + std::to_string(c.window) + " step " +
                std::to_string(number++) + " rows " + std::to_string(n),
            out.get(), want, tolerance);
    if (attention_leaves_rounded(args)) {
      const int width = c.n_head * c.dv;
      const Input behind{
          .kind = InputKind::plain, .x = out.data(), .stride = width, .cols = width};
      check("attention, step " + std::to_string(number) + " rounded",
            left_rounded(runner, behind, rows.step.rows));
    }
    run_without_clusters("attention, step " + std::to_string(number), args, out, pool);
    for (std::size_t i = 0; i < n_sequences; ++i) positions[i] += lengths[i];
  }
}

// A row beside a neighbour of two rows, whose head norms and turns go by a kernel of their own, and
// the row alone, which is placed where it is attended to: the same bits, in its page too.
void run_beside(const Case& c, int context, std::uint64_t seed) {
  Random random(seed);
  const KvGeometry kv{c.n_kv, c.dk, c.dv, c.format};
  const int pages = (context + 1 + kPageTokens) / kPageTokens, q_head = c.dk;
  const std::int64_t page_bytes = kv_layer_page_bytes(kv);
  std::vector<__half> before;
  for (const float x : random.normals(std::size_t(2 * pages * page_bytes) / 2))
    before.push_back(__float2half_rn(x));
  std::vector<std::int32_t> table;
  for (int i = 0; i < 2 * pages; ++i) table.push_back(i);
  const DeviceArray<std::int32_t> dtable(table);
  const DeviceArray<float> q(random.normals(std::size_t(3 * c.n_head * q_head))),
      k(random.normals(std::size_t(3 * c.n_kv * c.dk))),
      v(random.normals(std::size_t(3 * c.n_kv * c.dv))),
      norm(random.normals(std::size_t(c.dk))), turns(random.normals(std::size_t(3 * c.n_rot)));
  std::vector<std::vector<float>> outs;
  std::vector<std::vector<__half>> stored;
  for (const std::vector<int>& lengths : {std::vector<int>{1, 2}, std::vector<int>{1}}) {
    const TestRows rows(lengths, std::vector<int>(lengths.size(), context));
    DeviceArray<__half> pool(before);
    DeviceArray<float> out(std::size_t(3 * c.n_head * c.dv));
    const AttentionArgs args{.step = rows.step,
                             .kv = kv,
                             .n_head = c.n_head,
                             .q = q.data(),
                             .q_stride = c.n_head * q_head,
                             .q_head_stride = q_head,
                             .k = k.data(),
                             .v = c.value_is_key ? nullptr : v.data(),
                             .k_stride = c.n_kv * c.dk,
                             .v_stride = c.n_kv * c.dv,
                             .q_norm = c.qk_norm ? norm.data() : nullptr,
                             .k_norm = c.qk_norm ? norm.data() : nullptr,
                             .eps = 1e-6f,
                             .n_rot = c.n_rot,
                             .cos = turns.data(),
                             .sin = turns.data(),
                             .scale = 0.1f,
                             .window = c.window,
                             .pool = reinterpret_cast<std::byte*>(pool.data()),
                             .page_stride = page_bytes,
                             .page_table = dtable.data(),
                             .table_stride = pages,
                             .max_context = context + 2,
                             .out = out.data(),
                             .out_stride = c.n_head * c.dv};
    Runner runner(attention_workspace(args) + 256);
    runner.fresh();
    GPU_OK(attention(runner.launch, args));
    runner.sync();
    outs.push_back(out.get()), stored.push_back(pool.get());
  }
  const std::string name = "attention beside a neighbour, heads " + std::to_string(c.n_head) +
                           " dims " + std::to_string(c.dk) + ": ";
  check(name + "out",
        std::memcmp(outs[0].data(), outs[1].data(), std::size_t(c.n_head * c.dv) * 4) == 0);
  check(name + "page", std::memcmp(stored[0].data(), stored[1].data(),
                                   std::size_t(pages * page_bytes)) == 0);
}

}  // namespace

void test_attention() {
  const std::vector<std::vector<int>> mixed = {{1, 5},     {1, 1}, {70, 1}, {1, 1},
                                               {130, 300}, {1, 1}, {4, 4},  {1, 1}};
  using enum OutputGate;
  run({16, 2, 256, 256, 64, KvFormat::f16, 0, 0, sigmoid_in_query, true, false, false}, mixed, 1);
  run({16, 2, 128, 128, 128, KvFormat::f16, 100, 0, softplus_per_head, true, false, false}, mixed,
      2);
  run({6, 2, 64, 64, 32, KvFormat::f32, 8, 0, softplus_per_element, true, false, false}, mixed, 3);
  run({4, 2, 512, 512, 512, KvFormat::f16, 0, 30, none, true, true, true}, mixed, 4);
  run({4, 1, 64, 64, 16, KvFormat::q8_0, 0, 0, sigmoid_in_query, true, false, false}, mixed, 5);
  run({8, 4, 256, 256, 256, KvFormat::q8_0, 64, 50, none, true, true, false}, mixed, 6);
  run({12, 1, 48, 80, 48, KvFormat::f16, 0, 0, none, false, false, false}, mixed, 7);
  run({24, 4, 256, 256, 64, KvFormat::f16, 0, 0, sigmoid_in_query, true, false, false},
      {{600}, {1}, {2}, {33}}, 8);
  // Placed by the kernel that attends: as many heads as a KV head may have, values that are keys.
  run({16, 1, 128, 128, 64, KvFormat::f16, 0, 0, none, true, false, false}, mixed, 21);
  run({12, 1, 64, 64, 32, KvFormat::f16, 0, 0, none, true, false, true}, mixed, 22);
  run({4, 2, 256, 256, 64, KvFormat::f16, 70, 0, none, false, false, true}, mixed, 23);
  // Rows side by side at the ends of pages and beyond, whose contexts stay short.
  const std::vector<std::vector<int>> eight = {{1, 5, 62, 63, 64, 127, 300, 500},
                                               {1, 1, 1, 1, 1, 1, 1, 1},
                                               {1, 1, 1, 1, 1, 1, 1, 1}};
  run({16, 2, 256, 256, 64, KvFormat::f16, 0, 0, sigmoid_in_query, true, false, false}, eight, 27);
  run({8, 1, 64, 64, 32, KvFormat::f16, 70, 20, softplus_per_head, true, false, true}, eight, 28);
  run({15, 1, 128, 128, 64, KvFormat::f16, 0, 0, softplus_per_element, false, false, false}, eight,
      29);
  for (const int context : {0, 63, 64, 200, 510, 511, 700, 5000}) {
    run_beside({16, 2, 256, 256, 64, KvFormat::f16, 0, 0, none, true, false, false}, context, 24);
    run_beside({16, 1, 128, 128, 0, KvFormat::f16, 0, 0, none, true, false, true}, context, 25);
    run_beside({9, 3, 64, 64, 32, KvFormat::f16, 100, 0, none, false, false, false}, context, 26);
  }
  // Rows around the contexts from which on spans are longer, alone and side by side.
  for (const KvFormat format : {KvFormat::f16, KvFormat::q8_0})
    run({1, 1, 64, 64, 32, format, 0, 0, none, true, false, false},
        {{4090, 60}, {4, 2}, {4, 2}, {4088, 1}, {4, 1}, {4, 1}}, 18);
  run({2, 1, 256, 256, 64, KvFormat::f16, 0, 0, sigmoid_in_query, true, false, false},
      {{4093}, {3}, {4}}, 19);
  for (const int dims : {128, 512})
    run({8, 2, dims, dims, 64, KvFormat::f16, 100, 20, none, true, false, false},
        {{4100}, {5}, {4088}, {5}, {60}, {8}}, 20);
  // Prompts: sequences that begin and end within pages, alone and side by side, rows that share no
  // KV head and eight heads that do, windows and caps over many pages.
  const std::vector<std::vector<int>> prompts = {{1, 37, 64}, {210, 3, 65}, {17, 129, 1}};
  run({8, 1, 256, 256, 64, KvFormat::f16, 0, 0, sigmoid_in_query, true, false, false},
      {{333}, {67}, {130}}, 9);
  run({2, 2, 256, 256, 64, KvFormat::f16, 100, 20, softplus_per_element, true, false, false},
      prompts, 10);
  run({3, 1, 256, 256, 64, KvFormat::f16, 0, 30, none, true, false, false}, prompts, 11);
  run({8, 1, 128, 128, 64, KvFormat::f16, 0, 0, softplus_per_element, true, false, false}, prompts,
      12);
  run({2, 2, 128, 128, 64, KvFormat::f16, 65, 15, none, true, true, true}, prompts, 13);
  run({1, 1, 64, 64, 64, KvFormat::f16, 0, 0, none, true, false, false}, {{5}, {700}, {131}}, 14);
  run({8, 1, 64, 64, 32, KvFormat::f16, 70, 25, sigmoid_in_query, true, false, false}, prompts, 15);
  // As on a GPU whose blocks get 99 KB of shared memory (compute capability 8.6 and 8.9).
  pretended_shared() = 99 * 1024;
  run({8, 2, 256, 256, 64, KvFormat::f16, 0, 0, sigmoid_in_query, true, false, false},
      {{40, 30}, {150, 9}, {1, 66}}, 16);
  run({1, 1, 256, 256, 64, KvFormat::f16, 70, 20, none, true, false, false}, {{131}}, 17);
  pretended_shared() = 0;
}

}  // namespace tessera::gpu::bench
