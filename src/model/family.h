// FamilyModel: what a family reader makes of a file's metadata, before any tensor is trusted.
//
// The reader states every tensor that the spec needs, with the exact shape it must have; the
// resolver (resolve.h) finds them. An expectation may name several sources: the same numbers under
// another name, or some rows of a fused tensor. They are tried in order, and the first one that the
// file has is used.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/spec.h"

namespace tessera {

// Rows first_row .. first_row + rows of each matrix of the tensor `name`, which has file_rows rows.
struct TensorSource {
  std::string name;
  std::int64_t first_row = 0;
  std::int64_t file_rows = 0;
};

struct ExpectedTensor {
  TensorRole role{};
  int layer = -1;
  std::int64_t matrices = 1;
  std::int64_t rows = 1;
  std::int64_t cols = 1;
  std::vector<TensorSource> sources;
};

struct FamilyModel {
  ModelSpec spec;
  std::vector<ExpectedTensor> tensors;
};

}  // namespace tessera
