// For this room's tests: a folder that goes away, and GGUF files made byte by byte.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::gguf {

class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "gguf-test-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) ADD_FAILURE() << "mkdtemp failed";
    path_ = pattern;
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() { std::filesystem::remove_all(path_); }

  std::string file(std::string_view name) const { return (path_ / name).string(); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline std::vector<std::byte> read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

inline void write_bytes(const std::string& path, std::span<const std::byte> bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
}

// A file as a list of fields. Nothing is checked, and the places of the fields that a hostile file
// would lie in are remembered.
class RawFile {
 public:
  struct Field {
    std::string what;
    std::size_t at;
    std::size_t bytes;
  };

  template <typename T>
  RawFile& number(T value, const char* what = nullptr) {
    if (what != nullptr) fields_.push_back({what, bytes_.size(), sizeof(T)});
    const auto raw = std::as_bytes(std::span(&value, 1));
    bytes_.insert(bytes_.end(), raw.begin(), raw.end());
    return *this;
  }
  RawFile& string(std::string_view text, const char* what = "string length") {
    number(std::uint64_t{text.size()}, what);
    const auto raw = std::as_bytes(std::span(text));
    bytes_.insert(bytes_.end(), raw.begin(), raw.end());
    return *this;
  }
  RawFile& header(std::uint64_t tensors, std::uint64_t entries, std::uint32_t version = 3) {
    number(std::uint32_t{0x46554747}).number(version, "version");
    return number(tensors, "tensor count").number(entries, "entry count");
  }
  RawFile& entry_u32(std::string_view key, std::uint32_t value) {
    return string(key, "key length").number(std::uint32_t{4}, "value type").number(value, "value");
  }
  RawFile& tensor(std::string_view name, std::vector<std::int64_t> ne, std::uint32_t type,
                  std::uint64_t offset) {
    string(name, "name length").number(static_cast<std::uint32_t>(ne.size()), "dimension count");
    for (const std::int64_t extent : ne) number(extent, "dimension");
    return number(type, "type").number(offset, "offset");
  }
  RawFile& pad(std::size_t alignment = 32) {
    while (bytes_.size() % alignment != 0) bytes_.push_back(std::byte{0});
    return *this;
  }
  RawFile& data(std::size_t n) {
    bytes_.insert(bytes_.end(), n, std::byte{0x11});
    return *this;
  }

  const std::vector<std::byte>& bytes() const { return bytes_; }
  const std::vector<Field>& fields() const { return fields_; }

  // The bytes with one field set to `value`, cut to its width.
  std::vector<std::byte> with(const Field& field, std::uint64_t value) const {
    std::vector<std::byte> changed = bytes_;
    std::memcpy(changed.data() + field.at, &value, field.bytes);
    return changed;
  }

 private:
  std::vector<std::byte> bytes_;
  std::vector<Field> fields_;
};

}  // namespace tessera::gguf
