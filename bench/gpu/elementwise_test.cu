// Embedding, a step's inputs and the tables of rotations against scalar arithmetic.
#include "device/token_choice.h"
#include "harness.h"

namespace tessera::gpu::bench {
namespace {

void test_embed(BlockType type, int rows, int cols) {
  TestMatrix table(type, rows, cols, 77);
  const std::vector<std::int32_t> tokens = {0, rows - 1, rows / 2, 7 % rows};
  DeviceArray<std::int32_t> dtokens(tokens);
  DeviceArray<float> out(tokens.size() * std::size_t(cols));
  Runner runner(256);
  GPU_OK(embed(runner.launch, {.table = table.matrix,
                               .tokens = dtokens.data(),
                               .rows = int(tokens.size()),
                               .scale = 2.0f,
                               .out = out.data()}));
  runner.sync();
  std::vector<double> want;
  for (const int token : tokens)
    for (int c = 0; c < cols; ++c) want.push_back(2.0 * double(table.row(token)[c]));
  compare(std::string("embed ") + block_type_name(type), out.get(), want, 1e-6);
}

// Rows 0 to 47 in one place and the others in another.
void test_embed_parts(BlockType type, int cols) {
  constexpr int kFirst = 48, kRest = 45;
  TestMatrix first(type, kFirst, cols, 77), rest(type, kRest, cols, 78);
  const std::vector<std::int32_t> tokens = {kFirst, 0, kFirst - 1, kFirst + kRest - 1, kFirst + 9};
  DeviceArray<std::int32_t> dtokens(tokens);
  DeviceArray<float> out(tokens.size() * std::size_t(cols));
  out.poison();
  Runner runner(256);
  GPU_OK(embed(runner.launch, {.table = first.matrix,
                               .rest = rest.matrix,
                               .tokens = dtokens.data(),
                               .rows = int(tokens.size()),
                               .out = out.data()}));
  runner.sync();
  std::vector<double> want;
  for (const int token : tokens)
    for (int c = 0; c < cols; ++c)
      want.push_back(token < kFirst ? first.row(token)[c] : rest.row(token - kFirst)[c]);
  compare(std::string("embed in two parts ") + block_type_name(type), out.get(), want, 1e-6);
}

// A step's inputs behind a kernel that reads the ones before, and the tokens of the step before.
void test_inputs() {
  const int n = 1000, cols = 64;
  Runner runner(256);
  const TestMatrix table(BlockType::F32, 20, cols, 77);
  DeviceArray<float> first(std::size_t(3) * cols), second(std::size_t(3) * cols);
  std::vector<std::int32_t> words(n);
  for (int i = 0; i < n; ++i) words[std::size_t(i)] = i % 20;
  const std::vector<std::int32_t> ahead = {-3, 7, -1}, chosen = {5, 1, kNoToken};
  DeviceArray<std::int32_t> from(words), to(std::size_t(n) + 24), ids(chosen), next(ahead);
  to.poison();
  const auto embed_rows = [&](DeviceArray<float>& out, const std::int32_t* tokens) {
    out.poison();
    GPU_OK(embed(runner.launch, {.table = table.matrix,
                                 .tokens = tokens,
                                 .chosen = ids.data(),
                                 .rows = 3,
                                 .out = out.data()}));
  };
  GPU_OK(copy_words(runner.launch, from.data(), to.data(), n));
  embed_rows(first, to.data());
  GPU_OK(copy_words(runner.launch, next.data(), to.data(), 3));
  embed_rows(second, to.data());
  runner.sync();
  const auto same = [&](DeviceArray<float>& rows, std::vector<int> tokens) {
    bool all = true;
    for (std::size_t i = 0; i < tokens.size(); ++i)
      for (int c = 0; c < cols; ++c)
        all &= rows.get()[i * cols + std::size_t(c)] == float(table.row(tokens[i])[std::size_t(c)]);
    return all;
  };
  check("inputs", same(first, {0, 1, 2}));
  check("tokens of the step before", same(second, {0, 7, 5}));
  check("behind the inputs",
        to.get()[3] == 3 && to.get()[n - 1] == (n - 1) % 20 && to.get()[n] != 0);
}

}  // namespace

void test_elementwise() {
  for (const BlockType type : all_block_types()) {
    const int cols = block_format(type).elems == 256 ? 512 : 96;
    test_embed(type, 100, cols);
    test_embed_parts(type, cols);
  }
  test_inputs();
  Runner runner(256);
  const int half = 32;
  std::vector<float> freq;
  for (int i = 0; i < half; ++i) freq.push_back(std::pow(1e7f, -float(i) / half));
  const std::vector<std::int32_t> position = {0, 1, 77777};
  DeviceArray<float> dfreq(freq), c(3 * half), s(3 * half);
  DeviceArray<std::int32_t> dposition(position);
  GPU_OK(rope_tables(runner.launch, {.inv_freq = dfreq.data(),
                                     .half = half,
                                     .magnitude = 1.5f,
                                     .position = dposition.data(),
                                     .rows = 3,
                                     .cos = c.data(),
                                     .sin = s.data()}));
  runner.sync();
  std::vector<double> want_c, want_s;
  for (const int p : position)
    for (const float f : freq) {
      const double angle = double(float(p) * f);
      want_c.push_back(1.5 * std::cos(angle));
      want_s.push_back(1.5 * std::sin(angle));
    }
  compare("rope cos", c.get(), want_c, 1e-6);
  compare("rope sin", s.get(), want_s, 1e-6);
}

}  // namespace tessera::gpu::bench
