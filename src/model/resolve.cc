#include "model/resolve.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_set>
#include <vector>

namespace tessera {
namespace {

// Collects complaints; the line that comes out names the first of them and counts the rest.
class Complaints {
 public:
  void add(std::string complaint) {
    ++count_;
    if (line_.size() > kLineBytes) return;
    if (!line_.empty()) line_ += "; ";
    line_ += complaint;
    ++named_;
  }
  bool empty() const { return count_ == 0; }
  Error error() const {
    std::string rest = count_ > named_ ? fmt::format("; and {} more", count_ - named_) : "";
    return Error::make(ErrorCode::invalid, "{} tensor{} missing or wrong: {}{}", count_,
                       count_ == 1 ? "" : "s", line_, rest);
  }

 private:
  static constexpr std::size_t kLineBytes = 1500;
  int count_ = 0;
  int named_ = 0;
  std::string line_;
};

std::string shape_text(std::span<const std::int64_t> ne) {
  std::size_t dims = ne.size();
  while (dims > 1 && ne[dims - 1] == 1) --dims;
  return fmt::format("[{}]", fmt::join(ne.first(dims), ", "));
}

const TensorSource* choose_source(const gguf::File& file, const ExpectedTensor& expected) {
  for (const TensorSource& source : expected.sources) {
    if (file.find_tensor(source.name) != nullptr) return &source;
  }
  return nullptr;
}

TensorSlice slice_of(const gguf::TensorInfo& tensor, const ExpectedTensor& expected,
                     const TensorSource& source) {
  TensorSlice slice;
  slice.role = expected.role;
  slice.layer = expected.layer;
  slice.type = tensor.type;
  slice.matrices = expected.matrices;
  slice.rows = expected.rows;
  slice.cols = expected.cols;
  slice.row_stride = row_bytes(tensor.type, expected.cols);
  slice.matrix_stride = slice.row_stride * source.file_rows;
  slice.data = tensor.data + source.first_row * slice.row_stride;
  slice.tensor = &tensor;
  return slice;
}

// A companion "X.scale" multiplies the product with X.weight; no block type that is read needs one.
void refuse_companion_scales(const gguf::File& file, const std::unordered_set<std::string>& used,
                             Complaints& complaints) {
  constexpr std::string_view kScale = ".scale";
  for (const gguf::TensorInfo& tensor : file.tensors()) {
    if (!tensor.name.ends_with(kScale) || used.contains(tensor.name)) continue;
    const std::string stem = tensor.name.substr(0, tensor.name.size() - kScale.size());
    if (used.contains(stem) || used.contains(stem + ".weight")) {
      complaints.add(fmt::format("{} is a separate scale, which is not supported", tensor.name));
    }
  }
}

}  // namespace

Result<ResolvedTensors> resolve_tensors(const gguf::File& file,
                                        const std::vector<ExpectedTensor>& expected) {
  ResolvedTensors resolved;
  Complaints complaints;
  std::unordered_set<std::string> used;
  for (const ExpectedTensor& want : expected) {
    const TensorSource* source = choose_source(file, want);
    if (source == nullptr) {
      complaints.add(fmt::format("{} is missing", want.sources.front().name));
      continue;
    }
    const gguf::TensorInfo& tensor = *file.find_tensor(source->name);
    const std::array<std::int64_t, 4> shape = {want.cols, source->file_rows, want.matrices, 1};
    used.insert(source->name);
    if (tensor.ne != shape) {
      complaints.add(fmt::format("{} has shape {} instead of {}", source->name,
                                 shape_text(tensor.ne), shape_text(shape)));
      continue;
    }
    resolved.slices.push_back(slice_of(tensor, want, *source));
  }
  refuse_companion_scales(file, used, complaints);
  if (!complaints.empty()) return complaints.error();

  std::ranges::sort(resolved.slices, {},
                    [](const TensorSlice& slice) { return std::tuple(slice.layer, slice.role); });
  resolved.ignored = static_cast<int>(file.tensors().size() - used.size());
  return resolved;
}

}  // namespace tessera
