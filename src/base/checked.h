// Integer arithmetic that says when it would wrap. For sizes that come from files and requests.
#pragma once

#include <concepts>
#include <limits>
#include <optional>
#include <utility>

namespace tessera {

template <std::integral T>
constexpr std::optional<T> checked_add(T a, T b) {
  T sum;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

template <std::integral T>
constexpr std::optional<T> checked_mul(T a, T b) {
  T product;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// The same value in another integer type, or nothing if it does not fit.
template <std::integral To, std::integral From>
constexpr std::optional<To> checked_cast(From value) {
  if (!std::in_range<To>(value)) return std::nullopt;
  return static_cast<To>(value);
}

template <std::integral T>
constexpr T ceil_div(T a, T b) {
  return static_cast<T>((a + b - 1) / b);
}

template <std::integral T>
constexpr T round_up(T a, T multiple) {
  return static_cast<T>(ceil_div(a, multiple) * multiple);
}

}  // namespace tessera
