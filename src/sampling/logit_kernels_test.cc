#include "sampling/logit_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace tessera {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> random_values(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(-3.0f, 9.0f);
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

TEST(LogitKernels, AgreeWithDouble) {
  for (const LogitKernels* kernels : runnable_logit_kernels()) {
    SCOPED_TRACE(kernels->name);
    for (std::size_t n : {1u, 5u, 16u, 17u, 255u, 1000u}) {
      const std::vector<float> values = random_values(n, static_cast<unsigned>(n));
      const float max = *std::max_element(values.begin(), values.end());
      EXPECT_EQ(kernels->max(values.data(), n), max);
      std::vector<float> weights(n);
      const float temperature = 0.7f;
      kernels->weigh(values.data(), n, max, temperature, weights.data());
      double sum_exp = 0.0;
      double sum = 0.0;
      for (std::size_t i = 0; i < n; ++i) {
        const float x = (values[i] - max) / temperature;
        const double expected = std::exp(static_cast<double>(x));
        EXPECT_NEAR(weights[i], expected, 2e-7 * expected + 1e-37);
        sum_exp += std::exp(static_cast<double>(values[i] - max));
        sum += static_cast<double>(weights[i]);
      }
      EXPECT_NEAR(kernels->sum_exp(values.data(), n, max), sum_exp, 1e-6 * sum_exp);
      EXPECT_NEAR(kernels->sum(weights.data(), n), sum, 1e-6 * sum);
    }
  }
}

TEST(LogitKernels, AreTheSameBits) {
  const std::vector<float> values = random_values(4099, 7);
  std::vector<float> first(values.size());
  std::vector<float> other(values.size());
  const auto all = runnable_logit_kernels();
  const float max = all[0]->max(values.data(), values.size());
  all[0]->weigh(values.data(), values.size(), max, 1.3f, first.data());
  for (const LogitKernels* kernels : all) {
    SCOPED_TRACE(kernels->name);
    kernels->weigh(values.data(), values.size(), max, 1.3f, other.data());
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(std::bit_cast<unsigned>(first[i]), std::bit_cast<unsigned>(other[i]));
    EXPECT_EQ(kernels->sum_exp(values.data(), values.size(), max),
              all[0]->sum_exp(values.data(), values.size(), max));
    EXPECT_EQ(kernels->sum(first.data(), first.size()), all[0]->sum(first.data(), first.size()));
  }
}

TEST(LogitKernels, NanIsNothing) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const LogitKernels* kernels : runnable_logit_kernels()) {
    SCOPED_TRACE(kernels->name);
    std::vector<float> values(33, nan);
    EXPECT_EQ(kernels->max(values.data(), values.size()), -kInf);
    values[20] = 1.0f;
    values[32] = -kInf;
    EXPECT_EQ(kernels->max(values.data(), values.size()), 1.0f);
    std::vector<float> weights(values.size());
    kernels->weigh(values.data(), values.size(), 1.0f, 1.0f, weights.data());
    for (std::size_t i = 0; i < weights.size(); ++i) EXPECT_EQ(weights[i], i == 20 ? 1.0f : 0.0f);
    EXPECT_EQ(kernels->sum_exp(values.data(), values.size(), 1.0f), 1.0);
    EXPECT_EQ(kernels->max(values.data(), 0), -kInf);
  }
}

}  // namespace
}  // namespace tessera
