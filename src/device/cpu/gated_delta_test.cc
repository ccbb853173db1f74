#include "device/cpu/gated_delta.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "device/cpu/vector_ops.h"

namespace tessera::cpu {
namespace {

std::size_t as_index(std::int64_t value) {
  return static_cast<std::size_t>(value);
}

enum class Decay { none, mild, strong, extreme, mixed };
const Decay kDecays[] = {Decay::none, Decay::mild, Decay::strong, Decay::extreme, Decay::mixed};

// One sequence of a layer: rows of [q | k | v] as they leave the convolution, q and k normalised.
struct Layer {
  int key_heads, value_heads, dim_k, dim_v, rows;
  std::vector<float> qkv, g, beta;
  std::vector<float> state;  // initial, in panels

  int width() const { return 2 * key_heads * dim_k + value_heads * dim_v; }
  const float* q(int row, int head) const {
    return qkv.data() + as_index(row) * as_index(width()) + head % key_heads * dim_k;
  }
  const float* k(int row, int head) const { return q(row, head) + key_heads * dim_k; }
  const float* v(int row, int head) const {
    return qkv.data() + as_index(row) * as_index(width()) + 2 * key_heads * dim_k + head * dim_v;
  }
  float gate(const std::vector<float>& of, int row, int head) const {
    return of[as_index(row * value_heads + head)];
  }
  std::size_t state_size() const { return as_index(dim_k * dim_v); }
};

// Place of S[i][c] within a head's state.
std::size_t place(const Layer& l, int i, int c) {
  return as_index((c / kDeltaPanel * l.dim_k + i) * kDeltaPanel + c % kDeltaPanel);
}

Layer make_layer(int key_heads, int ratio, int dim_k, int dim_v, int rows, Decay decay) {
  Layer l{key_heads, key_heads * ratio, dim_k, dim_v, rows, {}, {}, {}, {}};
  std::mt19937 engine(static_cast<unsigned>(rows * 100 + dim_k + dim_v));
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::uniform_real_distribution<float> unit(0.0f, 1.0f);
  l.qkv.resize(as_index(rows) * as_index(l.width()));
  for (float& x : l.qkv) x = normal(engine);
  for (int t = 0; t < rows; ++t) {
    float* row = l.qkv.data() + as_index(t) * as_index(l.width());
    for (int h = 0; h < 2 * key_heads; ++h) {
      vector_kernels(Isa::portable).l2_normalize(row + h * dim_k, 1e-6f, dim_k, row + h * dim_k);
    }
  }
  for (int i = 0; i < rows * l.value_heads; ++i) {
    const float u = unit(engine);
    const Decay kind = decay == Decay::mixed ? kDecays[engine() % 4] : decay;
    l.g.push_back(kind == Decay::none     ? 0.0f
                  : kind == Decay::mild   ? -0.1f * u
                  : kind == Decay::strong ? -5.0f * u
                                          : -316.0f * u);
    l.beta.push_back(unit(engine));
  }
  l.state.resize(l.state_size() * as_index(l.value_heads));
  for (float& x : l.state) x = normal(engine);
  return l;
}

DeltaTask delta_task(const Layer& l, int head, int first, int rows, float* state, float* out) {
  DeltaTask task;
  task.dim_k = l.dim_k;
  task.dim_v = l.dim_v;
  task.rows = rows;
  task.q = l.q(first, head);
  task.k = l.k(first, head);
  task.v = l.v(first, head);
  task.q_stride = task.k_stride = task.v_stride = l.width();
  task.g = l.g.data() + first * l.value_heads + head;
  task.beta = l.beta.data() + first * l.value_heads + head;
  task.gate_stride = l.value_heads;
  task.q_scale = 1.0f / std::sqrt(static_cast<float>(l.dim_k));
  task.state = state + as_index(head) * l.state_size();
  task.out = out + (first * l.value_heads + head) * l.dim_v;
  task.out_stride = l.value_heads * l.dim_v;
  return task;
}

struct Outcome {
  std::vector<float> out, state;
};
struct Exact {
  std::vector<double> out, state;
};

Exact delta_reference(const Layer& l) {
  Exact exact{std::vector<double>(as_index(l.rows * l.value_heads * l.dim_v)),
              std::vector<double>(l.state.begin(), l.state.end())};
  for (int h = 0; h < l.value_heads; ++h) {
    double* s = exact.state.data() + as_index(h) * l.state_size();
    for (int t = 0; t < l.rows; ++t) {
      const double decay = std::exp(static_cast<double>(l.gate(l.g, t, h)));
      const double beta = l.gate(l.beta, t, h);
      const float *q = l.q(t, h), *k = l.k(t, h), *v = l.v(t, h);
      for (int c = 0; c < l.dim_v; ++c) {
        double p = 0;
        for (int i = 0; i < l.dim_k; ++i) p += (s[place(l, i, c)] *= decay) * k[i];
        const double delta = beta * (v[c] - p);
        double o = 0;
        for (int i = 0; i < l.dim_k; ++i) o += (s[place(l, i, c)] += k[i] * delta) * q[i];
        exact.out[as_index((t * l.value_heads + h) * l.dim_v + c)] =
            o / std::sqrt(static_cast<double>(l.dim_k));
      }
    }
  }
  return exact;
}

void expect_close(const std::vector<float>& got, const std::vector<double>& exact, double error) {
  for (std::size_t i = 0; i < exact.size(); ++i) {
    ASSERT_NEAR(got[i], exact[i], error * (1.0 + std::fabs(exact[i]))) << "at " << i;
  }
}

class GatedDelta : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!isa_supported(GetParam())) GTEST_SKIP() << isa_name(GetParam()) << " is not available";
    kernels = &delta_kernels(GetParam());
  }

  // Runs all heads over the rows in pieces of the given lengths, repeated.
  Outcome run(const Layer& l, bool chunked, const std::vector<int>& pieces) {
    Outcome o{std::vector<float>(as_index(l.rows * l.value_heads * l.dim_v) + 1, 777.0f), l.state};
    std::vector<float> scratch(delta_chunk_scratch_floats(l.dim_k, l.dim_v), NAN);
    for (int h = 0; h < l.value_heads; ++h) {
      std::size_t piece = 0;
      for (int first = 0; first < l.rows;) {
        const int rows = std::min(pieces[piece++ % pieces.size()], l.rows - first);
        const DeltaTask task = delta_task(l, h, first, rows, o.state.data(), o.out.data());
        if (chunked) {
          kernels->chunked(task, scratch.data());
        } else {
          kernels->recurrent(task);
        }
        first += rows;
      }
    }
    EXPECT_EQ(o.out.back(), 777.0f);
    return o;
  }

  const DeltaKernels* kernels = nullptr;
};

TEST_P(GatedDelta, BothFormsMatchDoubleOnOutputsAndState) {
  struct Shape {
    int key_heads, ratio, dim_k, dim_v;
  };
  for (const Shape& s : {Shape{2, 1, 16, 16}, Shape{2, 2, 32, 64}, Shape{2, 3, 128, 128},
                         Shape{1, 2, 48, 80}, Shape{1, 1, 64, 16}}) {
    for (const int rows : {1, 2, 63, 64, 65, 150}) {
      if (s.dim_k == 128 && rows > 2 && rows != 65) continue;  // the same code, much slower
      for (const Decay decay : kDecays) {
        const Layer l = make_layer(s.key_heads, s.ratio, s.dim_k, s.dim_v, rows, decay);
        const Exact exact = delta_reference(l);
        for (const bool chunked : {false, true}) {
          SCOPED_TRACE(std::string(chunked ? "chunked" : "recurrent") + " rows " +
                       std::to_string(rows) + " dim_k " + std::to_string(s.dim_k) + " decay " +
                       std::to_string(static_cast<int>(decay)));
          const Outcome o = run(l, chunked, {rows});
          expect_close(o.out, exact.out, 2e-5);
          expect_close(o.state, exact.state, 2e-5);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(GatedDelta, ChunkedMatchesWhereverItIsCut) {
  const Layer l = make_layer(1, 3, 32, 48, 200, Decay::mixed);
  const Exact exact = delta_reference(l);
  for (const std::vector<int>& pieces : {std::vector<int>{1}, {5, 64, 17}, {63, 65}, {100}}) {
    const Outcome o = run(l, true, pieces);
    expect_close(o.out, exact.out, 2e-5);
    expect_close(o.state, exact.state, 2e-5);
  }
}

TEST_P(GatedDelta, RecurrentIsBitwiseIndependentOfCuts) {
  for (const Decay decay : kDecays) {
    const Layer l = make_layer(2, 2, 48, 80, 90, decay);
    const Outcome whole = run(l, false, {90});
    for (const std::vector<int>& pieces : {std::vector<int>{1}, {2, 3, 11}, {64}, {89}}) {
      const Outcome cut = run(l, false, pieces);
      EXPECT_EQ(whole.out, cut.out);
      EXPECT_EQ(whole.state, cut.state);
    }
  }
}

TEST_P(GatedDelta, ManyRowsOfExtremeDecayStayExact) {
  // |c| reaches thousands within a chunk while single differences are small.
  Layer l = make_layer(1, 1, 32, 32, 200, Decay::mild);
  for (std::size_t i = 0; i < l.g.size(); i += 16) l.g[i] = -300.0f;
  const Exact exact = delta_reference(l);
  expect_close(run(l, true, {200}).out, exact.out, 2e-5);
  expect_close(run(l, true, {200}).state, exact.state, 2e-5);
}

TEST_P(GatedDelta, GatesFollowTheFormula) {
  std::mt19937 engine(4);
  std::normal_distribution<float> normal(0.0f, 8.0f);
  for (const int n : {1, 3, 16, 32, 47}) {
    std::vector<float> alpha, bias, a, logits;
    for (int i = 0; i < n; ++i) {
      alpha.push_back(normal(engine));
      bias.push_back(normal(engine));
      a.push_back(-std::fabs(normal(engine)));
      logits.push_back(normal(engine));
    }
    std::vector<float> g(as_index(n) + 1, 777.0f), beta(as_index(n) + 1, 777.0f);
    kernels->gates(alpha.data(), bias.data(), a.data(), logits.data(), n, g.data(), beta.data());
    for (std::size_t i = 0; i < as_index(n); ++i) {
      const double t = static_cast<double>(alpha[i] + bias[i]);
      const double step = t > 20 ? t : std::log1p(std::exp(t));
      EXPECT_NEAR(g[i], a[i] * step, 1e-6 * std::fabs(a[i] * step));
      EXPECT_NEAR(beta[i], 1 / (1 + std::exp(-static_cast<double>(logits[i]))), 1e-6);
    }
    EXPECT_EQ(g.back(), 777.0f);
    EXPECT_EQ(beta.back(), 777.0f);
  }
}

// Runs the convolution over all rows in pieces, channels in two halves.
Outcome convolve(const DeltaKernels& kernels, int width, int channels, int rows, int piece,
                 const std::vector<float>& x, const std::vector<float>& taps,
                 std::vector<float> history) {
  Outcome o{std::vector<float>(as_index(rows * channels), 777.0f), std::move(history)};
  for (int first = 0; first < rows; first += piece) {
    ConvTask task;
    task.width = width;
    task.rows = std::min(piece, rows - first);
    task.channels = channels;
    task.taps = taps.data();
    task.x = x.data() + first * channels;
    task.x_stride = task.out_stride = channels;
    task.history = o.state.data();
    task.out = o.out.data() + first * channels;
    task.end_channel = channels / 3;
    kernels.conv_silu(task);
    task.first_channel = channels / 3;
    task.end_channel = channels;
    kernels.conv_silu(task);
  }
  return o;
}

TEST_P(GatedDelta, ConvolutionCarriesItsHistory) {
  std::mt19937 engine(6);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  auto random = [&](int n) {
    std::vector<float> x(as_index(n));
    for (float& v : x) v = normal(engine);
    return x;
  };
  for (const int width : {1, 2, 4, 5}) {
    const int channels = 53, rows = 13;
    const auto x = random(rows * channels), taps = random(channels * width);
    const auto history = random((width - 1) * channels);
    std::vector<float> transposed(taps.size());
    transpose_taps(taps.data(), {.channels = channels, .width = width}, transposed.data());
    auto input = [&](int t, int c) {
      return t >= 0 ? x[as_index(t * channels + c)]
                    : history[as_index((t + width - 1) * channels + c)];
    };
    const Outcome whole = convolve(*kernels, width, channels, rows, rows, x, transposed, history);
    for (int t = 0; t < rows; ++t) {
      for (int c = 0; c < channels; ++c) {
        double sum = 0;
        for (int j = 0; j < width; ++j) {
          sum += static_cast<double>(taps[as_index(c * width + j)]) * input(t - width + 1 + j, c);
        }
        ASSERT_NEAR(whole.out[as_index(t * channels + c)], sum / (1 + std::exp(-sum)), 2e-6);
      }
    }
    for (int i = 0; i + 1 < width; ++i) {
      for (int c = 0; c < channels; ++c) {
        ASSERT_EQ(whole.state[as_index(i * channels + c)], input(rows - width + 1 + i, c));
      }
    }
    for (const int piece : {1, 2, 3, 7}) {
      const Outcome cut = convolve(*kernels, width, channels, rows, piece, x, transposed, history);
      EXPECT_EQ(cut.out, whole.out);
      EXPECT_EQ(cut.state, whole.state);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, GatedDelta, ::testing::Values(Isa::portable, Isa::avx2, Isa::avx512),
                         [](const auto& param) { return std::string(isa_name(param.param)); });

}  // namespace
}  // namespace tessera::cpu
