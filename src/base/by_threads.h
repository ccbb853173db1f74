// by_threads: one piece of work done by several threads, which share it out among themselves.
//
//   std::atomic<std::size_t> next{0};
//   TESSERA_TRY(by_threads(8, [&](const std::atomic<bool>& failed) -> Status {
//     for (std::size_t i = next++; i < tasks.size() && !failed; i = next++) TESSERA_TRY(run(i));
//     return {};
//   }));
//
// The caller is one of them. Returns when all have ended, with the error of the first that failed;
// `failed` is true from then on, so that the others end early. Where the system does not start so
// many threads none goes on, as where one finds no memory: ErrorCode::exhausted.
#pragma once

#include <atomic>
#include <functional>

#include "base/result.h"

namespace tessera {

Status by_threads(int threads, const std::function<Status(const std::atomic<bool>& failed)>& work);

}  // namespace tessera
