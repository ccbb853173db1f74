#include "worker/owned_experts.h"

#include <algorithm>
#include <bit>

#include "base/checked.h"

namespace tessera::worker {
namespace {

constexpr std::byte bit(std::size_t expert) {
  return static_cast<std::byte>(1 << (expert % 8));
}

}  // namespace

std::vector<std::byte> owned_bits(std::span<const LayerExperts> layers, ExpertHome home,
                                  std::uint32_t n_expert) {
  const std::size_t stride = (n_expert + 7) / 8;
  std::vector<std::byte> bits(layers.size() * stride, std::byte{0});
  for (std::size_t l = 0; l < layers.size(); ++l)
    for (std::size_t e = 0; e < layers[l].home.size(); ++e)
      if (layers[l].home[e] == home) bits[l * stride + e / 8] |= bit(e);
  return bits;
}

bool owns(const Hello& hello, std::size_t layer, int expert) {
  const std::size_t stride = (hello.dims.n_expert + 7) / 8;
  const auto e = static_cast<std::size_t>(expert);
  return (hello.owned[layer * stride + e / 8] & bit(e)) != std::byte{0};
}

int count_owned(const Hello& hello, std::size_t layer) {
  const std::size_t stride = (hello.dims.n_expert + 7) / 8;
  int owned = 0;
  for (const std::byte bits : std::span(hello.owned).subspan(layer * stride, stride))
    owned += std::popcount(std::to_integer<unsigned>(bits));
  return owned;
}

int count_owned(const Hello& hello) {
  int owned = 0;
  for (const std::byte bits : hello.owned) owned += std::popcount(std::to_integer<unsigned>(bits));
  return owned;
}

// Of a layer that keeps some a job is sent all the same.
std::optional<Hello> without_experts(Hello hello, std::span<const std::int64_t> bytes_of,
                                     std::int64_t bytes) {
  const std::size_t stride = (hello.dims.n_expert + 7) / 8;
  for (std::size_t l = hello.end_layer - hello.first_layer; l-- > 0 && bytes > 0;) {
    bytes = saturated_rest(bytes, {saturated_mul<std::int64_t>(count_owned(hello, l),
                                                               bytes_of[hello.first_layer + l])});
    std::fill_n(hello.owned.begin() + static_cast<std::ptrdiff_t>(l * stride), stride,
                std::byte{0});
  }
  if (bytes > 0 || count_owned(hello) == 0) return std::nullopt;
  return hello;
}

bool same_experts(std::span<const LayerExperts> a, std::span<const LayerExperts> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const LayerExperts& x, const LayerExperts& y) {
                      return x.home == y.home && x.spare == y.spare;
                    });
}

}  // namespace tessera::worker
