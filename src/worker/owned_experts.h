// The experts of HELLO: for each layer of its range n_expert bits, least significant first, each
// layer from a new byte. Role experts: those that the worker computes. Role layers: those that stay
// in its memory; the others are computed from its model file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
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

// Of all its layers, or of one.
int count_owned(const Hello& hello);
int count_owned(const Hello& hello, std::size_t layer);

// `hello` with fewer experts: whole layers of them go, from the last one on, until they had `bytes`
// or more. One of layer l has bytes_of[l]. None where all that it has are less, or no more than
// that.
std::optional<Hello> without_experts(Hello hello, std::span<const std::int64_t> bytes_of,
                                     std::int64_t bytes);

// Whether both hold the same experts, with as much room for more.
bool same_experts(std::span<const LayerExperts> a, std::span<const LayerExperts> b);

}  // namespace tessera::worker
