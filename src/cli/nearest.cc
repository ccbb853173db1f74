#include "cli/nearest.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

namespace tessera::cli {
namespace {

// Levenshtein's distance with weights: a letter too many or too few is sooner a slip than another
// letter, so that --contxt is --ctx, and not --config.
constexpr std::size_t kMissing = 2, kOther = 3;

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j < row.size(); ++j) row[j] = j * kMissing;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i * kMissing;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : kOther);
      diagonal = row[j];
      row[j] = std::min({row[j] + kMissing, row[j - 1] + kMissing, change});
    }
  }
  return row.back();
}

}  // namespace

std::string did_you_mean(std::string_view given, std::span<const std::string> candidates) {
  given = given.substr(0, 64);
  const std::string* best = nullptr;
  std::size_t least = given.size() + kMissing;
  for (const std::string& candidate : candidates) {
    const bool prefix = given.size() >= 3 && candidate.starts_with(given);
    const std::size_t distance = prefix ? kMissing : edit_distance(given, candidate);
    if (distance < least) {
      least = distance;
      best = &candidate;
    }
  }
  return best == nullptr ? "" : fmt::format(", did you mean {}?", *best);
}

}  // namespace tessera::cli
