#include "device/cpu/activations.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/buffer.h"
#include "device/cpu/matmul.h"

namespace tessera::cpu {
namespace {

struct Quantised {
  std::vector<float> rows;
  AlignedBuffer storage;
  Activations x;
};

Quantised quantised(std::vector<float> rows, std::int64_t n_rows, std::int64_t cols, Isa isa) {
  Quantised out{std::move(rows),
                *AlignedBuffer::allocate(static_cast<std::size_t>(activation_bytes(n_rows, cols))),
                {}};
  out.x = {out.rows.data(), cols, n_rows, cols, out.storage.as<ActivationRecord>()};
  quantize_rows(matmul_kernels(isa), out.x, 0, n_rows);
  return out;
}

std::vector<float> normal_rows(std::size_t count) {
  std::mt19937 generator(5);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> out(count);
  for (float& value : out) value = normal(generator);
  return out;
}

const ActivationRecord& record(const Activations& x, std::int64_t row, std::int64_t block) {
  return x.records[block * record_rows(x.n_rows) + row];
}

TEST(Activations, RecordsDescribeTheRow) {
  const Quantised data = quantised(normal_rows(6 * 96), 6, 96, Isa::portable);
  for (std::int64_t row = 0; row < 6; ++row) {
    for (std::int64_t block = 0; block < 3; ++block) {
      const ActivationRecord& r = record(data.x, row, block);
      const float* const values = data.x.rows + row * 96 + block * 32;
      std::int32_t sum[2] = {0, 0};
      int peak = 0;
      for (int i = 0; i < 32; ++i) {
        const double error = std::fabs(static_cast<double>(r.scale) * r.q[i] - values[i]);
        EXPECT_LE(error, 0.5001 * r.scale);
        sum[i / 16] += r.q[i];
        peak = std::max(peak, std::abs(static_cast<int>(r.q[i])));
      }
      EXPECT_EQ(peak, 127);
      EXPECT_EQ(r.minus_sum, -(sum[0] + sum[1]));
      EXPECT_EQ(r.scaled_sum, r.scale * static_cast<float>(sum[0] + sum[1]));
      for (int half = 0; half < 2; ++half) {
        EXPECT_EQ(r.minus_half[half], -sum[half]);
        EXPECT_EQ(r.scaled_half[half], r.scale * static_cast<float>(sum[half]));
      }
    }
  }
}

TEST(Activations, TiesRoundToEven) {
  std::vector<float> row(32, 0.0f);
  row[0] = 127.0f;
  row[1] = 0.5f;
  row[2] = 1.5f;
  row[3] = -2.5f;
  const Quantised data = quantised(row, 1, 32, Isa::portable);
  const std::int8_t expected[4] = {127, 0, 2, -2};
  EXPECT_EQ(std::memcmp(data.x.records[0].q, expected, sizeof(expected)), 0);
}

TEST(Activations, NonFiniteElementsMakeTheirRecordNaN) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {kInfinity, -kInfinity, std::nanf("")}) {
    std::vector<float> rows = normal_rows(2 * 64);
    rows[40] = bad;
    const Quantised data = quantised(rows, 2, 64, detect_isa());
    const ActivationRecord& r = record(data.x, 0, 1);
    EXPECT_TRUE(std::isnan(r.scale));
    EXPECT_TRUE(std::isnan(r.scaled_sum));
    EXPECT_EQ(r.minus_sum, 0);
    for (const std::int8_t q : r.q) EXPECT_EQ(q, 0);
    EXPECT_TRUE(std::isfinite(record(data.x, 0, 0).scale));
    EXPECT_TRUE(std::isfinite(record(data.x, 1, 1).scale));
  }
}

TEST(Activations, TinyAndHugeElementsStayFinite) {
  for (const float peak : {0.0f, 1e-45f, 1e-38f, 8e-37f, 1e-36f, 3.4e38f}) {
    const Quantised data = quantised(std::vector<float>(32, peak), 1, 32, detect_isa());
    const ActivationRecord& r = data.x.records[0];
    const bool zero = peak < 7.6e-37f;
    EXPECT_EQ(r.q[31], zero ? 0 : 127) << peak;
    EXPECT_EQ(r.scale, zero ? 0.0f : peak / 127.0f) << peak;
  }
}

TEST(Activations, EveryInstructionSetAndEveryRangeOfRowsGivesTheSameBits) {
  constexpr std::int64_t kRows = 4, kCols = 1024;
  std::vector<float> rows = normal_rows(kRows * kCols);
  rows[77] = std::nanf("");
  for (std::size_t i = 0; i < rows.size(); i += 5) rows[i] *= 1e-20f;
  const Quantised expected = quantised(rows, kRows, kCols, Isa::portable);
  for (const Isa isa : {Isa::avx2, Isa::avx512}) {
    if (!isa_supported(isa)) continue;
    Quantised actual = quantised(std::vector<float>(rows.size()), kRows, kCols, isa);
    actual.x.rows = rows.data();
    for (std::int64_t row : {2, 0, 3, 1}) {
      quantize_rows(matmul_kernels(isa), actual.x, row, row + 1);
    }
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t block = 0; block < kCols / 32; ++block) {
        const ActivationRecord& a = record(actual.x, row, block);
        const ActivationRecord& e = record(expected.x, row, block);
        EXPECT_EQ(std::memcmp(a.q, e.q, sizeof(a.q)), 0);
        if (std::isnan(e.scale)) {
          EXPECT_TRUE(std::isnan(a.scale));
        } else {
          EXPECT_EQ(std::memcmp(&a, &e, sizeof(a)), 0) << row << " " << block;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::cpu
