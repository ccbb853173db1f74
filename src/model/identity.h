// The identity of a model file: what two processes compare before they compute together, and what a
// file about a model names it by.
//
//   const ModelDigest digest = model_digest(file);
//   log_info("model {}", digest_text(digest));
//
// A SHA-256 over every metadata entry, the tensor table (names, types, shapes) and samples of the
// tensors' data, in the order of the file. It does not depend on the file's name or on how it is
// split, and takes milliseconds, since it reads a few hundred pages whatever the size. Files that
// differ in a few weights alone can have the same digest: it tells models apart, it proves nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gguf/gguf.h"

namespace tessera {

using ModelDigest = std::array<std::byte, 32>;

ModelDigest model_digest(const gguf::File& file);

// What of the tensors' data it reads: bytes [begin, end) of a tensor each, in the order of the
// file.
struct DigestSample {
  const gguf::TensorInfo* tensor = nullptr;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};
std::vector<DigestSample> digest_samples(const gguf::File& file);

std::string digest_text(const ModelDigest& digest);  // 64 hexadecimal digits

}  // namespace tessera
