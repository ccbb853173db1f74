#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "gguf/cursor.h"
#include "gguf/gguf.h"
#include "gguf/header.h"
#include "gguf/mapping.h"
#include "gguf/split_name.h"

namespace tessera::gguf {

// The split.* keys of one file.
struct SplitKeys {
  std::int64_t index = 0;     // from 0
  std::int64_t count = 1;     // 1: not split
  std::int64_t tensors = -1;  // of all files together; -1: not stated
};

namespace {

constexpr std::int64_t kMostShards = 512;

Result<SplitKeys> read_split_keys(const Metadata& metadata) {
  SplitKeys keys;
  TESSERA_ASSIGN(keys.count, metadata.get_i64_or("split.count", 1));
  TESSERA_ASSIGN(keys.index, metadata.get_i64_or("split.no", 0));
  TESSERA_ASSIGN(keys.tensors, metadata.get_i64_or("split.tensors.count", -1));
  // Writers mark a file that is not split with a count of zero, if at all.
  if (keys.count == 0) keys.count = 1;
  if (keys.count < 1 || keys.count > kMostShards || keys.index < 0 || keys.index >= keys.count) {
    return Error::make(ErrorCode::invalid, "split.no {} of split.count {} makes no sense (1 to {})",
                       keys.index, keys.count, kMostShards);
  }
  return keys;
}

Status check_same_split(const SplitKeys& keys, const SplitKeys& first, std::int64_t index) {
  if (keys.index != index || keys.count != first.count) {
    return Error::make(ErrorCode::invalid,
                       "its metadata says shard {} of {}, its name says shard {} of {}",
                       keys.index + 1, keys.count, index + 1, first.count);
  }
  if (keys.tensors != first.tensors) {
    return Error::make(ErrorCode::invalid, "split.tensors.count is {} here and {} in another shard",
                       keys.tensors, first.tensors);
  }
  return {};
}

}  // namespace

// One file that is open and checked, not yet taken into a File.
struct File::Part {
  Shard shard;
  Header header;
  SplitKeys keys;
};

File::File() = default;
File::File(File&&) noexcept = default;
File& File::operator=(File&&) noexcept = default;
File::~File() = default;

Result<File> File::open(const std::string& path, OpenOptions options) {
  File file;
  file.path_ = path;
  TESSERA_ASSIGN(Part part, open_part(path, options));
  TESSERA_TRY(file.adopt_all(std::move(part), options));
  TESSERA_TRY(file.index_tensors());
  return file;
}

Result<File> File::parse(std::span<const std::byte> bytes, OpenOptions options) {
  File file;
  file.path_ = "<memory>";
  Part part;
  part.shard = {.path = file.path_, .mapping = nullptr, .bytes = bytes};
  TESSERA_ASSIGN(part.header, parse_header(bytes, options));
  TESSERA_ASSIGN(part.keys, read_split_keys(part.header.metadata));
  if (part.keys.count != 1) {
    return Error::make(ErrorCode::unsupported, "shard {} of {} cannot be used on its own",
                       part.keys.index + 1, part.keys.count);
  }
  file.adopt(std::move(part));
  TESSERA_TRY(file.index_tensors());
  return file;
}

Result<File> File::adopt(std::span<const OwnPart> parts, OpenOptions options) {
  CHECK(!parts.empty());
  File file;
  file.path_ = parts.front().name;
  SplitKeys split;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    options.header_bytes = parts[i].header_bytes;
    TESSERA_ASSIGN(Mapping mapping, Mapping::adopt(parts[i].name, parts[i].descriptor));
    TESSERA_ASSIGN(Part part, read_part(parts[i].name, std::move(mapping), options));
    if (i == 0) split = part.keys;
    if (Status status = check_same_split(part.keys, split, static_cast<std::int64_t>(i)); !status)
      return std::move(status).error().in(parts[i].name);
    file.adopt(std::move(part));
  }
  if (std::cmp_not_equal(split.count, parts.size()))
    return Error::make(ErrorCode::invalid, "{}: {} files of a model of {} shards", file.path_,
                       parts.size(), split.count);
  TESSERA_TRY(file.check_tensor_count(split.tensors));
  TESSERA_TRY(file.index_tensors());
  return file;
}

Result<File::Part> File::open_part(const std::string& path, OpenOptions options) {
  TESSERA_ASSIGN(Mapping mapping, Mapping::open(path));
  return read_part(path, std::move(mapping), options);
}

Result<File::Part> File::read_part(std::string path, Mapping mapping, OpenOptions options) {
  const std::span<const std::byte> bytes = mapping.bytes();
  Result<Header> header = parse_header(bytes, options);
  if (!header) return std::move(header).error().in(path);
  Result<SplitKeys> keys = read_split_keys(header->metadata);
  if (!keys) return std::move(keys).error().in(path);
  return Part{.shard = {.path = std::move(path),
                        .mapping = std::make_unique<Mapping>(std::move(mapping)),
                        .bytes = bytes},
              .header = *std::move(header),
              .keys = *keys};
}

// Takes `first` and, if it is a shard, its siblings, in the order of the shards.
Status File::adopt_all(Part first, OpenOptions options) {
  const SplitKeys split = first.keys;
  if (split.count == 1) {
    adopt(std::move(first));
    return {};
  }
  const std::optional<SplitName> name = SplitName::of(path_);
  if (!name || name->count != split.count || name->index != split.index) {
    return Error::make(ErrorCode::invalid,
                       "{}: the file is shard {} of {}; its name must end in -{:05}-of-{:05}.gguf",
                       path_, split.index + 1, split.count, split.index + 1, split.count);
  }
  for (std::int64_t i = 0; i < split.count; ++i) {
    if (i == split.index) {
      adopt(std::move(first));
      continue;
    }
    TESSERA_ASSIGN(Part part, open_part(name->path(i), options));
    if (Status status = check_same_split(part.keys, split, i); !status) {
      return std::move(status).error().in(part.shard.path);
    }
    adopt(std::move(part));
  }
  return check_tensor_count(split.tensors);
}

Status File::check_tensor_count(std::int64_t stated) const {
  if (stated < 0 || shards_.size() == 1 || std::cmp_equal(tensors_.size(), stated)) return {};
  return Error::make(ErrorCode::invalid,
                     "{}: the shards hold {} tensors, split.tensors.count is {}", path_,
                     tensors_.size(), stated);
}

void File::adopt(Part part) {
  if (shards_.empty()) {
    version_ = part.header.version;
    metadata_ = std::move(part.header.metadata);
  }
  const auto shard = static_cast<int>(shards_.size());
  for (TensorInfo& tensor : part.header.tensors) {
    tensor.shard = shard;
    tensors_.push_back(std::move(tensor));
  }
  shards_.push_back(std::move(part.shard));
}

Status File::index_tensors() {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto [other, is_new] = tensor_index_.emplace(tensors_[i].name, i);
    if (is_new) continue;
    const std::string& here = shard_path(tensors_[i].shard);
    const std::string& there = shard_path(tensors_[other->second].shard);
    return Error::make(ErrorCode::invalid, "{}: tensor {} appears twice{}", here,
                       in_quotes(tensors_[i].name),
                       here == there ? std::string() : fmt::format(" (also in {})", there));
  }
  return {};
}

const TensorInfo* File::find_tensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

const File::Shard& File::shard_at(int shard) const {
  CHECK(shard >= 0 && shard < shard_count(), "shard {} of {}", shard, shard_count());
  return shards_[static_cast<std::size_t>(shard)];
}

const std::string& File::shard_path(int shard) const {
  return shard_at(shard).path;
}

std::uint64_t File::shard_bytes(int shard) const {
  return shard_at(shard).bytes.size();
}

std::uint64_t File::offset_of(const TensorInfo& tensor) const {
  return static_cast<std::uint64_t>(tensor.data - shard_at(tensor.shard).bytes.data());
}

std::uint64_t File::header_bytes(int shard) const {
  std::uint64_t least = shard_bytes(shard);
  for (const TensorInfo& tensor : tensors_)
    if (tensor.shard == shard) least = std::min(least, offset_of(tensor));
  return least;
}

Status File::read_at(int shard, std::uint64_t offset, std::span<std::byte> to) const {
  const Shard& from = shard_at(shard);
  if (offset > from.bytes.size() || to.size() > from.bytes.size() - offset)
    return Error::make(ErrorCode::invalid, "{}: {} bytes at {} of a file of {}", from.path,
                       to.size(), offset, from.bytes.size());
  if (from.mapping) return from.mapping->read_at(offset, to);
  std::copy_n(from.bytes.begin() + static_cast<std::ptrdiff_t>(offset), to.size(), to.begin());
  return {};
}

std::uint64_t File::file_bytes() const {
  std::uint64_t total = 0;
  for (const Shard& shard : shards_) total += shard.bytes.size();
  return total;
}

void File::will_need(const TensorInfo& tensor) const {
  const Shard& shard = shards_.at(static_cast<std::size_t>(tensor.shard));
  if (shard.mapping) shard.mapping->will_need({tensor.data, tensor.bytes});
}

void File::release(const TensorInfo& tensor, std::uint64_t offset, std::uint64_t bytes) const {
  CHECK(offset <= tensor.bytes && bytes <= tensor.bytes - offset, "{} + {} bytes of a tensor of {}",
        offset, bytes, tensor.bytes);
  const Shard& shard = shards_.at(static_cast<std::size_t>(tensor.shard));
  if (shard.mapping) shard.mapping->release({tensor.data + offset, bytes});
}

void File::drop_pages(const TensorInfo& tensor, std::uint64_t offset, std::uint64_t bytes) const {
  CHECK(offset <= tensor.bytes && bytes <= tensor.bytes - offset, "{} + {} bytes of a tensor of {}",
        offset, bytes, tensor.bytes);
  const Shard& shard = shards_.at(static_cast<std::size_t>(tensor.shard));
  if (shard.mapping) shard.mapping->drop_pages({tensor.data + offset, bytes});
}

Status File::check_intact() const {
  for (const Shard& shard : shards_) {
    if (shard.mapping) TESSERA_TRY(shard.mapping->check_intact());
  }
  return {};
}

}  // namespace tessera::gguf
