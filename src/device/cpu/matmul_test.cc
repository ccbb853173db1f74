#include "device/cpu/matmul.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "base/buffer.h"
#include "quant/half.h"

namespace tessera::cpu {
namespace {

constexpr float kPoison = -12345.678f;

std::size_t size(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

// A matrix as the file has it, packed, and as floats.
class Weights {
 public:
  Weights(BlockType type, std::int64_t rows, std::int64_t cols, std::vector<std::byte> file)
      : file_(std::move(file)),
        packed_(*AlignedBuffer::allocate(size(packed_bytes(type, rows, cols)))),
        floats_(size(rows * cols)) {
    const std::int64_t stride = row_bytes(type, cols);
    pack_groups({type, rows, cols, file_.data(), stride}, {0, group_count(rows)}, packed_.data());
    matrix_ = PackedMatrix(type, rows, cols, packed_.data());
    for (std::int64_t r = 0; r < rows; ++r) {
      dequantize_row(type, file_.data() + r * stride, cols, floats_.data() + r * cols);
    }
  }
  static Weights random(BlockType type, std::int64_t rows, std::int64_t cols) {
    const std::int64_t blocks = rows * cols / block_format(type).elems;
    std::vector<std::byte> file(size(rows * row_bytes(type, cols)));
    random_blocks(type, 3, 0, blocks, 0.7f, file.data());
    return {type, rows, cols, std::move(file)};
  }
  const PackedMatrix& matrix() const { return matrix_; }
  const float* row(std::int64_t r) const { return floats_.data() + r * matrix_.cols(); }

 private:
  std::vector<std::byte> file_;
  AlignedBuffer packed_;
  std::vector<float> floats_;
  PackedMatrix matrix_;
};

class Inputs {
 public:
  Inputs(const MatmulKernels& kernels, BlockType type, std::int64_t n_rows, std::int64_t cols,
         std::vector<float> rows)
      : rows_(std::move(rows)),
        records_(*AlignedBuffer::allocate(size(activation_bytes(n_rows, cols)))) {
    view_ = {rows_.data(), cols, n_rows, cols, records_.as<ActivationRecord>()};
    quantised_ = uses_records(type);
    if (quantised_) quantize_rows(kernels, view_, 0, n_rows);
  }
  static Inputs normal(const MatmulKernels& kernels, BlockType type, std::int64_t n_rows,
                       std::int64_t cols) {
    std::mt19937 generator(17);
    std::normal_distribution<float> distribution;
    std::vector<float> rows(size(n_rows * cols));
    for (float& value : rows) value = distribution(generator);
    return {kernels, type, n_rows, cols, std::move(rows)};
  }
  const Activations& view() const { return view_; }
  // What the kernels are given for an element, and by how much it may be off.
  double value(std::int64_t row, std::int64_t c) const {
    if (!quantised_) return rows_[size(row * view_.cols + c)];
    const ActivationRecord& r = record(row, c);
    return static_cast<double>(r.scale) * r.q[c % kRecordElems];
  }
  double original(std::int64_t row, std::int64_t c) const {
    return rows_[size(row * view_.cols + c)];
  }
  double rounding(std::int64_t row, std::int64_t c) const {
    return quantised_ ? 0.5001 * static_cast<double>(record(row, c).scale) : 0.0;
  }

 private:
  const ActivationRecord& record(std::int64_t row, std::int64_t c) const {
    return view_.records[c / kRecordElems * record_rows(view_.n_rows) + row];
  }
  std::vector<float> rows_;
  AlignedBuffer records_;
  Activations view_;
  bool quantised_ = false;
};

struct Case {
  BlockType type;
  Isa isa;
};
std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const BlockType type : all_block_types()) {
    for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) cases.push_back({type, isa});
  }
  return cases;
}

class Matmul : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!isa_supported(isa())) GTEST_SKIP() << isa_name(isa()) << " is missing on this machine";
  }
  BlockType type() const { return GetParam().type; }
  Isa isa() const { return GetParam().isa; }
  const MatmulKernels& kernels() const { return matmul_kernels(isa()); }

  std::vector<float> product(const Weights& w, const Inputs& x, std::span<const std::int32_t> ids,
                             int n) const {
    std::vector<float> out(size(n * w.matrix().rows()), kPoison);
    matmul(kernels(), w.matrix(), {0, w.matrix().groups()}, x.view(), ids, n, out.data(),
           w.matrix().rows());
    return out;
  }

  // Each result against the sum in double precision. A result adds terms no larger than
  // max |w| * sum |x| in all (twice that with a bias), with one rounding of 2^-24 per term of the
  // longest chain.
  void expect_close(const Weights& w, const Inputs& x, const std::vector<float>& out, int n) const {
    const std::int64_t cols = w.matrix().cols(), rows = w.matrix().rows();
    const double terms = static_cast<double>(uses_records(type()) ? 5 * cols / 32 : cols) + 4;
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* const weight = w.row(r);
      double peak = 0;
      for (std::int64_t c = 0; c < cols; ++c) peak = std::max(peak, std::fabs(double{weight[c]}));
      for (int i = 0; i < n; ++i) {
        double used = 0, exact = 0, norm = 0, rounding = 0;
        for (std::int64_t c = 0; c < cols; ++c) {
          used += weight[c] * x.value(i, c);
          exact += weight[c] * x.original(i, c);
          norm += std::fabs(x.value(i, c));
          rounding += std::fabs(double{weight[c]}) * x.rounding(i, c);
        }
        const double actual = out[size(i * rows + r)];
        const double bound = 0x1p-24 * terms * 3 * peak * norm + 1e-35;
        ASSERT_NEAR(actual, used, bound) << "row " << r << " of " << rows << ", input " << i;
        ASSERT_NEAR(actual, exact, bound + rounding) << "row " << r << ", input " << i;
      }
    }
  }
};

TEST_P(Matmul, AgreesWithDoublePrecision) {
  const std::int64_t elems = block_format(type()).elems;
  const std::int64_t least = elems == 1 ? 3 : elems;
  struct Shape {
    std::int64_t rows, cols;
    int n;
  };
  for (const Shape shape : {Shape{1, least, 1}, Shape{15, 3 * least, 2}, Shape{16, 512, 4},
                            Shape{17, 5 * least, 7}, Shape{100, 256, 13}, Shape{33, 1024, 40}}) {
    const Weights w = Weights::random(type(), shape.rows, shape.cols);
    const Inputs x = Inputs::normal(kernels(), type(), shape.n, shape.cols);
    expect_close(w, x, product(w, x, {}, shape.n), shape.n);
    if (HasFatalFailure()) return;
  }
}

// Every call below computes some of the elements of one product, and must give their bits.
TEST_P(Matmul, BitsDoNotDependOnTheOtherRowsOrTheRange) {
  constexpr std::int64_t kRows = 70, kCols = 512;
  constexpr int kInputs = 41;
  const Weights w = Weights::random(type(), kRows, kCols);
  const Inputs x = Inputs::normal(kernels(), type(), kInputs, kCols);
  const std::vector<float> whole = product(w, x, {}, kInputs);

  std::vector<std::int32_t> ids(3 * kInputs);
  std::mt19937 generator(23);
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(generator() % kInputs);
  for (const int n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 24, 31, 40, 123}) {
    const std::vector<float> part = product(w, x, ids, n);
    for (int i = 0; i < n; ++i) {
      ASSERT_EQ(std::memcmp(part.data() + i * kRows, whole.data() + ids[size(i)] * kRows,
                            kRows * sizeof(float)),
                0)
          << n << " rows, result " << i;
    }
  }
  for (const int n : {1, 3, 9}) {
    for (std::int64_t begin = 0; begin < w.matrix().groups(); ++begin) {
      for (std::int64_t end = begin; end <= w.matrix().groups(); ++end) {
        constexpr std::int64_t kStride = kRows + 5;
        std::vector<float> out(size(n * kStride), kPoison);
        matmul(kernels(), w.matrix(), {begin, end}, x.view(), {}, n, out.data(), kStride);
        for (std::int64_t i = 0; i < n * kStride; ++i) {
          const std::int64_t r = i % kStride;
          const bool inside = r >= begin * kGroupRows && r < std::min(kRows, end * kGroupRows);
          const float expected = inside ? whole[size(i / kStride * kRows + r)] : kPoison;
          ASSERT_EQ(std::memcmp(&out[size(i)], &expected, sizeof(float)), 0)
              << "groups " << begin << ".." << end << ", result " << i / kStride << ", row " << r;
        }
      }
    }
  }
}

TEST_P(Matmul, LongRowsAreTiledWithoutATrace) {
  if (isa() == Isa::portable) GTEST_SKIP() << "the same loops, slower";
  constexpr std::int64_t kRows = 16, kCols = 16384;
  const Weights w = Weights::random(type(), kRows, kCols);
  const Inputs x = Inputs::normal(kernels(), type(), 20, kCols);
  const std::vector<float> whole = product(w, x, {}, 20);
  for (const std::int32_t id : {0, 15, 16, 19}) {
    const std::vector<float> one = product(w, x, std::span(&id, 1), 1);
    EXPECT_EQ(std::memcmp(one.data(), whole.data() + id * kRows, kRows * sizeof(float)), 0);
  }
}

// Where the f16 scales of a block are; they must be finite, everything else may be anything.
std::vector<int> half_fields(BlockType type) {
  switch (type) {
    case BlockType::Q4_1:
    case BlockType::Q5_1:
    case BlockType::Q4_K:
    case BlockType::Q5_K:
      return {0, 2};
    case BlockType::Q2_K:
      return {80, 82};
    case BlockType::Q3_K:
      return {108};
    case BlockType::Q6_K:
      return {208};
    case BlockType::MXFP4:
      return {};
    default:
      return {0};
  }
}

Weights filled_weights(BlockType type, std::int64_t rows, std::int64_t cols, int pattern) {
  const BlockFormat& format = block_format(type);
  std::vector<std::byte> file(size(rows * row_bytes(type, cols)));
  std::mt19937 generator(29);
  for (std::byte& byte : file) {
    const auto random = static_cast<std::byte>(generator());
    byte = pattern == 0 ? std::byte{0xff} : pattern == 1 ? std::byte{0} : random;
    if (pattern == 3) byte = (generator() & 1) != 0 ? std::byte{0x80} : std::byte{0x7f};
  }
  for (std::size_t block = 0; block < file.size(); block += size(format.bytes)) {
    float value = 0.5f;
    for (const int field : half_fields(type)) {
      store_half(file.data() + block + size(field), value);
      value = -0.03f;
    }
    if (type == BlockType::MXFP4) file[block] = std::byte{126};
  }
  return {type, rows, cols, std::move(file)};
}

TEST_P(Matmul, ExtremeBlocksMeetSaturatedActivations) {
  if (!uses_records(type())) GTEST_SKIP() << "nothing to saturate";
  constexpr std::int64_t kRows = 19, kCols = 512;
  constexpr int kInputs = 6;
  std::vector<float> rows(kInputs * kCols);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t row = i / kCols;
    const bool negative = row == 1 || row == 4 || (row == 2 && i % 2 == 0) ||
                          (row == 3 && i % 64 < 32) || (row == 5 && i % 4 < 2);
    rows[i] = (negative ? -1.0f : 1.0f) * (row == 4 ? 2.5e3f : 1.0f);
  }
  for (const int pattern : {0, 1, 2, 3}) {
    const Weights w = filled_weights(type(), kRows, kCols, pattern);
    const Inputs x(kernels(), type(), kInputs, kCols, rows);
    expect_close(w, x, product(w, x, {}, kInputs), kInputs);
    if (HasFatalFailure()) return;
    for (const std::int32_t id : {0, 3}) {  // the code for few rows
      const std::vector<float> one = product(w, x, std::span(&id, 1), 1);
      const std::vector<float> all = product(w, x, {}, kInputs);
      ASSERT_EQ(std::memcmp(one.data(), all.data() + id * kRows, kRows * sizeof(float)), 0);
    }
  }
}

TEST_P(Matmul, NonFiniteInputsStayInTheirRow) {
  constexpr std::int64_t kRows = 20, kCols = 256;
  const Weights w = Weights::random(type(), kRows, kCols);
  std::vector<float> rows(5 * kCols, 1.0f);
  rows[1 * kCols + 100] = std::numeric_limits<float>::quiet_NaN();
  rows[3 * kCols + 255] = std::numeric_limits<float>::quiet_NaN();
  if (uses_records(type())) rows[3 * kCols + 255] = std::numeric_limits<float>::infinity();
  const Inputs x(kernels(), type(), 5, kCols, rows);
  const std::vector<float> out = product(w, x, {}, 5);
  for (int i = 0; i < 5; ++i) {
    for (std::int64_t r = 0; r < kRows; ++r) {
      EXPECT_EQ(std::isnan(out[size(i * kRows + r)]), i == 1 || i == 3);
    }
  }
}

// Rows of a file at any address, which end where the memory that may be read ends.
class FileRows {
 public:
  FileRows(BlockType type, std::int64_t rows, std::int64_t cols, std::int64_t gap)
      : source_{.type = type,
                .rows = rows,
                .cols = cols,
                .row_stride_bytes = row_bytes(type, cols) + gap},
        bytes_(size((rows - 1) * source_.row_stride_bytes + row_bytes(type, cols))) {
    const std::int64_t blocks = cols / block_format(type).elems;
    for (std::int64_t r = 0; r < rows; ++r) {
      random_blocks(type, 5, r * blocks, blocks, 0.7f,
                    bytes_.data() + r * source_.row_stride_bytes);
    }
    place(0);
  }
  const MatrixSource& source() const { return source_; }
  // Moves the rows to the end of pages behind which nothing may be read, less so many bytes.
  void place(std::size_t before_end) {
    const std::size_t page = size(sysconf(_SC_PAGESIZE));
    const std::size_t room = (bytes_.size() + before_end + page - 1) / page * page;
    pages_ = Pages(room + 2 * page);
    std::byte* const begin = pages_.data() + page;
    ASSERT_EQ(mprotect(begin, room, PROT_READ | PROT_WRITE), 0);
    std::byte* const rows = begin + room - before_end - bytes_.size();
    std::memcpy(rows, bytes_.data(), bytes_.size());
    source_.data = rows;
  }

 private:
  class Pages {
   public:
    Pages() = default;
    explicit Pages(std::size_t bytes)
        : data_(mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
          bytes_(bytes) {}
    ~Pages() {
      if (data_ != nullptr) munmap(data_, bytes_);
    }
    Pages& operator=(Pages&& other) noexcept {
      std::swap(data_, other.data_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    std::byte* data() const { return static_cast<std::byte*>(data_); }

   private:
    void* data_ = nullptr;
    std::size_t bytes_ = 0;
  };
  MatrixSource source_;
  std::vector<std::byte> bytes_;
  Pages pages_;
};

TEST_P(Matmul, RowsOfAFileGiveTheBitsOfPackedOnes) {
  if (!reads_file(type())) GTEST_SKIP() << "always packed";
  constexpr int kInputs = 9;
  const std::int64_t least = block_format(type()).elems;
  struct Shape {
    std::int64_t rows, cols, gap;
  };
  for (const Shape shape : {Shape{1, least, 0}, Shape{15, 3 * least, 0}, Shape{16, least, 5},
                            Shape{16, 512, 0}, Shape{49, 5 * least, 0}, Shape{70, 1024, 3}}) {
    FileRows file(type(), shape.rows, shape.cols, shape.gap);
    AlignedBuffer packed =
        *AlignedBuffer::allocate(size(packed_bytes(type(), shape.rows, shape.cols)));
    const GroupRange all{0, group_count(shape.rows)};
    pack_groups(file.source(), all, packed.data());
    const PackedMatrix matrix(type(), shape.rows, shape.cols, packed.data());
    const Inputs x = Inputs::normal(kernels(), type(), kInputs, shape.cols);
    const std::vector<std::int32_t> ids = {3, 8, 0, 1, 1, 5, 2, 7, 4, 6, 0};
    for (const int n : {1, 2, 3, 4, 5, 9, 11}) {
      const std::int64_t stride = shape.rows + 3;
      const auto product = [&](const auto& w, GroupRange groups) {
        std::vector<float> out(size(n * stride), kPoison);
        matmul(kernels(), w, groups, x.view(), ids, n, out.data(), stride);
        return out;
      };
      for (const GroupRange groups :
           {all, GroupRange{all.end / 2, all.end}, GroupRange{all.end / 3, (all.end + 1) / 2}}) {
        const std::vector<float> expected = product(matrix, groups);
        for (const std::size_t before_end : {0, 1, 2, 31}) {
          file.place(before_end);
          const std::vector<float> actual = product(file.source(), groups);
          ASSERT_EQ(std::memcmp(expected.data(), actual.data(), expected.size() * sizeof(float)), 0)
              << n << " rows with " << shape.rows << " x " << shape.cols << ", groups "
              << groups.begin << ".." << groups.end << ", " << before_end
              << " bytes before the end";
        }
      }
    }
  }
}

TEST_P(Matmul, NothingToDoTouchesNothing) {
  const Weights w = Weights::random(type(), 16, 256);
  const Inputs x = Inputs::normal(kernels(), type(), 1, 256);
  float out = kPoison;
  matmul(kernels(), w.matrix(), {0, 1}, x.view(), {}, 0, &out, 16);
  matmul(kernels(), w.matrix(), {1, 1}, x.view(), {}, 1, &out, 16);
  EXPECT_EQ(out, kPoison);
}

INSTANTIATE_TEST_SUITE_P(Every, Matmul, testing::ValuesIn(all_cases()),
                         [](const testing::TestParamInfo<Case>& info) {
                           return std::string(block_type_name(info.param.type)) + "_" +
                                  isa_name(info.param.isa);
                         });

TEST(Isa, NamesParse) {
  EXPECT_EQ(*parse_isa("portable"), Isa::portable);
  EXPECT_EQ(*parse_isa(isa_name(detect_isa())), detect_isa());
  EXPECT_FALSE(parse_isa("sse9"));
  EXPECT_EQ(parse_isa("sse9").error().code, ErrorCode::invalid);
}

}  // namespace
}  // namespace tessera::cpu
