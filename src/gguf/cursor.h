// Cursor: reads forward through bytes that nobody has checked yet. Every read says whether there
// was enough left; nothing is ever added to the position before that is known.
#pragma once

#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace tessera::gguf {

class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::size_t position() const { return position_; }
  std::size_t remaining() const { return bytes_.size() - position_; }

  std::optional<std::span<const std::byte>> take(std::uint64_t n) {
    if (n > remaining()) return std::nullopt;
    const auto taken = bytes_.subspan(position_, static_cast<std::size_t>(n));
    position_ += taken.size();
    return taken;
  }

  template <typename T>
  requires std::is_arithmetic_v<T> std::optional<T> read() {
    const auto from = take(sizeof(T));
    if (!from) return std::nullopt;
    T value;
    std::memcpy(&value, from->data(), sizeof(T));
    return value;
  }

  // A 64-bit length and that many bytes.
  std::optional<std::string_view> read_string(std::uint64_t longest) {
    const auto length = read<std::uint64_t>();
    if (!length || *length > longest) return std::nullopt;
    const auto from = take(*length);
    if (!from) return std::nullopt;
    return std::string_view(reinterpret_cast<const char*>(from->data()), from->size());
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t position_ = 0;
};

// The longest string that is accepted: chat templates are some tens of KiB.
inline constexpr std::uint64_t kLongestString = std::uint64_t{16} << 20;

// Text from a file as it may appear in a message: printable, quoted, not too long.
std::string in_quotes(std::string_view text);

}  // namespace tessera::gguf
