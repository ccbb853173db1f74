// What the experts of a request cost, as a member of its timings:
//
//   {"pairs":{"resident":9,"host":2,"worker":1},"calls":{"host":2,"worker":1},
//    "wait_ms":{"host":0.1,"worker":0.2},"hidden_ms":{"host":0.0,"worker":0.3},
//    "bytes_out":4096,"bytes_in":4096,"fallbacks":0}
#pragma once

#include <nlohmann/json.hpp>

#include "experts/expert_use.h"

namespace tessera::server {

// Counts are rounded: a request's share of a step need not be whole.
nlohmann::ordered_json expert_use_json(const ExpertUse& use);

}  // namespace tessera::server
