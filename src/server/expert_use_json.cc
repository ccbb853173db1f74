#include "server/expert_use_json.h"

#include <cmath>

namespace tessera::server {
namespace {

using Json = nlohmann::ordered_json;

long long whole(double count) {
  return std::llround(count);
}

Json by_executor(const ExpertUse& use, double ExpertUse::Executor::*member) {
  return {{"host", whole(use.host.*member)}, {"worker", whole(use.worker.*member)}};
}

Json milliseconds(const ExpertUse& use, double ExpertUse::Executor::*member) {
  return {{"host", use.host.*member / 1e3}, {"worker", use.worker.*member / 1e3}};
}

}  // namespace

Json expert_use_json(const ExpertUse& use) {
  return {{"pairs",
           {{"resident", whole(use.pairs_resident)},
            {"stream", whole(use.pairs_streamed)},
            {"host", whole(use.host.pairs)},
            {"worker", whole(use.worker.pairs)}}},
          {"calls", by_executor(use, &ExpertUse::Executor::calls)},
          {"wait_ms", milliseconds(use, &ExpertUse::Executor::wait_us)},
          {"hidden_ms", milliseconds(use, &ExpertUse::Executor::hidden_us)},
          {"bytes_streamed", whole(use.bytes_streamed)},
          {"bytes_out", whole(use.bytes_out)},
          {"bytes_in", whole(use.bytes_in)},
          {"fallbacks", whole(use.fallbacks)}};
}

}  // namespace tessera::server
