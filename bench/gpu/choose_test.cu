// Choosing tokens against a plain version in double precision: changes, ties, logits that are no
// numbers, every filter alone and together.
#include <cstring>

#include "device/gpu/kernels/sizes.h"
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
// relative to the largest; empty where nothing can be chosen. `around`: those that are not a
// sixteenth of a natural logarithm lighter than the last one.
std::vector<Ranked> kept(const TestRow& row, std::vector<float> logits, int n_token,
                         const std::vector<std::int32_t>& never, int& around) {
  const int n_vocab = static_cast<int>(logits.size());
  for (const LogitChange& c : row.changes) {
    float& logit = logits[std::size_t(c.id)];
    logit += c.bias;
    logit = (logit > 0 ? logit / c.penalty : logit * c.penalty) - c.less;
  }
  std::vector<Ranked> tokens;
  float largest = -INFINITY;
  for (int id = 0; id < n_token; ++id)
    if (!suppressed(never, id) && logits[std::size_t(id)] > largest) largest = logits[std::size_t(id)];
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
  const std::vector<Ranked> all = tokens;
  if (top_k && std::size_t(c.top_k) < tokens.size()) tokens.resize(std::size_t(c.top_k));
  const double least = tokens.back().weight * std::exp(-1.0 / 16);
  around = static_cast<int>(std::count_if(all.begin(), all.end(), [&](const Ranked& token) {
    return token.weight >= least;
  }));
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

void run(const std::string& name, const std::vector<float>& logits, int n_vocab, int n_token,
         const std::vector<std::int32_t>& never, const std::vector<TestRow>& rows) {
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
  const std::vector<ChosenRow> got = out.get();
  for (int r = 0; r < n; ++r) {
    const std::vector<float> row(logits.begin() + std::ptrdiff_t(r) * n_vocab,
                                 logits.begin() + std::ptrdiff_t(r + 1) * n_vocab);
    int around = 0;
    const std::vector<Ranked> tokens = kept(rows[std::size_t(r)], row, n_token, never, around);
    const std::int32_t id = got[std::size_t(r)].id;
    const std::string what = name + " row " + std::to_string(r) + ": " + std::to_string(id);
    if (id == kNotChosen)
      check(what + " asks the host", around > kChoiceCandidates);
    else
      check(what, tokens.empty() ? id == kNoToken
                                 : is_drawn(tokens, rows[std::size_t(r)].choice.uniform, id));
  }
  const std::vector<float> restored = device_logits.get();
  check(name + ": restored",
        std::memcmp(restored.data(), logits.data(), logits.size() * sizeof(float)) == 0);
}

TestRow drawn(double uniform, float temperature, int top_k, float top_p, float min_p) {
  return {.choice = {.uniform = uniform,
                     .temperature = temperature,
                     .top_p = top_p,
                     .min_p = min_p,
                     .top_k = top_k}};
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
  struct Filter {
    float temperature;
    int top_k;
    float top_p, min_p;
  };
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
  const int large = 248320;
  run("large", random.normals(std::size_t(3) * large, 3), large, large, never,
      {drawn(0.4, 0.7f, 0, 0.8f, 0), drawn(0.4, 1, 0, 1, 0), drawn(0.9, 1, 20, 1, 0)});
}

}  // namespace tessera::gpu::bench
