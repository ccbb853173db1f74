#include "cli/nearest.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace tessera::cli {
namespace {

// Levenshtein's distance.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
    }
  }
  return row.back();
}

}  // namespace

std::string did_you_mean(std::string_view given, std::span<const std::string> candidates) {
  given = given.substr(0, 64);
  const std::string* best = nullptr;
  std::size_t least = given.size() / 2 + 1;
  for (const std::string& candidate : candidates) {
    const bool prefix = given.size() >= 3 && candidate.starts_with(given);
    const std::size_t distance = prefix ? 1 : edit_distance(given, candidate);
    if (distance < least) {
      least = distance;
      best = &candidate;
    }
  }
  return best == nullptr ? "" : fmt::format(", did you mean {}?", *best);
}

}  // namespace tessera::cli
