#include "worker/refusals.h"

#include <fmt/format.h>

namespace tessera::worker {

std::string Refusals::text() const {
  std::string text;
  for (std::size_t i = 1; i < counts_.size(); ++i)
    if (const std::uint64_t n = counts_[i]; n > 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", n,
                          refuse_reason_name(static_cast<RefuseReason>(i)));
  return text;
}

std::string refuse_client(Channel& channel, const Refuse& refuse, Deadline deadline,
                          Refusals* refusals) {
  (void)channel.send({.op = Op::refuse}, encode(refuse), deadline);  // it may be gone
  const char* reason = refuse_reason_name(refuse.reason);
  if (refusals == nullptr) return fmt::format("refused ({})", reason);
  return fmt::format("refused ({}, {} so far)", reason, refusals->count(refuse.reason));
}

}  // namespace tessera::worker
