// Model: a mapped GGUF file, the ModelSpec read from it, and where each tensor of the spec lies in
// it.
//
//   TESSERA_ASSIGN(Model model, Model::open("model.gguf"));
//   const TensorSlice* q = model.find(TensorRole::attn_q, /*layer=*/3);
//
// Every tensor that the spec needs is present with exactly the expected shape, or open() fails with
// one error that lists all that is missing or wrong. A slice is a view of the file: `matrices`
// (experts, else 1) of rows x cols, row-major, in the tensor's own block type. Fused tensors of the
// file (attn_qkv, ffn_gate_up_exps) appear as several slices of it. Immutable after open; any
// thread may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "gguf/gguf.h"
#include "model/spec.h"
#include "quant/block_format.h"
#include "text/tokenizer_spec.h"

namespace tessera {

struct TensorSlice {
  TensorRole role{};
  int layer = -1;
  BlockType type{};
  std::int64_t matrices = 1;
  std::int64_t rows = 1;
  std::int64_t cols = 1;  // the contiguous dimension; vectors are 1 x cols
  const std::byte* data = nullptr;
  std::int64_t row_stride = 0;     // bytes
  std::int64_t matrix_stride = 0;  // bytes
  const gguf::TensorInfo* tensor = nullptr;

  std::int64_t elements() const { return matrices * rows * cols; }
};

class Model {
 public:
  static Result<Model> open(const std::string& path);
  static Result<Model> read(gguf::File file);

  const ModelSpec& spec() const { return spec_; }
  const gguf::File& file() const { return file_; }
  const std::vector<TensorSlice>& tensors() const { return tensors_; }
  const TensorSlice* find(TensorRole role, int layer = -1) const;  // nullptr when the spec has none
  int ignored_tensors() const { return ignored_; }  // tensors of the file that nothing reads

 private:
  Model(gguf::File file) : file_(std::move(file)) {}

  gguf::File file_;
  ModelSpec spec_;
  std::vector<TensorSlice> tensors_;  // sorted by (layer, role)
  int ignored_ = 0;
};

// The tokenizer keys of a file; works on a vocabulary-only file of any architecture.
Result<text::TokenizerSpec> read_tokenizer_spec(const gguf::File& file);

}  // namespace tessera
