// What a second shard costs in decode: one shard of one thread, two shards of one thread each, and
// a worker that has the second one, over shared memory and over a socket.
//
//   split_decode_bench MODEL [ROUNDS [TOKENS [WARM]]]
//
// All four are loaded at once and write a few tokens each in turn, so that a machine that is slow
// for a while is slow for all. A line each: milliseconds of a token at deciles, and the median of
// the rounds' ratios to one shard. The first WARM tokens of a turn, which find threads asleep and
// caches cold, do not count.
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
  int rounds = 40;
  int tokens = 16;
  int warm = 4;
};

constexpr struct {
  Link link;
  const char* name;
} kSplits[] = {{Link::none, "one shard"},
               {Link::here, "two shards here"},
               {Link::shared, "a worker, shared memory"},
               {Link::unix_socket, "a worker, unix socket"}};

// One model as it is split, with the sequence that it goes on with.
struct Contender {
  std::unique_ptr<SplitModel> model;
  std::optional<SequenceState> state;
  int position = 0;
  std::vector<double> times;          // milliseconds, of every token that counts
  std::vector<double> round_medians;  // of a turn's tokens
};

double at_share(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

// Milliseconds of one token.
Result<double> step(Contender& contender) {
  Pipeline& pipeline = contender.model->pipeline();
  SequenceState& state = *contender.state;
  const TokenId token = 13 + contender.position * 7 % 200;
  state.extend(1);
  const SequenceRows sequence{.n_rows = 1,
                              .first_position = contender.position,
                              .slot = state.slot(),
                              .pages = state.page_tables()};
  const std::int32_t row = 0;
  const TokenChoice greedy;
  const auto begin = Clock::now();
  TESSERA_TRY(pipeline.forward({.tokens = {&token, 1},
                                .sequences = {&sequence, 1},
                                .logit_rows = {&row, 1},
                                .choices = {.rows = {&greedy, 1}}}));
  const std::chrono::duration<double, std::milli> took = Clock::now() - begin;
  state.trim(++contender.position);
  return took.count();
}

Status turn(Contender& contender, const Arguments& arguments) {
  std::vector<double> times;
  for (int i = 0; i < arguments.warm + arguments.tokens; ++i) {
    TESSERA_ASSIGN(const double took, step(contender));
    if (i >= arguments.warm) times.push_back(took);
  }
  contender.times.insert(contender.times.end(), times.begin(), times.end());
  contender.round_medians.push_back(at_share(std::move(times), 0.5));
  return {};
}

Status bench(const Arguments& arguments) {
  TESSERA_ASSIGN(const Model model, Model::open(arguments.model));
  const int context = arguments.rounds * (arguments.warm + arguments.tokens);
  std::vector<Contender> contenders;
  for (const auto& split : kSplits) {
    Contender& made = contenders.emplace_back();
    TESSERA_ASSIGN(made.model, SplitModel::open(model, {.link = split.link, .context = context}));
    TESSERA_ASSIGN(made.state, made.model->pool().admit(context));
    made.model->pipeline().reset_slot(made.state->slot());
  }
  for (int round = 0; round < arguments.rounds; ++round)
    for (Contender& contender : contenders) TESSERA_TRY(turn(contender, arguments));
  fmt::print("{:<24} {:>8} {:>8} {:>8} {:>8}   {}\n", "milliseconds a token", "10 %", "25 %",
             "50 %", "90 %", "speed against one shard: by 10 %, by 25 %, rounds' median");
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    const Contender& it = contenders[i];
    std::vector<double> ratios;
    for (std::size_t n = 0; n < it.round_medians.size(); ++n)
      ratios.push_back(contenders[0].round_medians[n] / it.round_medians[n]);
    const auto against = [&](double share) {
      return at_share(contenders[0].times, share) / at_share(it.times, share);
    };
    fmt::print("{:<24} {:8.3f} {:8.3f} {:8.3f} {:8.3f}   {:.3f} {:.3f} {:.3f}\n", kSplits[i].name,
               at_share(it.times, 0.1), at_share(it.times, 0.25), at_share(it.times, 0.5),
               at_share(it.times, 0.9), against(0.1), against(0.25), at_share(ratios, 0.5));
  }
  return {};
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: split_decode_bench MODEL [ROUNDS [TOKENS [WARM]]]\n");
    return 2;
  }
  tessera::set_log_level(tessera::LogLevel::warn);
  tessera::bench::Arguments arguments{.model = argv[1]};
  if (argc > 2) arguments.rounds = std::atoi(argv[2]);
  if (argc > 3) arguments.tokens = std::atoi(argv[3]);
  if (argc > 4) arguments.warm = std::atoi(argv[4]);
  const tessera::Status done = tessera::bench::bench(arguments);
  if (!done.ok()) fmt::print(stderr, "{}\n", done.error().message);
  return done.ok() ? 0 : 1;
}
