// ByteWriter, ByteReader: little-endian fields one after another, whatever the machine.
//
//   ByteWriter out(bytes);           ByteReader in(body);
//   out.u32(7);                      const std::uint32_t n = in.u32();
//   out.f32(0.5f);                   if (!in.done()) return error;
//
// A reader that runs past the end gives zeros and stays failed, so a schema is read straight
// through and asked once. Floats travel as their IEEE bits.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace tessera::worker {

template <std::unsigned_integral T>
inline void store_le(std::byte* at, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) at[i] = static_cast<std::byte>(value >> (8 * i));
}

template <std::unsigned_integral T>
inline T load_le(const std::byte* at) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value = static_cast<T>(value | static_cast<T>(static_cast<T>(at[i]) << (8 * i)));
  return value;
}

class ByteWriter {
 public:
  explicit ByteWriter(std::vector<std::byte>& out) : out_(out) {}

  void u8(std::uint8_t value) { put(value); }
  void u16(std::uint16_t value) { put(value); }
  void u32(std::uint32_t value) { put(value); }
  void u64(std::uint64_t value) { put(value); }
  void i32(std::int32_t value) { put(static_cast<std::uint32_t>(value)); }
  void f32(float value) { put(std::bit_cast<std::uint32_t>(value)); }
  void f64(double value) { put(std::bit_cast<std::uint64_t>(value)); }
  void bytes(std::span<const std::byte> value) {
    out_.insert(out_.end(), value.begin(), value.end());
  }

 private:
  template <std::unsigned_integral T>
  void put(T value) {
    std::byte raw[sizeof(T)];
    store_le(raw, value);
    out_.insert(out_.end(), raw, raw + sizeof(T));
  }

  std::vector<std::byte>& out_;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> in) : in_(in) {}

  std::uint8_t u8() { return get<std::uint8_t>(); }
  std::uint16_t u16() { return get<std::uint16_t>(); }
  std::uint32_t u32() { return get<std::uint32_t>(); }
  std::uint64_t u64() { return get<std::uint64_t>(); }
  std::int32_t i32() { return static_cast<std::int32_t>(get<std::uint32_t>()); }
  float f32() { return std::bit_cast<float>(get<std::uint32_t>()); }
  double f64() { return std::bit_cast<double>(get<std::uint64_t>()); }
  std::span<const std::byte> bytes(std::size_t n) {
    if (n > in_.size()) {
      fail();
      return {};
    }
    const std::span<const std::byte> value = in_.first(n);
    in_ = in_.subspan(n);
    return value;
  }
  std::span<const std::byte> rest() { return bytes(in_.size()); }

  bool ok() const { return ok_; }
  bool done() const { return ok_ && in_.empty(); }  // everything was there, and nothing more

 private:
  void fail() {
    ok_ = false;
    in_ = {};
  }
  template <std::unsigned_integral T>
  T get() {
    const std::span<const std::byte> raw = bytes(sizeof(T));
    return raw.size() == sizeof(T) ? load_le<T>(raw.data()) : T{0};
  }

  std::span<const std::byte> in_;
  bool ok_ = true;
};

}  // namespace tessera::worker
