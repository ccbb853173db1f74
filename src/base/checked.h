// Integer arithmetic that says when it would wrap. For sizes that come from files and requests.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
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

// The sum, or the end of the type that it is beyond: for bytes that are compared with a budget,
// where more than can be counted is too much.
template <std::integral T>
constexpr T saturated_add(T a, T b) {
  if (const auto sum = checked_add(a, b)) return *sum;
  return a < 0 ? std::numeric_limits<T>::min() : std::numeric_limits<T>::max();
}

// The product likewise, of numbers that are not negative.
template <std::integral T>
constexpr T saturated_mul(T a, T b) {
  return checked_mul(a, b).value_or(std::numeric_limits<T>::max());
}

constexpr std::int64_t saturated_sum(std::initializer_list<std::int64_t> parts) {
  std::int64_t sum = 0;
  for (const std::int64_t part : parts) sum = saturated_add(sum, part);
  return sum;
}

// What the parts leave of `all`.
constexpr std::int64_t saturated_rest(std::int64_t all, std::initializer_list<std::int64_t> parts) {
  for (const std::int64_t part : parts) {
    std::int64_t rest;
    if (__builtin_sub_overflow(all, part, &rest))
      rest = part > 0 ? std::numeric_limits<std::int64_t>::min()
                      : std::numeric_limits<std::int64_t>::max();
    all = rest;
  }
  return all;
}

// Without its fraction, or the end of the type; 0 for what is no number.
constexpr std::int64_t saturated_trunc(double value) {
  constexpr double kEnd = 9223372036854775808.0;  // one more than the largest
  if (value >= kEnd) return std::numeric_limits<std::int64_t>::max();
  if (value < -kEnd) return std::numeric_limits<std::int64_t>::min();
  return value == value ? static_cast<std::int64_t>(value) : 0;
}

// The same value in another integer type, or nothing if it does not fit.
template <std::integral To, std::integral From>
constexpr std::optional<To> checked_cast(From value) {
  if (!std::in_range<To>(value)) return std::nullopt;
  return static_cast<To>(value);
}

template <std::integral T>
constexpr T ceil_div(T a, T b) {
  return static_cast<T>(a / b + (a % b > 0 ? 1 : 0));
}

template <std::integral T>
constexpr T round_up(T a, T multiple) {
  return static_cast<T>(ceil_div(a, multiple) * multiple);
}

// The end of the type where no multiple is as large.
constexpr std::int64_t saturated_round_up(std::int64_t a, std::int64_t multiple) {
  return saturated_mul(ceil_div(a, multiple), multiple);
}

}  // namespace tessera
