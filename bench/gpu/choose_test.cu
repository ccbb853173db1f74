// Choosing tokens against a plain version in double precision: changes, ties, logits that are no
// numbers, every filter alone and together. Where more tokens than are sorted pass a row's filters,
// against the definition in the card's own weights, which are integers: to the token.
#include <cstring>
#include <numeric>

#include "device/gpu/kernels/choose.cuh"
#include "harness.h"

namespace tessera::gpu::bench {
namespace {

struct TestRow {
  RowChoice choice{};
  std::vector<LogitChange> changes;
};

struct Ranked {
  double weight;
  std::int32_t id;
};

bool suppressed(const std::vector<std::int32_t>& ids, int id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// The tokens that the row's filters keep, in the order in which they are drawn, with weights
// relative to the largest; empty where nothing can be chosen.
std::vector<Ranked> kept(const TestRow& row, std::vector<float> logits, int n_token,
                         const std::vector<std::int32_t>& never) {
  const int n_vocab = static_cast<int>(logits.size());
  for (const LogitChange& c : row.changes) {
    float& logit = logits[std::size_t(c.id)];
    logit += c.bias;
    logit = (logit > 0 ? logit / c.penalty : logit * c.penalty) - c.less;
  }
  std::vector<Ranked> tokens;
  float largest = -INFINITY;
  for (int id = 0; id < n_token; ++id)
    if (!suppressed(never, id)) largest = std::max(largest, logits[std::size_t(id)]);
  if (!std::isfinite(largest)) return {};
  const RowChoice& c = row.choice;
  const double t = c.temperature == 0 ? 1.0 : double(c.temperature);
  for (int id = 0; id < n_token; ++id) {
    const double logit = double(logits[std::size_t(id)]);
    if (!suppressed(never, id) && logit > -INFINITY)
      tokens.push_back({std::exp((logit - double(largest)) / t), id});
  }
  const bool top_k = c.top_k > 0 && c.top_k < n_vocab;
  if (c.temperature != 0 && !top_k && c.top_p >= 1 && c.min_p <= 0) return tokens;
  std::stable_sort(tokens.begin(), tokens.end(), [&](const Ranked& a, const Ranked& b) {
    return logits[std::size_t(a.id)] > logits[std::size_t(b.id)];
  });
  if (c.temperature == 0) tokens.resize(1);
  if (top_k && std::size_t(c.top_k) < tokens.size()) tokens.resize(std::size_t(c.top_k));
  double total = 0, before = 0;
  for (const Ranked& token : tokens) total += token.weight;
  std::size_t n = 0;
  while (n < tokens.size() && (c.top_p >= 1 || before < double(c.top_p) * total) &&
         tokens[n].weight >= double(c.min_p))
    before += tokens[n++].weight;
  tokens.resize(n);
  return tokens;
}

// Whether the token is the drawn one, or next to it where the draw falls on their border.
bool is_drawn(const std::vector<Ranked>& tokens, double uniform, std::int32_t id) {
  double total = 0, before = 0;
  for (const Ranked& token : tokens) total += token.weight;
  const double target = uniform * total, slack = 1e-6 * total;
  for (const Ranked& token : tokens) {
    if (token.id == id) return target > before - slack && target < before + token.weight + slack;
    before += token.weight;
  }
  return false;
}

// What the card chooses. It leaves the logits as they were.
std::vector<ChosenRow> chosen(const std::string& name, const std::vector<float>& logits,
                              int n_vocab, int n_token, const std::vector<std::int32_t>& never,
                              const std::vector<TestRow>& rows) {
  const int n = static_cast<int>(rows.size());
  std::vector<RowChoice> choices;
  std::vector<LogitChange> changes;
  bool sampled = false;
  for (const TestRow& row : rows) {
    choices.push_back(row.choice);
    choices.back().first_change = static_cast<std::int32_t>(changes.size());
    choices.back().n_changes = static_cast<std::int32_t>(row.changes.size());
    changes.insert(changes.end(), row.changes.begin(), row.changes.end());
    sampled |= row.choice.temperature != 0;
  }
  DeviceArray<float> device_logits(logits), before(std::max<std::size_t>(changes.size(), 1));
  DeviceArray<RowChoice> device_choices(choices);
  DeviceArray<LogitChange> device_changes(changes);
  DeviceArray<std::int32_t> device_never(never);
  DeviceArray<ChosenRow> out{std::size_t(n)};
  Runner runner(choose_workspace(n));
  const ChooseArgs args{.logits = device_logits.data(),
                        .rows = n,
                        .n_vocab = n_vocab,
                        .n_token = n_token,
                        .suppressed = device_never.data(),
                        .n_suppressed = static_cast<int>(never.size()),
                        .sampled = sampled,
                        .choices = device_choices.data(),
                        .changes = device_changes.data(),
                        .before = before.data(),
                        .out = out.data()};
  GPU_OK(choose(runner.launch, args));
  GPU_OK(restore_logits(runner.launch, args));
  runner.sync();
  const std::vector<float> restored = device_logits.get();
  check(name + ": restored",
        std::memcmp(restored.data(), logits.data(), logits.size() * sizeof(float)) == 0);
  return out.get();
}

std::vector<float> row_of(const std::vector<float>& logits, int n_vocab, std::size_t row) {
  const auto begin = logits.begin() + std::ptrdiff_t(row) * n_vocab;
  return {begin, begin + n_vocab};
}

void run(const std::string& name, const std::vector<float>& logits, int n_vocab, int n_token,
         const std::vector<std::int32_t>& never, const std::vector<TestRow>& rows) {
  const std::vector<ChosenRow> got = chosen(name, logits, n_vocab, n_token, never, rows);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::vector<Ranked> tokens = kept(rows[r], row_of(logits, n_vocab, r), n_token, never);
    const std::int32_t id = got[r].id;
    check(name + " row " + std::to_string(r) + ": " + std::to_string(id),
          tokens.empty() ? id == kNoToken : is_drawn(tokens, rows[r].choice.uniform, id));
  }
}

// --- Against the card's own weights ---

__global__ void weights_kernel(const float* logits, int n, Weigher weigh, Mass* mass, int* bin) {
  const int id = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (id >= n) return;
  const Weight weight = weigh(logits[id]);
  mass[id] = weight.mass;
  bin[id] = weight.bin;
}

struct Weights {
  std::vector<Mass> mass;
  std::vector<int> bin;
};

Weights weights_of(const std::vector<float>& logits, float largest, float temperature) {
  constexpr int kBlock = 256;
  const auto n = static_cast<int>(logits.size());
  DeviceArray<float> device_logits(logits);
  DeviceArray<Mass> mass(logits.size());
  DeviceArray<int> bin(logits.size());
  Runner runner(0);
  GPU_OK(launch_kernel(runner.launch, weights_kernel, dim3(unsigned((n + kBlock - 1) / kBlock)),
                       dim3(kBlock), 0, device_logits.data(), n, Weigher{largest, temperature},
                       mass.data(), bin.data()));
  runner.sync();
  return {mass.get(), bin.get()};
}

// The token that the filters and the draw come to by definition, of a row without changes. `many`:
// whether more tokens lie in the bins that the filters reach than are sorted, so that the draw is
// in the order of ids.
std::int32_t defined(const RowChoice& c, const std::vector<float>& logits, int n_token,
                     const std::vector<std::int32_t>& never, bool& many) {
  const int n_vocab = static_cast<int>(logits.size());
  std::vector<bool> sampled(logits.size(), false);
  std::fill_n(sampled.begin(), n_token, true);
  for (const std::int32_t id : never) sampled[std::size_t(id)] = false;
  float largest = -INFINITY;
  for (std::size_t id = 0; id < logits.size(); ++id)
    if (sampled[id] && logits[id] > largest) largest = logits[id];
  const Weights weights = weights_of(logits, largest, c.temperature);
  const auto mass = [&](int id) { return weights.mass[std::size_t(id)]; };
  std::vector<int> ids;  // by rank
  for (int id = 0; id < n_vocab; ++id)
    if (sampled[std::size_t(id)] && mass(id) > 0) ids.push_back(id);
  std::stable_sort(ids.begin(), ids.end(), [&](int a, int b) {
    return logits[std::size_t(a)] > logits[std::size_t(b)];
  });
  const std::vector<int> all = ids;
  const bool top_k = c.top_k > 0 && c.top_k < n_vocab;
  if (top_k && std::size_t(c.top_k) < ids.size()) ids.resize(std::size_t(c.top_k));
  int last_bin = !top_k || ids.size() == std::size_t(c.top_k)
                     ? weights.bin[std::size_t(ids.back())]
                     : kChoiceBins - 1;

  Mass among = 0, before = 0, kept_mass = 0;
  for (const int id : ids) among += mass(id);
  const double nucleus = c.top_p < 1 ? double(c.top_p) * double(among) : INFINITY;
  const auto least = static_cast<Mass>(std::nearbyint(c.min_p * 0x1p40f));
  std::vector<int> kept;
  for (const int id : ids) {
    if (before > 0 && double(before) >= nucleus) break;
    if (!top_k && c.top_p < 1) last_bin = weights.bin[std::size_t(id)];
    before += mass(id);
    if (mass(id) < least) continue;
    kept.push_back(id);
    kept_mass += mass(id);
  }
  if (!top_k && c.min_p > 0)
    last_bin = std::min(last_bin, static_cast<int>(-std::log(c.min_p) * 32) + 1);
  many = std::count_if(all.begin(), all.end(), [&](int id) {
           return weights.bin[std::size_t(id)] <= last_bin;
         }) > kChoiceCandidates;
  if (many) std::sort(kept.begin(), kept.end());
  Mass at = static_cast<Mass>(c.uniform * double(kept_mass));
  if (at >= kept_mass) at = kept_mass - 1;
  for (const int id : kept) {
    if (at < mass(id)) return id;
    at -= mass(id);
  }
  return kNoToken;
}

void run_exact(const std::string& name, const std::vector<float>& logits, int n_vocab, int n_token,
               const std::vector<std::int32_t>& never, const std::vector<TestRow>& rows,
               int& n_many) {
  const std::vector<ChosenRow> got = chosen(name, logits, n_vocab, n_token, never, rows);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::vector<float> row = row_of(logits, n_vocab, r);
    for (const LogitChange& change : rows[r].changes) row[std::size_t(change.id)] += change.bias;
    bool many = false;
    const std::int32_t wanted = defined(rows[r].choice, row, n_token, never, many);
    n_many += many ? 1 : 0;
    check(name + " row " + std::to_string(r) + ": " + std::to_string(got[r].id) + ", not " +
              std::to_string(wanted),
          got[r].id == wanted);
  }
}

TestRow drawn(double uniform, float temperature, int top_k, float top_p, float min_p) {
  return {.choice = {.uniform = uniform,
                     .temperature = temperature,
                     .top_p = top_p,
                     .min_p = min_p,
                     .top_k = top_k}};
}

struct Filter {
  float temperature;
  int top_k;
  float top_p, min_p;
};

// Logits of which thousands are near the largest.
std::vector<std::vector<float>> crowded_rows(Random& random, int vocab) {
  const auto n = static_cast<std::size_t>(vocab);
  std::vector<std::vector<float>> rows = {std::vector<float>(n, -0.5f)};  // all equal
  const auto add = [&](auto logit) {
    rows.emplace_back(n);
    for (float& x : rows.back()) x = logit();
  };
  add([&] { return random.uniform() < 0.5f ? 1.0f : 1.001f; });  // two, in one bin
  add([&] { return 3 + 0.25f * float(random.next() % 7); });     // a few, many bins apart
  add([&] { return random.normal() * 0.3f; });
  add([&] { return 12 + random.normal() * 2; });
  add([&] { return random.normal() * 1e-3f; });  // about zero
  // Numbers that are none, none at all, and a few that outweigh the rest.
  add([&] {
    const std::uint64_t kind = random.next() % 8;
    return kind == 0 ? NAN : kind == 1 ? -INFINITY : kind == 2 ? 2.0f : random.normal();
  });
  for (std::size_t i = 0; i < 5; ++i) rows.back()[1000 * i + 17] = 6 + 0.5f * float(i);
  return rows;
}

// More tokens in reach of the filters than are sorted.
void test_crowded(Random& random) {
  const int vocab = 50021, n_token = vocab - 21;
  const std::vector<std::int32_t> never = {0, 900, 901, 33333};
  const std::vector<Filter> filters = {
      {1, 1000, 1, 0},      {1, 5000, 1, 0},          {0.8f, 40000, 1, 0},
      {1, 0, 0.9f, 0},      {1.3f, 0, 0.99f, 0},      {1, 0, 1, 0.001f},
      {2, 0, 1, 0.7f},      {1, 5000, 0.9f, 0},       {1, 40000, 0.99f, 0.01f},
      {1, 0, 0.5f, 0.3f},   {1, 1000, 0.999f, 0.05f}, {30, 20000, 0.95f, 0.9f},
      {1, vocab - 1, 1, 0}, {1, 30000, 0, 0},         {1, 0, 0, 0},
      {1, 0, 1e-9f, 0.5f},  {1, 4096, 1, 1},          {5, 2, 0.9f, 0}};
  int n_many = 0, kind = 0, n_rows = 0;
  for (std::vector<float> one : crowded_rows(random, vocab)) {
    one[0] = one[std::size_t(n_token)] = 40;  // never chosen
    for (const Filter& f : filters) {
      std::vector<TestRow> rows;
      std::vector<float> logits;
      for (const double u : {0.0, 0.37, 0.8, 1 - 0x1p-53}) {
        rows.push_back(drawn(u, f.temperature, f.top_k, f.top_p, f.min_p));
        logits.insert(logits.end(), one.begin(), one.end());
      }
      rows[1].changes = {{.id = 0, .bias = 3}, {.id = 11, .bias = 0.5f}, {.id = 60, .bias = -9}};
      run_exact("crowd " + std::to_string(kind) + " of " + std::to_string(f.top_k) + ", " +
                    std::to_string(f.top_p) + ", " + std::to_string(f.min_p),
                logits, vocab, n_token, never, rows, n_many);
      n_rows += static_cast<int>(rows.size());
    }
    ++kind;
  }
  check("crowds: " + std::to_string(n_many) + " of " + std::to_string(n_rows),
        n_many > n_rows / 2);
  const int large = 248320;
  std::vector<float> logits = random.normals(std::size_t(3) * large);
  std::fill_n(logits.begin(), large, 1.5f);
  n_many = 0;
  run_exact("large crowds", logits, large, large, never,
            {drawn(0.7, 1, 0, 0.95f, 0), drawn(0.2, 1, 20000, 0.9f, 0.01f),
             drawn(0.9, 1.2f, 0, 0.95f, 0.001f)},
            n_many);
  check("large crowds are", n_many == 3);
}

}  // namespace

void test_choices() {
  Random random(7);
  const int vocab = 5003;
  const std::vector<std::int32_t> never = {3, 900};
  // Ties, ids that are never chosen, numbers that are none.
  std::vector<float> odd = random.normals(std::size_t(6) * vocab);
  odd[17] = odd[4000] = 9;
  odd[vocab + 3] = 20;
  odd[vocab + 5] = NAN;
  odd[2 * vocab + vocab - 1] = 30;
  for (int i = 0; i < vocab; ++i) odd[std::size_t(3) * vocab + std::size_t(i)] = -INFINITY;
  odd[4 * vocab + 7] = INFINITY;
  for (int i = 0; i < vocab; ++i) odd[std::size_t(5) * vocab + std::size_t(i)] = -INFINITY;
  odd[5 * vocab + 4999] = -3;
  const TestRow plain = drawn(0, 0, 0, 1, 0), cold = drawn(0.5, 0.7f, 40, 0.95f, 0.05f);
  run("largest", odd, vocab, vocab - 1, never, {plain, plain, plain, plain, plain, plain});
  run("odd rows drawn", odd, vocab, vocab - 1, never, {cold, cold, cold, cold, cold, cold});
  run("mixed", odd, vocab, vocab - 1, {}, {plain, cold, plain, cold, cold, plain});

  // Several changes of one id, and of ids that are never chosen.
  std::vector<TestRow> changed = {plain, cold, drawn(0.25, 1, 0, 1, 0)};
  for (TestRow& row : changed) {
    for (int id = 0; id < vocab; id += 1 + static_cast<int>(random.next() % 11)) {
      row.changes.push_back({.id = id, .bias = random.normal()});
      if (id % 2 == 0) row.changes.push_back({.id = id, .penalty = 1.3f});
      if (id % 3 == 0) row.changes.push_back({.id = id, .less = 0.4f});
    }
    row.changes.push_back({.id = vocab - 1, .bias = 50});
  }
  run("changes", random.normals(std::size_t(3) * vocab, 2), vocab, vocab - 1, never, changed);

  // Each filter alone and together, over the whole range of draws.
  for (const Filter& f : {Filter{1, 0, 1, 0}, Filter{0.6f, 40, 1, 0}, Filter{1, 0, 0.9f, 0},
                          Filter{1, 0, 1, 0.02f}, Filter{0.8f, 50, 0.8f, 0.01f},
                          Filter{1.5f, vocab, 0.5f, 0.1f}, Filter{1, 1, 1, 0},
                          Filter{0.01f, 5, 0.9f, 0}, Filter{3, 7, 0.99f, 0.9f}}) {
    std::vector<TestRow> rows;
    for (const double u : {0.0, 0.1, 0.37, 0.5, 0.77, 0.99, 0.9999999})
      rows.push_back(drawn(u, f.temperature, f.top_k, f.top_p, f.min_p));
    run("filters", random.normals(rows.size() * std::size_t(vocab), 2.5f), vocab, vocab - 3, never,
        rows);
  }
  // Equal logits: rank is the id's; and more of them than are ranked.
  run("equal", std::vector<float>(std::size_t(2) * vocab, 0.5f), vocab, vocab, never,
      {drawn(0.6, 1, 0, 1, 0), drawn(0.6, 1, 40, 1, 0)});
  // Pieces that a block weighs in one round, and in two.
  for (const int large : {248320, 300000})
    run("large " + std::to_string(large), random.normals(std::size_t(3) * std::size_t(large), 3),
        large, large, never,
        {drawn(0.4, 0.7f, 0, 0.8f, 0), drawn(0.4, 1, 0, 1, 0), drawn(0.9, 1, 20, 1, 0)});
  test_crowded(random);
}

}  // namespace tessera::gpu::bench
