// The fields that chat and completion requests share: sampling, stops, counts, streaming.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/fields.h"
#include "server/served_model.h"

namespace tessera::server {

struct RequestLimits {
  int max_choices = 64;  // n, or n times the prompts of a batch
  int max_stops = 16;
  int max_tools = 512;
  bool strict_params = false;  // unknown fields are errors
  bool strict_model = false;   // an unknown model name is an error
};

struct GenerationFields {
  SamplingParams sampling;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  int n = 1;
  std::optional<std::int64_t> max_tokens;
  bool stream = false;
  bool include_usage = false;
  std::vector<std::string> ignored;  // fields that were given and have no effect here
};

// Failures are left in `fields`.
GenerationFields read_generation_fields(FieldReader& fields, const ServedModel& model,
                                        const RequestLimits& limits);

}  // namespace tessera::server
