#include "worker/model_ranges.h"

#include "device/shard_tensors.h"
#include "model/identity.h"

namespace tessera::worker {
namespace {

constexpr std::uint64_t kSmallVector = 64 << 10;

FileRanges none(const gguf::File& file) {
  return FileRanges(static_cast<std::size_t>(file.shard_count()));
}

void add(const gguf::File& file, const gguf::TensorInfo& tensor, std::uint64_t begin,
         std::uint64_t end, FileRanges& ranges) {
  const std::uint64_t at = file.offset_of(tensor);
  ranges[static_cast<std::size_t>(tensor.shard)].add({at + begin, at + end});
}

// One matrix of a slice (an expert's), whose rows may have those of another slice between them.
void add_matrix(const gguf::File& file, const TensorSlice& slice, std::int64_t matrix,
                FileRanges& ranges) {
  const auto row = static_cast<std::uint64_t>(row_bytes(slice.type, slice.cols));
  const auto first =
      static_cast<std::uint64_t>(slice.data - slice.tensor->data + matrix * slice.matrix_stride);
  add(file, *slice.tensor, first,
      first + static_cast<std::uint64_t>((slice.rows - 1) * slice.row_stride) + row, ranges);
}

}  // namespace

FileRanges header_ranges(const gguf::File& file) {
  FileRanges ranges = none(file);
  for (int shard = 0; shard < file.shard_count(); ++shard)
    ranges[static_cast<std::size_t>(shard)].add({0, file.header_bytes(shard)});
  return ranges;
}

FileRanges identity_ranges(const gguf::File& file) {
  FileRanges ranges = none(file);
  for (const DigestSample& sample : digest_samples(file))
    add(file, *sample.tensor, sample.begin, sample.end, ranges);
  for (const gguf::TensorInfo& tensor : file.tensors())
    if (tensor.rows() == 1 && tensor.bytes <= kSmallVector)
      add(file, tensor, 0, tensor.bytes, ranges);
  return ranges;
}

std::uint64_t opening_bytes(const gguf::File& file) {
  FileRanges ranges = header_ranges(file);
  const FileRanges identity = identity_ranges(file);
  for (std::size_t i = 0; i < ranges.size(); ++i) ranges[i].add(identity[i]);
  return page_bytes_of(ranges);
}

FileRanges shard_ranges(const Model& model, const ShardLayout& layout) {
  FileRanges ranges = none(model.file());
  for (const TensorSlice& slice : model.tensors()) {
    if (!in_shard(slice, model.spec(), layout)) continue;
    for (std::int64_t matrix = 0; matrix < slice.matrices; ++matrix)
      add_matrix(model.file(), slice, matrix, ranges);
  }
  return ranges;
}

FileRanges expert_ranges(const Model& model, const ExpertSetLayout& layout) {
  FileRanges ranges = none(model.file());
  for (const TensorSlice& slice : model.tensors()) {
    if (tensor_use(slice.role) != TensorUse::expert_matrix || slice.layer < layout.first_layer ||
        slice.layer >= layout.end_layer())
      continue;
    const auto& home =
        layout.experts[static_cast<std::size_t>(slice.layer - layout.first_layer)].home;
    for (std::size_t expert = 0; expert < home.size(); ++expert)
      if (home[expert].is_resident())
        add_matrix(model.file(), slice, static_cast<std::int64_t>(expert), ranges);
  }
  return ranges;
}

}  // namespace tessera::worker
