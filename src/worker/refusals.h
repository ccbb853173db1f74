// Refusals: how many clients a worker has turned away, by the reason that REFUSE gives.
//
//   Refusals refusals;
//   log_warn("a client was {}", refuse_client(channel, refuse, after(1s), &refusals));
//   refusals.text();   // "2 busy, 1 authentication"; empty: none
//
// Any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "worker/messages.h"
#include "worker/transport.h"

namespace tessera::worker {

class Refusals {
 public:
  std::uint64_t count(RefuseReason reason) { return ++counts_[index(reason)]; }
  std::uint64_t of(RefuseReason reason) const { return counts_[index(reason)]; }
  std::string text() const;

 private:
  static std::size_t index(RefuseReason reason) { return static_cast<std::size_t>(reason); }
  std::array<std::atomic<std::uint64_t>, kMostRefuseReason + 1> counts_{};
};

// Tells the client, as far as that is possible, and counts it where `refusals` is not null. For
// the log: "refused (busy, 2 so far)".
std::string refuse_client(Channel& channel, const Refuse& refuse, Deadline deadline,
                          Refusals* refusals);

}  // namespace tessera::worker
