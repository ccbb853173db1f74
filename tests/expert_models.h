// Models with routed experts, for tests of where these are computed: by name
//
//   qwen35moe, laguna, gemma4moe       tests/data/golden, unquantised
//   qwen35moe_q8 ...                   the same with matrices of Q8_0, products of 8 bits
//   bundled                            models/tessera-mini.gguf, of Q4_K and Q6_K
//
//   ModelRunner plain(expert_model("laguna_q8"), {});
//   plain.logits(expert_prompt("laguna_q8", 120), 512);
//
// A file that has to be written is written once a process and removed at its end.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "gguf/writer.h"
#include "model/model.h"
#include "quant/block_format.h"
#include "tests/golden_data.h"

namespace tessera::testing {

inline constexpr const char* kExpertModels[] = {
    "qwen35moe", "laguna", "gemma4moe", "qwen35moe_q8", "laguna_q8", "gemma4moe_q8", "bundled"};

inline bool is_quantised(const std::string& name) {
  return name == "bundled" || name.ends_with("_q8");
}

// The model with its matrices of BF16 in Q8_0.
inline Status write_q8(const std::string& from, const std::string& to) {
  TESSERA_ASSIGN(const gguf::File file, gguf::File::open(from));
  TESSERA_ASSIGN(gguf::Writer writer, gguf::Writer::create(to));
  const int block = block_format(BlockType::Q8_0).elems;
  const auto rounded = [&](const gguf::TensorInfo& tensor) {
    return tensor.type == BlockType::BF16 && tensor.ne[0] % block == 0;
  };
  for (const auto& entry : file.metadata().entries()) writer.add(entry.key, entry.value);
  for (const gguf::TensorInfo& tensor : file.tensors())
    writer.add_tensor(tensor.name, rounded(tensor) ? BlockType::Q8_0 : tensor.type, tensor.ne);
  for (const gguf::TensorInfo& tensor : file.tensors()) {
    const std::int64_t n = tensor.elements();
    if (!rounded(tensor)) {
      TESSERA_TRY(writer.write({tensor.data, static_cast<std::size_t>(tensor.bytes)}));
      continue;
    }
    std::vector<float> values(static_cast<std::size_t>(n));
    dequantize_row(tensor.type, tensor.data, n, values.data());
    std::vector<std::byte> bytes(static_cast<std::size_t>(row_bytes(BlockType::Q8_0, n)));
    quantize_row(BlockType::Q8_0, values.data(), n, bytes.data());
    TESSERA_TRY(writer.write(bytes));
  }
  return writer.finish();
}

inline std::string expert_model(const std::string& name) {
  struct Written {
    std::map<std::string, std::string> paths;
    ~Written() {
      for (const auto& [name, path] : paths) std::remove(path.c_str());
    }
  };
  static Written written;
  if (name == "bundled") return TESSERA_SOURCE_DIR "/models/tessera-mini.gguf";
  if (!is_quantised(name)) return golden_path(name, "-bf16.gguf");
  std::string& path = written.paths[name];
  if (path.empty()) {
    path = ::testing::TempDir() + fmt::format("tessera_{}_{}.gguf", name, ::getpid());
    const Status done = write_q8(golden_path(name.substr(0, name.size() - 3), "-bf16.gguf"), path);
    EXPECT_TRUE(done) << done.error().message;
  }
  return path;
}

// `n` tokens at most.
inline std::vector<TokenId> expert_prompt(const std::string& name, std::size_t n) {
  if (name != "bundled") {
    const std::string golden = is_quantised(name) ? name.substr(0, name.size() - 3) : name;
    const GoldenData data = GoldenData::load(golden_path(golden, ".bin"));
    const std::span<const std::int32_t> ids = data.ints("p300_ids");
    return {ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(std::min(n, ids.size()))};
  }
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i < n; ++i) ids.push_back(static_cast<TokenId>(20 + i * i * 7 % 4000));
  return ids;
}

}  // namespace tessera::testing
