// SplitName: the file name of one shard of a split model, "PREFIX-00002-of-00005.gguf".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::gguf {

struct SplitName {
  std::string prefix;      // the path up to the first dash of the ending
  std::int64_t index = 0;  // from 0; the name counts from 1
  std::int64_t count = 1;

  // Nothing if the path does not end like a shard's.
  static std::optional<SplitName> of(std::string_view path);

  // The path of shard `shard` (from 0).
  std::string path(std::int64_t shard) const;
};

}  // namespace tessera::gguf
