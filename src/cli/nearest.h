// The name that a person may have meant.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tessera::cli {

// ", did you mean NAME?" for the candidate with the smallest edit distance, or nothing when none
// is near.
std::string did_you_mean(std::string_view given, std::span<const std::string> candidates);

}  // namespace tessera::cli
