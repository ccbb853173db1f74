#include <cmath>

#include "engine/engine.h"

namespace tessera {
namespace {

// NaN is in no range.
Status check_range(const char* field, double value, double low, double high) {
  if (value >= low && value <= high) return {};
  return Error::make(ErrorCode::invalid, "{} is {}; it must be from {} to {}", field, value, low,
                     high);
}

}  // namespace

Status validate(const SamplingParams& params) {
  TESSERA_TRY(check_range("temperature", params.temperature, 0, 5));
  if (params.top_k < -1)
    return Error::make(ErrorCode::invalid, "top_k is {}; it must be positive, or 0 for off",
                       params.top_k);
  TESSERA_TRY(check_range("top_p", params.top_p, 0, 1));
  TESSERA_TRY(check_range("min_p", params.min_p, 0, 1));
  if (!(params.repetition_penalty > 0.0f && params.repetition_penalty <= 100.0f))
    return Error::make(ErrorCode::invalid,
                       "repetition_penalty is {}; it must be above 0 and at most 100",
                       params.repetition_penalty);
  if (params.repetition_window < 0)
    return Error::make(ErrorCode::invalid, "repetition_window is {}; it must not be negative",
                       params.repetition_window);
  TESSERA_TRY(check_range("frequency_penalty", params.frequency_penalty, -2, 2));
  TESSERA_TRY(check_range("presence_penalty", params.presence_penalty, -2, 2));
  for (const auto& [id, bias] : params.logit_bias) {
    if (id < 0)
      return Error::make(ErrorCode::invalid, "logit_bias names token {}; ids begin at 0", id);
    if (!(bias >= -100.0f && bias <= 100.0f))
      return Error::make(ErrorCode::invalid,
                         "logit_bias of token {} is {}; it must be from -100 to 100", id, bias);
  }
  return {};
}

const char* finish_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::cancelled:
      return "cancelled";
  }
  return "unknown";
}

}  // namespace tessera
