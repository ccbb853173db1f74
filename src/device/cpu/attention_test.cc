#include "device/cpu/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "quant/half.h"

namespace tessera::cpu {
namespace {

std::size_t index(std::int64_t value) {
  return static_cast<std::size_t>(value);
}

// A sequence in a pool whose pages are in random order and whose unwritten bytes are NaN.
struct Sequence {
  KvGeometry geometry;
  int heads = 1;
  int tokens = 0;
  std::int64_t page_stride = 0;
  std::int64_t layer_offset = 128;
  std::vector<std::byte> pool;
  std::vector<std::int32_t> pages;
  std::vector<float> q;                  // [tokens][kv_heads * heads][head_dim_k]
  std::vector<std::vector<float>> k, v;  // per token [kv_heads][dim], as stored

  float* query(int token, int head) {
    return q.data() + (index(token) * index(geometry.kv_heads * heads) + index(head)) *
                          index(geometry.head_dim_k);
  }
};

// Values that the KV type holds exactly: multiples of 1/64 up to 127/64, the largest in every group
// of 32, so that the reference needs no model of the rounding.
std::vector<float> storable(int n, std::mt19937* engine) {
  std::uniform_int_distribution<int> level(-127, 127);
  std::vector<float> x(index(n));
  for (float& value : x) value = static_cast<float>(level(*engine)) / 64.0f;
  for (std::size_t i = 0; i < x.size(); i += 32) x[i] = 127.0f / 64.0f;
  return x;
}

Sequence make_sequence(const KvGeometry& geometry, int heads, int tokens, unsigned seed) {
  Sequence s;
  s.geometry = geometry;
  s.heads = heads;
  s.tokens = tokens;
  std::mt19937 engine(seed);
  const int pages = (tokens + 63) / 64;
  s.page_stride = static_cast<std::int64_t>(kv_layer_page_bytes(geometry)) + 192;
  s.pool.assign(index(s.page_stride) * index(pages + 2), std::byte{0xff});
  s.pages.resize(index(pages));
  std::iota(s.pages.begin(), s.pages.end(), 1);
  std::shuffle(s.pages.begin(), s.pages.end(), engine);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  s.q.resize(index(tokens) * index(geometry.kv_heads * heads * geometry.head_dim_k));
  for (float& x : s.q) x = normal(engine);
  for (int t = 0; t < tokens; ++t) {
    s.k.push_back(storable(geometry.kv_heads * geometry.head_dim_k, &engine));
    s.v.push_back(storable(geometry.kv_heads * geometry.head_dim_v, &engine));
    std::byte* page = s.pool.data() + s.pages[index(t / 64)] * s.page_stride + s.layer_offset;
    store_kv(geometry, page, t % 64, s.k.back().data(), s.v.back().data());
  }
  return s;
}

struct Options {
  float scale = 0.1f;
  float softcap = 0.0f;
  int window = 0;
};

struct Output {
  std::vector<float> values;  // [rows][heads][head_dim_v] and one guard row
  int heads;
  int width;
  float* row(int r) { return values.data() + index(r) * index(heads * width); }
};

AttentionTask make_task(Sequence& s, int kv_head, int first, int rows, const Options& options,
                        Output* out) {
  out->heads = s.heads;
  out->width = s.geometry.head_dim_v;
  out->values.assign(index(rows + 1) * index(s.heads * out->width), 777.0f);
  AttentionTask task;
  task.geometry = s.geometry;
  task.pool = s.pool.data();
  task.page_stride = s.page_stride;
  task.layer_offset = s.layer_offset;
  task.pages = s.pages.data();
  task.kv_head = kv_head;
  task.heads = s.heads;
  task.rows = rows;
  task.first_position = first;
  task.q = s.query(first, kv_head * s.heads);
  task.q_row_stride = s.geometry.kv_heads * s.heads * s.geometry.head_dim_k;
  task.q_head_stride = s.geometry.head_dim_k;
  task.out = out->values.data();
  task.out_row_stride = s.heads * out->width;
  task.out_head_stride = out->width;
  task.scale = options.scale;
  task.softcap = options.softcap;
  task.window = options.window;
  return task;
}

std::vector<double> reference(Sequence& s, int kv_head, int head, int position,
                              const Options& options) {
  const int dk = s.geometry.head_dim_k, dv = s.geometry.head_dim_v;
  const float* q = s.query(position, kv_head * s.heads + head);
  const int oldest = options.window > 0 ? std::max(0, position - options.window + 1) : 0;
  std::vector<double> scores;
  for (int p = oldest; p <= position; ++p) {
    double dot = 0;
    for (int d = 0; d < dk; ++d) {
      dot += static_cast<double>(q[d]) * s.k[index(p)][index(kv_head * dk + d)];
    }
    dot *= options.scale;
    scores.push_back(options.softcap > 0 ? options.softcap * std::tanh(dot / options.softcap)
                                         : dot);
  }
  const double top = *std::max_element(scores.begin(), scores.end());
  std::vector<double> out(index(dv));
  double sum = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const double weight = std::exp(scores[i] - top);
    sum += weight;
    const auto& v = s.v[index(oldest) + i];
    for (int d = 0; d < dv; ++d) out[index(d)] += weight * v[index(kv_head * dv + d)];
  }
  for (double& x : out) x /= sum;
  return out;
}

class Attention : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!isa_supported(GetParam())) GTEST_SKIP() << isa_name(GetParam()) << " is not available";
    kernels = &attention_kernels(GetParam());
  }

  Output whole(Sequence& s, int kv_head, int first, int rows, const Options& options) {
    Output out;
    const AttentionTask task = make_task(s, kv_head, first, rows, options, &out);
    std::vector<float> scratch(attention_scratch_bytes(task) / 4, NAN);
    attend(*kernels, task, reinterpret_cast<std::byte*>(scratch.data()));
    return out;
  }

  void check(Sequence& s, int first, int rows, const Options& options, double error = 1e-5) {
    for (int kv_head = 0; kv_head < s.geometry.kv_heads; ++kv_head) {
      Output out = whole(s, kv_head, first, rows, options);
      for (int r = 0; r < rows; ++r) {
        for (int h = 0; h < s.heads; ++h) {
          const auto exact = reference(s, kv_head, h, first + r, options);
          for (int d = 0; d < out.width; ++d) {
            ASSERT_NEAR(out.row(r)[h * out.width + d], exact[index(d)], error)
                << "row " << r << " head " << h << " dim " << d;
          }
        }
      }
      EXPECT_EQ(out.row(rows)[0], 777.0f);
    }
  }

  const AttentionKernels* kernels = nullptr;
};

TEST_P(Attention, MatchesDoubleForEveryTypeAndGrouping) {
  for (const KvType type : {KvType::f16, KvType::f32, KvType::q8_0}) {
    for (const int heads : {1, 2, 3, 5, 6, 7, 8, 12}) {
      Sequence s = make_sequence({2, 32, 64, type}, heads, 150, 11);
      check(s, 149, 1, {});
      check(s, 60, 9, {});
    }
  }
}

TEST_P(Attention, MatchesDoubleForOddShapes) {
  const KvGeometry shapes[] = {{1, 16, 16, KvType::f16},   {1, 128, 128, KvType::f16},
                               {1, 256, 256, KvType::f16}, {1, 80, 48, KvType::f32},
                               {2, 96, 32, KvType::q8_0},  {1, 512, 512, KvType::f16}};
  for (const KvGeometry& shape : shapes) {
    Sequence s = make_sequence(shape, 4, 133, 5);
    check(s, 0, 133, {.scale = 0.05f});
  }
}

TEST_P(Attention, WindowsAndSoftcap) {
  Sequence s = make_sequence({1, 32, 32, KvType::f16}, 2, 300, 23);
  for (const int window : {1, 2, 8, 63, 64, 65, 128, 1000}) {
    check(s, 0, 200, {.window = window});
    check(s, 299, 1, {.window = window});
  }
  check(s, 180, 120, {.scale = 1.0f, .softcap = 5.0f, .window = 70});
}

TEST_P(Attention, LargeScoresDoNotOverflow) {
  Sequence s = make_sequence({1, 64, 32, KvType::f32}, 2, 200, 31);
  // Scores reach thousands, so their own rounding is worth 1e-3 in the weights.
  check(s, 150, 50, {.scale = 40.0f}, 1e-3);
}

TEST_P(Attention, PagesBeforeTheWindowMayBeGone) {
  Sequence s = make_sequence({1, 32, 32, KvType::f16}, 3, 300, 9);
  Output before = whole(s, 0, 260, 40, {.window = 100});
  s.pages[0] = s.pages[1] = -1;
  Output after = whole(s, 0, 260, 40, {.window = 100});
  EXPECT_EQ(std::memcmp(before.values.data(), after.values.data(), before.values.size() * 4), 0);
}

TEST_P(Attention, RowsDoNotDependOnHowTheyAreCut) {
  for (const KvType type : {KvType::f16, KvType::q8_0}) {
    for (const int window : {0, 90}) {
      for (const int heads : {1, 3, 8}) {
        Sequence s = make_sequence({1, 32, 48 - 16 * (type == KvType::q8_0), type}, heads, 230, 41);
        const Options options{.scale = 0.3f, .window = window};
        Output all = whole(s, 0, 0, 230, options);
        for (const int piece : {1, 7, 64, 100}) {
          for (int first = 0; first < 230; first += piece) {
            const int rows = std::min(piece, 230 - first);
            Output part = whole(s, 0, first, rows, options);
            ASSERT_EQ(
                std::memcmp(part.row(0), all.row(first), index(rows * heads * part.width) * 4), 0)
                << "rows from " << first << " by " << piece;
          }
        }
      }
    }
  }
}

TEST_P(Attention, SpansGiveTheSameBits) {
  Sequence s = make_sequence({1, 32, 32, KvType::f16}, 4, 2500, 51);
  for (const int window : {0, 700, 1500}) {
    for (const auto& [first, rows] : {std::pair{2499, 1}, {1020, 9}, {2000, 60}, {3, 2}}) {
      const Options options{.scale = 0.5f, .window = window};
      Output one = whole(s, 0, first, rows, options);
      Output split;
      const AttentionTask task = make_task(s, 0, first, rows, options, &split);
      const int spans = attention_spans(task);
      const std::size_t size = attention_partial_floats(task);
      std::vector<float> partials(size * index(spans), NAN);
      std::vector<float> scratch(attention_scratch_bytes(task) / 4, NAN);
      for (int span = spans - 1; span >= 0; --span) {
        attend_span(*kernels, task, span, reinterpret_cast<std::byte*>(scratch.data()),
                    partials.data() + size * index(span));
      }
      combine_spans(*kernels, task, partials.data());
      EXPECT_EQ(one.values, split.values) << "window " << window << " first " << first;
    }
  }
  check(s, 2490, 10, {.scale = 0.5f});
}

INSTANTIATE_TEST_SUITE_P(Isa, Attention, ::testing::Values(Isa::portable, Isa::avx2, Isa::avx512),
                         [](const auto& param) { return std::string(isa_name(param.param)); });

}  // namespace
}  // namespace tessera::cpu
