// Ids that cannot be guessed: 128 random bits from the operating system, as 32 hexadecimal digits.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::server {

std::string random_id(std::string_view prefix);

// A seed that survives JSON numbers: below 2^53.
std::uint64_t random_seed();

}  // namespace tessera::server
