// A worker of a real model that goes bad in the middle of its life, for tests:
//
//   fake_worker worker turns_HOW [MODEL] [--threads N] [--cpu-isa ISA] [--listen ADDRESS] ...
//
// It computes like `tessera worker` until SIGUSR1 comes, and from then on answers as HOW says:
// absurd (a frame that was not agreed), few (no rows), unasked (a result that nothing asked for),
// refusal (an ERROR), silence, exit, garbled (a bit of the result turns over on its way),
// garbledjob (a bit of the next job on its way here), nan (of the right shape), boasts (that jobs
// take an hour), lags (30 ms later than it would, until SIGUSR2 comes), never (it stays good).
// `loads_without_FILE` is good too, and loads for as long as there is such a file, saying every
// 20 ms that it does. A client after the one that saw it go bad finds it good again. Without a
// MODEL it takes its clients'.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tessera::worker {

inline constexpr std::string_view kLoadsWithout = "loads_without_";

// `words`: what follows the mode. Returns the exit status.
int turning_worker(const std::string& how, std::span<char*> words);

}  // namespace tessera::worker
