// Layers in a worker: what it is worth that two pieces of a prompt are under way at a boundary.
//
//   worker_layers_bench MODEL [PROMPT [CHUNK [REPEAT]]]
//
// One thread here has the first half of the layers, a worker of one thread at the other end of a
// TCP connection over the loopback has the rest. The prompt is read with one credit and with two,
// in turn, and by one thread alone; a line each, and the ratios of the medians.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "base/log.h"
#include "bench/split_model.h"

namespace tessera::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Arguments {
  std::string model;
  int prompt = 4096;
  int chunk = 256;
  int repeat = 5;
};

// Token ids do not matter, only that they differ.
TokenId token(int i, const ModelSpec& spec) {
  return static_cast<TokenId>((i * 7919LL + 13) % std::min(spec.n_token, spec.n_vocab));
}

Status read_prompt(Pipeline& pipeline, SequenceState& state, const Arguments& arguments) {
  pipeline.reset_slot(state.slot());
  for (int at = 0; at < arguments.prompt; at += arguments.chunk) {
    const int rows = std::min(arguments.chunk, arguments.prompt - at);
    std::vector<TokenId> tokens;
    for (int i = 0; i < rows; ++i) tokens.push_back(token(at + i, pipeline.spec()));
    state.extend(rows);
    const SequenceRows sequence{
        .n_rows = rows, .first_position = at, .slot = state.slot(), .pages = state.page_tables()};
    const std::int32_t last = rows - 1;
    const bool end = at + rows == arguments.prompt;
    TESSERA_TRY(pipeline.forward({.tokens = tokens,
                                  .sequences = {&sequence, 1},
                                  .logit_rows = {&last, end ? std::size_t{1} : 0}}));
    state.trim(at + rows);
  }
  return {};
}

// Seconds of a prompt; `credits` 0: by one thread of this process alone.
Result<double> run(const Arguments& arguments, const Model& model, int credits) {
  TESSERA_ASSIGN(auto split, SplitModel::open(model, {.link = credits > 0 ? Link::tcp : Link::none,
                                                      .context = arguments.prompt,
                                                      .chunk = arguments.chunk,
                                                      .credits = credits}));
  double seconds = 0;
  for (int warm = 0; warm < 2; ++warm) {
    TESSERA_ASSIGN(SequenceState state, split->pool().admit(arguments.prompt));
    const auto begin = Clock::now();
    TESSERA_TRY(read_prompt(split->pipeline(), state, arguments));
    seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  }
  return seconds;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int bench_main(const Arguments& arguments) {
  set_log_level(LogLevel::warn);
  const Result<Model> model = Model::open(arguments.model);
  CHECK(model.ok(), "{}", model.error().message);
  fmt::print("prompt {} in chunks of {}; seconds by one thread, by two with one credit, with two\n",
             arguments.prompt, arguments.chunk);
  std::vector<double> seconds[3];
  for (int i = 0; i < arguments.repeat; ++i) {
    for (int credits = 0; credits < 3; ++credits) {
      const Result<double> took = run(arguments, *model, credits);
      CHECK(took.ok(), "{}", took.error().message);
      seconds[credits].push_back(*took);
      fmt::print("{:>10.3f}", *took);
      std::fflush(stdout);
    }
    fmt::print("\n");
  }
  const double alone = median(seconds[0]), one = median(seconds[1]), two = median(seconds[2]);
  fmt::print(
      "two credits against one {:.3f}; two shards against one thread: {:.2f} with one, {:.2f} "
      "with two\n",
      one / two, alone / one, alone / two);
  return 0;
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: worker_layers_bench MODEL [PROMPT [CHUNK [REPEAT]]]\n");
    return 2;
  }
  tessera::bench::Arguments arguments{.model = argv[1]};
  if (argc > 2) arguments.prompt = std::atoi(argv[2]);
  if (argc > 3) arguments.chunk = std::atoi(argv[3]);
  if (argc > 4) arguments.repeat = std::atoi(argv[4]);
  return tessera::bench::bench_main(arguments);
}
