// Which bytes of a model's files a worker without them asks for. Pure functions.
//
//   shard_ranges(model, layout)      what role layers loads
//   expert_ranges(model, layout)     what role experts loads
#pragma once

#include "device/device.h"
#include "experts/expert_set.h"
#include "model/model.h"
#include "worker/byte_ranges.h"

namespace tessera::worker {

// What lies before the tensors, in each file.
FileRanges header_ranges(const gguf::File& file);
// What of the tensors is looked at before a model is taken for what it says it is: the samples of
// its digest, and the small vectors that a family's reader may look into.
FileRanges identity_ranges(const gguf::File& file);
// Memory that these take, for as long as the model is kept: beside the budget of what is loaded.
std::uint64_t opening_bytes(const gguf::File& file);

FileRanges shard_ranges(const Model& model, const ShardLayout& layout);
FileRanges expert_ranges(const Model& model, const ExpertSetLayout& layout);

}  // namespace tessera::worker
