#include "device/cpu/vector_ops.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tessera::cpu {

extern const VectorKernels kVectorKernels_portable;
extern const VectorKernels kVectorKernels_avx2;
extern const VectorKernels kVectorKernels_avx512;

const VectorKernels& vector_kernels(Isa isa) {
  switch (isa) {
    case Isa::avx512:
      return kVectorKernels_avx512;
    case Isa::avx2:
      return kVectorKernels_avx2;
    case Isa::portable:
      break;
  }
  return kVectorKernels_portable;
}

void fill_rope_row(std::span<const float> inv_freq, float magnitude, std::int64_t position,
                   float* cos, float* sin) {
  for (std::size_t i = 0; i < inv_freq.size(); ++i) {
    const double angle = static_cast<float>(position) * inv_freq[i];
    cos[i] = static_cast<float>(std::cos(angle)) * magnitude;
    sin[i] = static_cast<float>(std::sin(angle)) * magnitude;
  }
}

namespace {

// Keeps the `used` best of `scores` in falling order; the lower id wins a tie because it is met
// first and only a greater score moves it.
void select_top(const float* scores, int count, int used, std::int32_t* ids) {
  int kept = 0;
  for (int e = 0; e < count; ++e) {
    if (kept == used && !(scores[e] > scores[ids[used - 1]])) continue;
    int place = kept < used ? kept++ : used - 1;
    for (; place > 0 && scores[e] > scores[ids[place - 1]]; --place) ids[place] = ids[place - 1];
    ids[place] = e;
  }
}

}  // namespace

void route_row(const VectorKernels& ops, const MoeSpec& spec, const float* logits,
               const float* bias, const float* expert_scale, float* scratch, std::int32_t* ids,
               float* weights) {
  constexpr float kLeastSum = 6.103515625e-5f;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kLargest = std::numeric_limits<float>::max();
  const int count = spec.n_expert;
  const int used = spec.n_used;
  float* probability = scratch;
  for (int e = 0; e < count; ++e) {
    probability[e] = std::isnan(logits[e]) ? -kInfinity : std::min(logits[e], kLargest);
  }
  if (spec.router.logit_softcap > 0) {
    ops.softcap(probability, spec.router.logit_softcap, count, probability);
  }
  if (spec.router.gating == Gating::softmax) {
    ops.softmax(probability, count);
  } else {
    ops.sigmoid(probability, count, probability);
  }

  const float* scores = probability;
  if (bias != nullptr) {
    float* biased = scratch + count;
    for (int e = 0; e < count; ++e) {
      const float score = probability[e] + bias[e];
      biased[e] = std::isnan(score) ? -kInfinity : score;
    }
    scores = biased;
  }
  select_top(scores, count, used, ids);

  float sum = 0;
  for (int i = 0; i < used; ++i) sum += weights[i] = probability[ids[i]];
  const float factor =
      spec.router.weight_scale / (spec.router.normalize ? std::max(sum, kLeastSum) : 1.0f);
  for (int i = 0; i < used; ++i) {
    weights[i] *= factor;
    if (expert_scale != nullptr) weights[i] *= expert_scale[ids[i]];
  }
}

}  // namespace tessera::cpu
