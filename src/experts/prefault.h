// Bringing the experts that a shard's device does not hold into memory before they are needed, so
// that no row waits for the disk. Workers' too: the host computes for a worker that cannot.
//
//   TESSERA_TRY(prefault_experts(model, layout, ExpertPrefault::on));
//
// They are pages of the model's mapped file, which the system may take back, unless they are
// locked: then they stay as long as the model is open. Errors: io where the file cannot be read;
// exhausted where the system does not let the process lock so much.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "experts/executor.h"
#include "experts/options.h"

namespace tessera {

// The bytes that it locks then: whole pages. One that two tensors share may count for both.
std::int64_t locked_bytes(const Model& model, const ShardLayout& layout);

Status prefault_experts(const Model& model, const ShardLayout& layout, ExpertPrefault prefault);

// Lets go of the pages of an expert that was read and is not needed again; from where they are
// locked they do not go.
void release_expert(const Model& model, const ExpertOfLayer& which);

}  // namespace tessera
