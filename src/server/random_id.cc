#include "server/random_id.h"

#include <fmt/core.h>

#include <random>

namespace tessera::server {
namespace {

std::uint64_t random_word() {
  thread_local std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) | device();
}

}  // namespace

std::string random_id(std::string_view prefix) {
  return fmt::format("{}{:016x}{:016x}", prefix, random_word(), random_word());
}

std::uint64_t random_seed() {
  return random_word() >> 11;
}

}  // namespace tessera::server
