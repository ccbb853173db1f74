#include "model/model.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "model/readers/readers.h"
#include "model/resolve.h"

namespace tessera {

Result<Model> Model::open(const std::string& path) {
  TESSERA_ASSIGN(gguf::File file, gguf::File::open(path));
  Result<Model> model = read(std::move(file));
  if (!model) return std::move(model).error().in(path);
  return model;
}

Result<Model> Model::read(gguf::File file) {
  TESSERA_ASSIGN(FamilyModel family, read_family(file));
  TESSERA_ASSIGN(ResolvedTensors resolved, resolve_tensors(file, family.tensors));
  Model model(std::move(file));
  model.spec_ = std::move(family.spec);
  model.tensors_ = std::move(resolved.slices);
  model.ignored_ = resolved.ignored;
  return model;
}

const TensorSlice* Model::find(TensorRole role, int layer) const {
  const auto key = [](const TensorSlice& slice) { return std::tuple(slice.layer, slice.role); };
  const auto found = std::ranges::lower_bound(tensors_, std::tuple(layer, role), {}, key);
  if (found == tensors_.end() || key(*found) != std::tuple(layer, role)) return nullptr;
  return &*found;
}

}  // namespace tessera
