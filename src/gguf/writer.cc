#include "gguf/writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/checked.h"
#include "gguf/header.h"
#include "gguf/system_error.h"

namespace tessera::gguf {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

void append(std::vector<std::byte>& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

template <typename T>
void append_number(std::vector<std::byte>& to, T value) {
  append(to, std::as_bytes(std::span(&value, 1)));
}

void append_string(std::vector<std::byte>& to, std::string_view text) {
  append_number(to, std::uint64_t{text.size()});
  append(to, std::as_bytes(std::span(text)));
}

// Bytes of a tensor, or why there cannot be one.
Result<std::uint64_t> checked_bytes(BlockType type, std::span<const std::int64_t> ne) {
  const BlockFormat* format = block_format(static_cast<std::uint32_t>(type));
  if (format == nullptr) return Error::make(ErrorCode::unsupported, "the type is not supported");
  if (ne.empty() || ne.size() > 4) {
    return Error::make(ErrorCode::invalid, "{} dimensions; 1 to 4 are allowed", ne.size());
  }
  std::int64_t elements = 1;
  for (const std::int64_t extent : ne) {
    const auto product = checked_mul(elements, extent);
    if (extent < 1 || !product) {
      return Error::make(ErrorCode::invalid, "a dimension is {}", extent);
    }
    elements = *product;
  }
  if (ne[0] % format->elems != 0) {
    return Error::make(ErrorCode::invalid, "rows of {} elements are not whole {} blocks of {}",
                       ne[0], format->name, format->elems);
  }
  const auto bytes = checked_mul(static_cast<std::uint64_t>(elements / format->elems),
                                 static_cast<std::uint64_t>(format->bytes));
  if (!bytes) return Error::make(ErrorCode::invalid, "the number of bytes overflows");
  return *bytes;
}

}  // namespace

namespace {

// Names the open file `path`, unless it was created with a name.
bool give_name(int fd, const std::string& path) {
  struct stat file {};
  if (fstat(fd, &file) != 0) return false;
  if (file.st_nlink > 0) return true;
  const std::string open_file = fmt::format("/proc/self/fd/{}", fd);
  return linkat(AT_FDCWD, open_file.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0;
}

}  // namespace

Result<Writer> Writer::create(const std::string& path, WriterOptions options) {
  if (!std::has_single_bit(options.alignment) || options.alignment < 8 ||
      options.alignment > 65536) {
    return Error::make(ErrorCode::invalid,
                       "{}: an alignment of {}; it must be a power of two from 8 to 65536", path,
                       options.alignment);
  }
  struct stat present {};
  if (stat(path.c_str(), &present) == 0 && !S_ISREG(present.st_mode))
    return Error::make(ErrorCode::invalid, "{} is there and is no ordinary file; give another name",
                       path);
  std::string temporary = fmt::format("{}.partial-{}", path, getpid());
  // Without a name until it is finished, where the file system can: nothing stays behind if the
  // process ends.
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  int fd = ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
  if (fd >= 0) return Writer(path, std::move(temporary), fd, options);
  fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return system_error(temporary, "create the file");
  return Writer(path, std::move(temporary), fd, options);
}

Writer::Writer(std::string path, std::string temporary_path, int fd, WriterOptions options)
    : path_(std::move(path)),
      temporary_path_(std::move(temporary_path)),
      fd_(fd),
      alignment_(options.alignment) {
  if (options.alignment != kDefaultAlignment) add("general.alignment", options.alignment);
}

Writer::Writer(Writer&& other) noexcept {
  *this = std::move(other);
}

Writer& Writer::operator=(Writer&& other) noexcept {
  if (this == &other) return *this;
  discard();
  path_ = std::move(other.path_);
  temporary_path_ = std::move(other.temporary_path_);
  fd_ = std::exchange(other.fd_, -1);
  alignment_ = other.alignment_;
  error_ = std::move(other.error_);
  n_entries_ = other.n_entries_;
  entries_ = std::move(other.entries_);
  records_ = std::move(other.records_);
  keys_ = std::move(other.keys_);
  names_ = std::move(other.names_);
  tensors_ = std::move(other.tensors_);
  data_bytes_ = other.data_bytes_;
  in_data_ = other.in_data_;
  current_ = other.current_;
  current_written_ = other.current_written_;
  position_ = other.position_;
  buffer_ = std::move(other.buffer_);
  return *this;
}

Writer::~Writer() {
  discard();
}

void Writer::discard() {
  if (fd_ < 0) return;
  close(std::exchange(fd_, -1));
  unlink(temporary_path_.c_str());
}

void Writer::fail(Error error) {
  if (!error_) error_ = std::move(error).in(path_);
}

void Writer::add_packed(std::string_view key, ValueType element, std::optional<std::uint64_t> count,
                        std::span<const std::byte> packed) {
  if (in_data_) {
    return fail(
        Error::make(ErrorCode::invalid, "metadata key {} comes after data", in_quotes(key)));
  }
  if (key.empty() || key.size() > kLongestKey || !keys_.emplace(key).second) {
    return fail(Error::make(ErrorCode::invalid, "metadata key {} is empty, too long or there twice",
                            in_quotes(key)));
  }
  append_string(entries_, key);
  if (count) {
    append_number(entries_, static_cast<std::uint32_t>(ValueType::array));
    append_number(entries_, static_cast<std::uint32_t>(element));
    append_number(entries_, *count);
  } else {
    append_number(entries_, static_cast<std::uint32_t>(element));
  }
  append(entries_, packed);
  ++n_entries_;
}

void Writer::add(std::string_view key, std::string_view value) {
  std::vector<std::byte> packed;
  append_string(packed, value);
  add_packed(key, ValueType::string, std::nullopt, packed);
}

void Writer::add(std::string_view key, const Value& value) {
  add_packed(key, value.element_type(),
             value.is_array() ? std::optional(value.size()) : std::nullopt, value.bytes());
}

void Writer::add_array(std::string_view key, const std::vector<bool>& values) {
  std::vector<std::byte> packed;
  for (const bool value : values) packed.push_back(std::byte{value});
  add_packed(key, ValueType::boolean, values.size(), packed);
}

void Writer::add_array(std::string_view key, std::span<const std::string_view> values) {
  std::vector<std::byte> packed;
  for (const std::string_view value : values) append_string(packed, value);
  add_packed(key, ValueType::string, values.size(), packed);
}

void Writer::add_array(std::string_view key, const std::vector<std::string>& values) {
  const std::vector<std::string_view> views(values.begin(), values.end());
  add_array(key, std::span<const std::string_view>(views));
}

void Writer::add_tensor(std::string_view name, BlockType type, std::span<const std::int64_t> ne) {
  const Result<std::uint64_t> bytes = checked_bytes(type, ne);
  if (!bytes) return fail(Error(bytes.error()).in(fmt::format("tensor {}", in_quotes(name))));
  if (in_data_ || name.empty() || name.size() > kLongestTensorName ||
      !names_.emplace(name).second) {
    return fail(Error::make(ErrorCode::invalid,
                            "tensor {} comes after data, or its name is empty, longer than {} "
                            "bytes or there twice",
                            in_quotes(name), kLongestTensorName));
  }
  append_string(records_, name);
  append_number(records_, static_cast<std::uint32_t>(ne.size()));
  for (const std::int64_t extent : ne) append_number(records_, extent);
  append_number(records_, static_cast<std::uint32_t>(type));
  append_number(records_, data_bytes_);
  tensors_.push_back({std::string(name), *bytes});
  const auto end = checked_add(data_bytes_, *bytes);
  if (!end || *end > (std::uint64_t{1} << 62)) {
    return fail(Error::make(ErrorCode::invalid, "the tensors have more than 2^62 bytes"));
  }
  data_bytes_ = round_up(*end, alignment_);
}

Status Writer::begin_data() {
  std::vector<std::byte> start;
  append(start, std::as_bytes(std::span("GGUF", 4)));
  append_number(start, std::uint32_t{3});
  append_number(start, std::uint64_t{tensors_.size()});
  append_number(start, n_entries_);
  TESSERA_TRY(put(start));
  TESSERA_TRY(put(entries_));
  TESSERA_TRY(put(records_));
  in_data_ = true;
  return pad();
}

Status Writer::write(std::span<const std::byte> bytes) {
  if (error_) return *error_;
  if (!in_data_) TESSERA_TRY(begin_data());
  if (current_ >= tensors_.size()) {
    fail(Error::make(ErrorCode::invalid, "{} bytes of data after the last tensor", bytes.size()));
    return *error_;
  }
  const Tensor& tensor = tensors_[current_];
  if (bytes.size() > tensor.bytes - current_written_) {
    fail(Error::make(ErrorCode::invalid, "tensor {} has {} bytes, {} and {} more were written",
                     in_quotes(tensor.name), tensor.bytes, current_written_, bytes.size()));
    return *error_;
  }
  TESSERA_TRY(put(bytes));
  current_written_ += bytes.size();
  if (current_written_ < tensor.bytes) return {};
  ++current_;
  current_written_ = 0;
  return pad();
}

Status Writer::skip_tensor() {
  if (error_) return *error_;
  if (!in_data_) TESSERA_TRY(begin_data());
  if (current_ >= tensors_.size() || current_written_ > 0) {
    fail(Error::make(ErrorCode::invalid, "there is no whole tensor to leave out"));
    return *error_;
  }
  TESSERA_TRY(flush());
  const auto bytes = static_cast<off_t>(tensors_[current_].bytes);
  if (lseek(fd_, bytes, SEEK_CUR) < 0) {
    error_ = system_error(path_, "write the file");
    return *error_;
  }
  position_ += tensors_[current_].bytes;
  ++current_;
  return pad();
}

Status Writer::pad() {
  constexpr std::array<std::byte, 256> kZeros{};
  std::uint64_t gap = round_up(position_, alignment_) - position_;
  while (gap > 0) {
    const auto piece = std::min<std::uint64_t>(gap, kZeros.size());
    TESSERA_TRY(put(std::span(kZeros).first(static_cast<std::size_t>(piece))));
    gap -= piece;
  }
  return {};
}

Status Writer::put(std::span<const std::byte> bytes) {
  position_ += bytes.size();
  while (!bytes.empty()) {
    const std::size_t piece = std::min(bytes.size(), kBufferBytes - buffer_.size());
    append(buffer_, bytes.first(piece));
    bytes = bytes.subspan(piece);
    if (buffer_.size() == kBufferBytes) TESSERA_TRY(flush());
  }
  return {};
}

Status Writer::flush() {
  std::span<const std::byte> left = buffer_;
  while (!left.empty()) {
    const ssize_t n = ::write(fd_, left.data(), left.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      error_ = system_error(path_, "write the file");
      return *error_;
    }
    left = left.subspan(static_cast<std::size_t>(n));
  }
  buffer_.clear();
  return {};
}

Status Writer::finish() {
  if (error_) return *error_;
  if (!in_data_) TESSERA_TRY(begin_data());
  if (current_ < tensors_.size()) {
    fail(Error::make(ErrorCode::invalid, "tensor {} has {} bytes, only {} were written",
                     in_quotes(tensors_[current_].name), tensors_[current_].bytes,
                     current_written_));
    return *error_;
  }
  TESSERA_TRY(flush());
  // A full disk may show only now. The end may be a hole.
  const bool synced = ftruncate(fd_, static_cast<off_t>(position_)) == 0 && fsync(fd_) == 0 &&
                      give_name(fd_, temporary_path_);
  const bool closed = close(std::exchange(fd_, -1)) == 0;
  if (!synced || !closed || rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    error_ = system_error(path_, "finish the file");
    unlink(temporary_path_.c_str());
    return *error_;
  }
  fail(Error::make(ErrorCode::invalid, "the file is finished"));
  return {};
}

}  // namespace tessera::gguf
