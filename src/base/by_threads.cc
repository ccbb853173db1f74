#include "base/by_threads.h"

#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/within_memory.h"

namespace tessera {

Status by_threads(int threads, const std::function<Status(const std::atomic<bool>& failed)>& work) {
  std::atomic<bool> failed{false};
  std::mutex mutex;  // result
  Status result;
  const auto run = [&](const auto& part) {
    Status done = within_memory(part, "this process");
    if (done) return;
    failed = true;
    const std::lock_guard lock(mutex);
    if (result) result = std::move(done);
  };
  const auto guarded = [&] { run([&] { return work(failed); }); };
  std::vector<std::jthread> started;
  run([&]() -> Status {
    try {
      for (int i = 1; i < threads; ++i) started.emplace_back(guarded);
    } catch (const std::system_error& error) {
      return Error::make(ErrorCode::exhausted, "cannot start {} threads: {}", threads - 1,
                         error.what());
    }
    return {};
  });
  if (!failed) guarded();
  started.clear();  // joins them
  return result;
}

}  // namespace tessera
