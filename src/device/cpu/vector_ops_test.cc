#include "device/cpu/vector_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

namespace tessera::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kUnwritten = 12345.0f;

class VectorOps : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!isa_supported(GetParam())) GTEST_SKIP() << isa_name(GetParam()) << " is not available";
    ops = &vector_kernels(GetParam());
  }

  std::vector<float> random(std::int64_t n, float spread = 1.0f) {
    std::normal_distribution<float> normal(0.0f, spread);
    std::vector<float> x(static_cast<std::size_t>(n));
    for (float& v : x) v = normal(engine);
    return x;
  }

  const VectorKernels* ops = nullptr;
  std::mt19937 engine{7};
};

std::int64_t length(const std::vector<float>& x) {
  return static_cast<std::int64_t>(x.size());
}

// Distance in units of the last place of the exact value.
double ulps(float got, double exact) {
  if (std::isinf(exact) || static_cast<float>(exact) == got) return 0;
  const float rounded = static_cast<float>(exact);
  if (std::isinf(rounded)) return std::isinf(got) ? 0 : 1e9;
  const double unit = std::max(
      static_cast<double>(std::nextafter(std::fabs(rounded), kInf)) - std::fabs(rounded), 1.4e-45);
  return std::fabs(got - exact) / unit;
}

void expect_near(const std::vector<float>& got, const std::vector<double>& exact, double relative,
                 double absolute = 1e-30) {
  ASSERT_GE(got.size(), exact.size());
  for (std::size_t i = 0; i < exact.size(); ++i) {
    ASSERT_NEAR(got[i], exact[i], relative * std::fabs(exact[i]) + absolute) << "at " << i;
  }
}

using Lengths = std::vector<std::int64_t>;
const Lengths kLengths = {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 129, 1000};

TEST_P(VectorOps, NormsMatchDoubleAndTouchNothingElse) {
  for (const std::int64_t n : kLengths) {
    const auto x = random(n, 3.0f), w = random(n), z = random(n);
    std::vector<float> out(static_cast<std::size_t>(n) + 1, kUnwritten);
    double squares = 0;
    for (const float v : x) squares += static_cast<double>(v) * v;
    const double rms = 1.0 / std::sqrt(squares / static_cast<double>(n) + 1e-6);
    std::vector<double> exact(x.size()), gated(x.size()), l2(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      exact[i] = x[i] * rms * w[i];
      gated[i] = exact[i] * z[i] / (1.0 + std::exp(-static_cast<double>(z[i])));
      l2[i] = x[i] / std::sqrt(squares + 0.5);
    }
    ops->rms_norm(x.data(), w.data(), 1e-6f, n, out.data());
    expect_near(out, exact, 2e-6);
    ops->gated_rms_norm(x.data(), w.data(), z.data(), 1e-6f, n, out.data());
    expect_near(out, gated, 3e-6);
    ops->l2_normalize(x.data(), 0.5f, n, out.data());
    expect_near(out, l2, 2e-6);
    for (std::size_t i = 0; i < x.size(); ++i) exact[i] = x[i] * rms;
    ops->rms_norm(x.data(), nullptr, 1e-6f, n, out.data());
    expect_near(out, exact, 2e-6);
    EXPECT_EQ(out.back(), kUnwritten);
  }
}

TEST_P(VectorOps, NormOfZerosIsZero) {
  std::vector<float> x(40, 0.0f), out(40, kUnwritten);
  ops->l2_normalize(x.data(), 1e-6f, 40, out.data());
  for (const float v : out) EXPECT_EQ(v, 0.0f);
}

TEST_P(VectorOps, ArithmeticAndGates) {
  for (const std::int64_t n : kLengths) {
    const auto a = random(n, 4.0f), b = random(n, 4.0f);
    auto check = [&](auto run, auto formula) {
      std::vector<float> out(static_cast<std::size_t>(n) + 1, kUnwritten);
      std::vector<double> exact(a.size());
      run(out.data());
      for (std::size_t i = 0; i < a.size(); ++i) {
        exact[i] = formula(static_cast<double>(a[i]), static_cast<double>(b[i]));
      }
      expect_near(out, exact, 2e-6, 1e-6);
      EXPECT_EQ(out.back(), kUnwritten);
    };
    auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
    check([&](float* o) { ops->add(a.data(), b.data(), n, o); },
          [](double x, double y) { return x + y; });
    check([&](float* o) { ops->multiply(a.data(), b.data(), n, o); },
          [](double x, double y) { return x * y; });
    check([&](float* o) { ops->scale(a.data(), 2.5f, n, o); },
          [](double x, double) { return 2.5 * x; });
    check(
        [&](float* o) {
          const WeightedRow rows[] = {{a.data(), 2.5f}, {nullptr, 7.0f}, {b.data(), -1.5f}};
          ops->sum_rows(rows, 3, nullptr, n, o);
        },
        [](double x, double y) { return 2.5 * x - 1.5 * y; });
    check([&](float* o) { ops->silu_mul(a.data(), b.data(), n, o); },
          [&](double x, double y) { return x * sigmoid(x) * y; });
    check([&](float* o) { ops->gelu_tanh_mul(a.data(), b.data(), n, o); },
          [](double x, double y) {
            return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))) * y;
          });
    check([&](float* o) { ops->sigmoid_mul(a.data(), b.data(), n, o); },
          [&](double x, double y) { return x * sigmoid(y); });
    check([&](float* o) { ops->softplus_mul(a.data(), b.data(), n, o); },
          [](double x, double y) { return x * std::log1p(std::exp(y)); });
    check([&](float* o) { ops->softcap(a.data(), 3.0f, n, o); },
          [](double x, double) { return 3 * std::tanh(x / 3); });
  }
}

// Of weighted rows in any order, shared out among partial sums in any way; and the same bits with
// every instruction set.
TEST_P(VectorOps, SumsOfRowsDoNotDependOnTheirOrder) {
  std::uniform_real_distribution<float> exponent(-30.0f, 8.0f);
  for (const std::int64_t n : kLengths) {
    std::vector<std::vector<float>> rows;
    std::vector<WeightedRow> terms;
    for (int i = 0; i < 9; ++i) {
      std::vector<float>& row = rows.emplace_back(random(n));
      for (float& x : row) x *= std::exp2(exponent(engine));
      terms.push_back({row.data(), random(1).front()});
    }
    std::vector<float> expected(static_cast<std::size_t>(n) + 1, kUnwritten);
    vector_kernels(Isa::portable).sum_rows(terms.data(), 9, nullptr, n, expected.data());
    for (std::size_t i = 0; i + 1 < expected.size(); ++i) {
      double exact = 0;
      for (const WeightedRow& term : terms) exact += double{term.x[i]} * term.weight;
      EXPECT_NEAR(expected[i], exact, std::fabs(exact) * 6e-8 + 9 * kSumUnit / 2);
    }
    EXPECT_EQ(expected.back(), kUnwritten);
    for (int round = 0; round < 20; ++round) {
      std::shuffle(terms.begin(), terms.end(), engine);
      const auto here = static_cast<std::int64_t>(engine() % 10);
      const auto there = static_cast<std::int64_t>(engine() % (10 - static_cast<unsigned>(here)));
      const WeightedRow* next = terms.data();
      std::vector<double> partial(expected.size(), kUnwritten), other(expected.size(), kUnwritten);
      ops->partial_sum(next, there, 0, n, partial.data());
      for (std::int64_t begin = 0, end; begin < n; begin = end) {
        end = std::min<std::int64_t>(n, begin + 1 + static_cast<std::int64_t>(engine() % 100));
        ops->partial_sum(next + there, 9 - here - there, begin, end, other.data());
      }
      EXPECT_EQ(other.back(), kUnwritten);
      for (std::size_t i = 0; i + 1 < partial.size(); ++i) partial[i] += other[i];
      std::vector<float> out(expected.size(), kUnwritten);
      ops->sum_rows(next + 9 - here, here, partial.data(), n, out.data());
      ASSERT_EQ(out, expected) << here << " here, " << there << " there";
    }
  }
}

// Then they are sums of double; what is no number spreads.
TEST_P(VectorOps, SumsOfRowsBeyondTheLimit) {
  for (const std::int64_t n : {1, 40}) {
    const std::vector<float> large(static_cast<std::size_t>(n), 3e7f),
        less(static_cast<std::size_t>(n), -2e7f), infinite(static_cast<std::size_t>(n), kInf);
    std::vector<float> out(static_cast<std::size_t>(n));
    const WeightedRow rows[] = {{large.data(), 0.3f}, {less.data(), 1.5f}, {infinite.data(), 1.0f}};
    ops->sum_rows(rows, 2, nullptr, n, out.data());
    for (const float x : out) EXPECT_FLOAT_EQ(x, 3e7f * 0.3f - 3e7f);
    ops->sum_rows(rows, 3, nullptr, n, out.data());
    for (const float x : out) EXPECT_EQ(x, kInf);
  }
}

TEST_P(VectorOps, SoftplusPerHead) {
  const auto x = random(3 * 24), gate = random(3, 5.0f);
  std::vector<float> out(x.size(), kUnwritten);
  ops->softplus_mul_heads(x.data(), gate.data(), 3, 24, out.data());
  std::vector<double> exact(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    exact[i] = x[i] * std::log1p(std::exp(static_cast<double>(gate[i / 24])));
  }
  expect_near(out, exact, 1e-6);
}

TEST_P(VectorOps, ElementaryFunctionsAreAccurateOverTheirRange) {
  struct Case {
    const char* name;
    void (*run)(const float*, std::int64_t, float*);
    double (*exact)(double);
    double least_ulps;
  };
  const Case cases[] = {
      {"exp", ops->exp, [](double x) { return std::exp(x); }, 2.0},
      {"tanh", ops->tanh, [](double x) { return std::tanh(x); }, 3.0},
      {"sigmoid", ops->sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }, 4.0},
      {"softplus", ops->softplus, [](double x) { return std::log1p(std::exp(x)); }, 4.0},
  };
  std::vector<float> x;
  for (double v = -87.0; v < 87.0; v += 0.00317) x.push_back(static_cast<float>(v));
  for (double v = 1e-30; v < 1.0; v *= 1.07) {
    x.push_back(static_cast<float>(v));
    x.push_back(static_cast<float>(-v));
  }
  for (const Case& c : cases) {
    std::vector<float> out(x.size());
    c.run(x.data(), length(x), out.data());
    double worst = 0;
    float where = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double error = ulps(out[i], c.exact(x[i]));
      if (error > worst) worst = error, where = x[i];
    }
    EXPECT_LE(worst, c.least_ulps) << c.name << " at " << where;
  }
}

TEST_P(VectorOps, ElementaryFunctionsAtTheEdges) {
  const std::vector<float> x = {-kInf, -3e38f, -1000, -104, -100, -88,   -0.0f,
                                0.0f,  1e-40f, 88.7f, 89,   1000, 3e38f, kInf};
  std::vector<float> out(x.size());
  ops->exp(x.data(), length(x), out.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_LE(ulps(out[i], std::exp(static_cast<double>(x[i]))), 2.0) << x[i];
  }
  EXPECT_EQ(out[0], 0.0f);
  EXPECT_EQ(out[6], 1.0f);
  EXPECT_EQ(out[7], 1.0f);
  for (auto run : {ops->tanh, ops->sigmoid, ops->softplus}) {
    run(x.data(), length(x), out.data());
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_FALSE(std::isnan(out[i])) << x[i];
  }
  EXPECT_EQ(out.back(), kInf);  // softplus
  EXPECT_EQ(out.front(), 0.0f);
}

TEST_P(VectorOps, Softmax) {
  for (const std::int64_t n : kLengths) {
    auto x = random(n, 10.0f);
    if (n > 2) x[1] = -kInf;
    std::vector<double> exact(x.size());
    const double top = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) sum += exact[i] = std::exp(x[i] - top);
    for (double& v : exact) v /= sum;
    ops->softmax(x.data(), n);
    expect_near(x, exact, 3e-6);
  }
  std::vector<float> nothing(21, -kInf);
  ops->softmax(nothing.data(), 21);
  for (const float v : nothing) EXPECT_EQ(v, 0.0f);
}

TEST_P(VectorOps, MaxSkipsNan) {
  for (const std::int64_t n : kLengths) {
    auto x = random(n);
    x[static_cast<std::size_t>(n) / 2] = kNan;
    float best = -kInf;
    for (const float v : x) best = v > best ? v : best;
    EXPECT_EQ(ops->max(x.data(), n), best);
  }
}

TEST_P(VectorOps, RopeTurnsTheFirstDimensionsOnly) {
  for (const int n_rot : {2, 8, 16, 34, 64, 128}) {
    const std::size_t half = static_cast<std::size_t>(n_rot) / 2;
    std::vector<float> inv_freq(half), cos(half), sin(half);
    for (std::size_t i = 0; i < half; ++i) {
      inv_freq[i] = static_cast<float>(std::pow(1e4, -2.0 * static_cast<double>(i) / n_rot));
    }
    fill_rope_row(inv_freq, 1.25f, 70000, cos.data(), sin.data());
    auto x = random(n_rot + 5);
    const auto before = x;
    ops->rope(x.data(), n_rot, cos.data(), sin.data());
    for (std::size_t i = 0; i < half; ++i) {
      const double angle = 70000.0f * inv_freq[i];
      const double c = 1.25 * std::cos(angle), s = 1.25 * std::sin(angle);
      EXPECT_NEAR(x[i], before[i] * c - before[i + half] * s, 1e-6);
      EXPECT_NEAR(x[i + half], before[i + half] * c + before[i] * s, 1e-6);
    }
    for (std::size_t i = 2 * half; i < x.size(); ++i) EXPECT_EQ(x[i], before[i]);
  }
}

// A pair with frequency zero does not turn.
TEST_P(VectorOps, RopeOfZeroFrequency) {
  const float zero = 0.0f;
  float cos = 0, sin = 1;
  fill_rope_row({&zero, 1}, 1.0f, 1 << 20, &cos, &sin);
  EXPECT_EQ(cos, 1.0f);
  EXPECT_EQ(sin, 0.0f);
}

struct Routed {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};
Routed route(const VectorKernels& ops, const MoeSpec& spec, const std::vector<float>& logits,
             const float* bias = nullptr, const float* scale = nullptr) {
  std::vector<float> scratch(2 * logits.size());
  Routed routed{std::vector<std::int32_t>(static_cast<std::size_t>(spec.n_used), -1),
                std::vector<float>(static_cast<std::size_t>(spec.n_used), kUnwritten)};
  route_row(ops, spec, logits.data(), bias, scale, scratch.data(), routed.ids.data(),
            routed.weights.data());
  return routed;
}

TEST_P(VectorOps, RoutesLikeASortedReference) {
  for (const Gating gating : {Gating::softmax, Gating::sigmoid}) {
    for (const bool normalize : {true, false}) {
      MoeSpec spec;
      spec.n_expert = 67;
      spec.n_used = 9;
      spec.router = {.gating = gating, .normalize = normalize, .weight_scale = 2.5f};
      const auto logits = random(67, 2.0f), bias = random(67, 0.05f), scale = random(67);
      std::vector<double> p(67);
      double sum = 0;
      for (std::size_t e = 0; e < 67; ++e) {
        const double v = logits[e];
        p[e] = gating == Gating::softmax ? std::exp(v) : 1 / (1 + std::exp(-v));
        sum += p[e];
      }
      if (gating == Gating::softmax) {
        for (double& v : p) v /= sum;
      }
      std::vector<std::int32_t> order(67);
      for (int e = 0; e < 67; ++e) order[static_cast<std::size_t>(e)] = e;
      std::sort(order.begin(), order.end(), [&](int a, int b) {
        const auto i = static_cast<std::size_t>(a), j = static_cast<std::size_t>(b);
        return p[i] + bias[i] > p[j] + bias[j];
      });
      double chosen = 0;
      for (std::size_t i = 0; i < 9; ++i) chosen += p[static_cast<std::size_t>(order[i])];
      const Routed got = route(*ops, spec, logits, bias.data(), scale.data());
      for (std::size_t i = 0; i < 9; ++i) {
        EXPECT_EQ(got.ids[i], order[i]);
        const auto e = static_cast<std::size_t>(order[i]);
        const double weight = p[e] * 2.5 * scale[e] / (normalize ? chosen : 1.0);
        EXPECT_NEAR(got.weights[i], weight, 1e-5 * std::fabs(weight));
      }
    }
  }
}

TEST_P(VectorOps, RoutingOrderIsTotal) {
  MoeSpec spec;
  spec.n_expert = 20;
  spec.n_used = 4;
  std::vector<float> logits(20, 1.0f);
  logits[0] = kNan;
  logits[7] = kInf;
  EXPECT_EQ(route(*ops, spec, logits).ids, (std::vector<std::int32_t>{7, 0, 1, 2}));
  std::fill(logits.begin(), logits.end(), kNan);
  for (const Gating gating : {Gating::softmax, Gating::sigmoid}) {
    spec.router.gating = gating;
    const Routed routed = route(*ops, spec, logits);
    EXPECT_EQ(routed.ids, (std::vector<std::int32_t>{0, 1, 2, 3}));
    for (const float w : routed.weights) EXPECT_TRUE(std::isfinite(w));
  }
  spec.n_used = 20;
  EXPECT_EQ(route(*ops, spec, random(20)).ids.size(), 20u);
}

INSTANTIATE_TEST_SUITE_P(Isa, VectorOps, ::testing::Values(Isa::portable, Isa::avx2, Isa::avx512),
                         [](const auto& param) { return std::string(isa_name(param.param)); });

}  // namespace
}  // namespace tessera::cpu
