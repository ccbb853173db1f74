#include "worker/transfer_progress.h"

#include <algorithm>

#include "base/log.h"
#include "plan/plan.h"

namespace tessera::worker {
namespace {

constexpr auto kEvery = std::chrono::seconds(5);
constexpr std::uint64_t kWorthALine = 1 << 20;  // bytes

std::string text(std::uint64_t bytes) {
  return format_bytes(static_cast<std::int64_t>(bytes));
}

}  // namespace

void TransferProgress::update(std::uint64_t done, std::uint64_t total) {
  const Deadline now = Clock::now();
  if (!started_) {
    if (total < kWorthALine) return;
    started_ = true;
    begin_ = said_ = now;
    return log_info("{}: {}", what_, text(total));
  }
  if (now - said_ < kEvery) return;
  said_ = now;
  log_info("{}: {} of {} ({} %)", what_, text(done), text(total),
           100 * done / std::max<std::uint64_t>(1, total));
}

void TransferProgress::finish(std::uint64_t done) {
  if (!started_) return;
  const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  log_info("{}: done, {} in {:.1f} s ({:.2f} GB/s)", what_, text(done), seconds,
           static_cast<double>(done) / std::max(seconds, 1e-9) / 1e9);
  started_ = false;
}

}  // namespace tessera::worker
