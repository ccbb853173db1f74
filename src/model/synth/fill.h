// The numbers of a synthetic tensor: any range of blocks on its own, in any order, by any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/synth/layout.h"

namespace tessera::synth {

std::int64_t block_count(const LayoutTensor& tensor);

// Writes blocks first_block .. first_block + n_blocks - 1 of the tensor. `seed` is the model's; a
// tensor's own sequence depends on its name too.
void fill_blocks(const LayoutTensor& tensor, std::uint64_t seed, std::int64_t first_block,
                 std::int64_t n_blocks, std::byte* dst);

}  // namespace tessera::synth
