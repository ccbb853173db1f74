// The experts of HELLO: for each layer of its range n_expert bits, least significant first, each
// layer from a new byte. Role experts: those that the worker computes. Role layers: those that stay
// in its memory; the others are computed from its model file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/expert_home.h"
#include "worker/messages.h"

namespace tessera::worker {

// The experts of `layers` whose home is `home`.
std::vector<std::byte> owned_bits(std::span<const LayerExperts> layers, ExpertHome home,
                                  std::uint32_t n_expert);

// Of a HELLO that was decoded; `layer` counts from its first one.
bool owns(const Hello& hello, std::size_t layer, int expert);

// Whether both hold the same experts, with as much room for more.
bool same_experts(std::span<const LayerExperts> a, std::span<const LayerExperts> b);

}  // namespace tessera::worker
