#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/readers/parts.h"

namespace tessera {
namespace {

double turn(int pair, int n_rot, double base) {
  return std::pow(base, -2.0 * pair / n_rot);
}

struct Yarn {
  double factor;
  double original_context;
  double beta_fast;
  double beta_slow;
};

// The pair (a real number) that makes `turns` full turns over the original context.
double pair_with_turns(double turns, int n_rot, double base, const Yarn& yarn) {
  return n_rot * std::log(yarn.original_context / (2 * std::numbers::pi * turns)) /
         (2 * std::log(base));
}

RopeSpec yarn_rope(int n_rot, double base, const Yarn& yarn) {
  const double low = std::max(0.0, std::floor(pair_with_turns(yarn.beta_fast, n_rot, base, yarn)));
  const double high =
      std::min(n_rot - 1.0, std::ceil(pair_with_turns(yarn.beta_slow, n_rot, base, yarn)));
  RopeSpec rope{n_rot, {}, static_cast<float>(1 + 0.1 * std::log(yarn.factor))};
  for (int i = 0; i < n_rot / 2; ++i) {
    const double interpolated = std::clamp((i - low) / std::max(0.001, high - low), 0.0, 1.0);
    rope.inv_freq.push_back(static_cast<float>(turn(i, n_rot, base) *
                                               ((1 - interpolated) + interpolated / yarn.factor)));
  }
  return rope;
}

Result<float> scaling_factor(const Keys& keys) {
  TESSERA_ASSIGN(float factor, keys.positive({"rope.scaling.factor"}));
  if (factor < 1 || factor > 1e6f) {
    return keys.invalid("rope.scaling.factor", "{} is outside 1 to 1e6", factor);
  }
  return factor;
}

}  // namespace

Result<int> read_n_rot(const Keys& keys, Keys::Names names, const RotatedHead& head) {
  TESSERA_ASSIGN(int n_rot, keys.integer_or(names, head.fallback, {2, head.dim}));
  if (n_rot < 2 || n_rot % 2 != 0) {
    return Error::make(ErrorCode::invalid, "{} is {}; it must be even", keys.choose(names), n_rot);
  }
  return n_rot;
}

RopeSpec plain_rope(int n_rot, float base) {
  RopeSpec rope{n_rot, {}, 1.0f};
  rope.inv_freq.reserve(static_cast<std::size_t>(n_rot / 2));
  for (int i = 0; i < n_rot / 2; ++i) {
    rope.inv_freq.push_back(static_cast<float>(turn(i, n_rot, static_cast<double>(base))));
  }
  return rope;
}

Result<RopeSpec> scaled_rope(const Keys& keys, int n_rot, float base, int context_length,
                             ScalingDefaults defaults) {
  TESSERA_ASSIGN(std::string_view type,
                 keys.metadata().get_string_or(keys.full("rope.scaling.type"), "none"));
  if (type == "none" || type == "default" || type.empty()) return plain_rope(n_rot, base);
  if (type != "linear" && type != "yarn") {
    return Error::make(ErrorCode::unsupported, "{} is \"{}\"; supported are none, linear and yarn",
                       keys.full("rope.scaling.type"), type.substr(0, 64));
  }
  TESSERA_ASSIGN(float factor, scaling_factor(keys));
  // Converters write 1, and some the scaling factor by mistake; only 0 turns the ramp off.
  TESSERA_ASSIGN(float ext_factor,
                 keys.metadata().get_f32_or(keys.full("rope.scaling.yarn_ext_factor"), 1.0f));
  if (type == "linear" || ext_factor == 0) {
    RopeSpec rope = plain_rope(n_rot, base);
    for (float& frequency : rope.inv_freq) frequency /= factor;
    return rope;
  }
  if (!(base > 1)) return keys.invalid("rope.freq_base", "YaRN needs a base greater than 1");
  TESSERA_ASSIGN(int original, keys.integer_or({"rope.scaling.original_context_length"},
                                               context_length, {1, kMaxContext}));
  TESSERA_ASSIGN(float fast,
                 keys.positive_or({"rope.scaling.yarn_beta_fast", "rope.scaling.beta_fast"},
                                  defaults.beta_fast));
  TESSERA_ASSIGN(float slow,
                 keys.positive_or({"rope.scaling.yarn_beta_slow", "rope.scaling.beta_slow"},
                                  defaults.beta_slow));
  return yarn_rope(n_rot, static_cast<double>(base),
                   Yarn{static_cast<double>(factor), static_cast<double>(original),
                        static_cast<double>(fast), static_cast<double>(slow)});
}

}  // namespace tessera
