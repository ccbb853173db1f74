// Keys: the metadata keys of one architecture, each read with the range that it may have.
//
// Names are given without the architecture prefix. What is returned is within bounds, so it may
// size an allocation; an error names the full key and says what would be right. Where a key has
// aliases (other converters' names), the first one that is present counts.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gguf/metadata.h"

namespace tessera {

inline constexpr int kMaxBlocks = 1024;
inline constexpr int kMaxWidth = 1 << 20;  // embedding and FFN widths
inline constexpr int kMaxHeads = 1 << 13;
inline constexpr int kMaxHeadDim = 1 << 13;  // bounds the rope tables: kMaxBlocks of half of it
inline constexpr int kMaxExperts = 4096;
inline constexpr int kMaxVocab = 1 << 21;
inline constexpr int kMaxContext = 1 << 30;

struct IntRange {
  int min = 1;
  int max = kMaxWidth;
};

class Keys {
 public:
  using Names = std::initializer_list<std::string_view>;

  // `architecture` is the prefix, without its dot.
  Keys(const gguf::Metadata& metadata, std::string_view architecture)
      : metadata_(metadata), prefix_(std::string(architecture) + ".") {}

  const gguf::Metadata& metadata() const { return metadata_; }
  std::string full(std::string_view name) const { return prefix_ + std::string(name); }
  bool has(std::string_view name) const { return metadata_.contains(full(name)); }
  // The first of the names that is present, or the first of all; in full.
  std::string choose(Names names) const;

  Result<int> integer(Names names, IntRange range) const;
  Result<int> integer_or(Names names, int fallback, IntRange range) const;
  // A scalar for all layers, or an array of exactly n.
  Result<std::vector<int>> per_layer(Names names, int n, IntRange range) const;

  // Finite and > 0.
  Result<float> positive(Names names) const;
  Result<float> positive_or(Names names, float fallback) const;
  // Finite and >= 0.
  Result<float> non_negative_or(Names names, float fallback) const;
  Result<bool> boolean_or(Names names, bool fallback) const;

  // "key: message", for a value that is well formed and still wrong.
  template <typename... Args>
  Error invalid(std::string_view name, fmt::format_string<Args...> format, Args&&... args) const {
    return Error::make(ErrorCode::invalid, format, std::forward<Args>(args)...).in(full(name));
  }

 private:
  Result<int> check(const std::string& key, std::int64_t value, IntRange range) const;

  const gguf::Metadata& metadata_;
  std::string prefix_;
};

}  // namespace tessera
