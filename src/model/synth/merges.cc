#include "model/synth/merges.h"

#include "base/check.h"

namespace tessera::synth {
namespace {

// Frequent pieces of English, each of two earlier ones; '_' is the space.
constexpr std::string_view kPieces[][2] = {
    {"_", "t"},   {"h", "e"},  {"_", "a"},    {"i", "n"},  {"_t", "he"}, {"e", "r"},  {"o", "n"},
    {"r", "e"},   {"_", "s"},  {"a", "t"},    {"e", "n"},  {"o", "r"},   {"_", "w"},  {"_", "c"},
    {"i", "s"},   {"n", "d"},  {"i", "t"},    {"_", "o"},  {"in", "g"},  {"e", "s"},  {"_a", "nd"},
    {"_", "f"},   {"_", "b"},  {"_", "p"},    {"e", "d"},  {"a", "l"},   {"_o", "f"}, {"_t", "o"},
    {"a", "n"},   {"_", "in"}, {"o", "u"},    {"_", "m"},  {"a", "r"},   {"_", "h"},  {"l", "e"},
    {"_", "d"},   {"_", "is"}, {"_f", "or"},  {"t", "i"},  {"ti", "on"}, {"l", "l"},  {"e", "l"},
    {"_", "th"},  {"t", "h"},  {"_th", "at"}, {"_s", "t"}, {"_", "n"},   {"_", "l"},  {"_w", "h"},
    {"_", "it"},  {"_b", "e"}, {"a", "s"},    {"_", "as"}, {"i", "c"},   {"o", "m"},  {"v", "e"},
    {"_y", "ou"}, {"_", "y"},  {"_w", "ith"}, {"_", "on"}, {"e", "t"},   {"s", "e"},  {"u", "t"},
};

std::vector<std::string> syllables() {
  std::vector<std::string> all;
  for (const char consonant : std::string_view("bcdfghjklmnprstvwz")) {
    for (const char vowel : std::string_view("aeiou")) all.push_back({consonant, vowel});
  }
  return all;
}

std::vector<std::string> products(const std::vector<std::string>& lefts,
                                  const std::vector<std::string>& rights) {
  std::vector<std::string> all;
  all.reserve(lefts.size() * rights.size());
  for (const std::string& left : lefts) {
    for (const std::string& right : rights) all.push_back(left + right);
  }
  return all;
}

}  // namespace

void MergeTable::add_token(std::string text, Kind kind) {
  known_.insert(text);
  tokens_.push_back(std::move(text));
  kinds_.push_back(static_cast<std::int32_t>(kind));
}

bool MergeTable::merge(const std::string& left, const std::string& right) {
  if (tokens_.size() >= limit_) return false;
  // A piece whose parts come later in the list is skipped.
  if (!known_.contains(left) || !known_.contains(right) || known_.contains(left + right)) {
    return true;
  }
  merges_.push_back(left + " " + right);
  add_token(left + right, Kind::normal);
  return true;
}

bool MergeTable::merge_all(const std::vector<std::string>& lefts,
                           const std::vector<std::string>& rights) {
  for (const std::string& left : lefts) {
    for (const std::string& right : rights) {
      if (!merge(left, right)) return false;
    }
  }
  return true;
}

void MergeTable::grow(std::size_t size) {
  limit_ = size;
  const auto spelled = [&](std::string_view piece) {
    return piece.starts_with('_') ? space_ + std::string(piece.substr(1)) : std::string(piece);
  };
  for (const auto& [left, right] : kPieces) {
    if (!merge(spelled(left), spelled(right))) return;
  }
  for (std::string run = space_; run.size() < 16 * space_.size(); run += run) merge(run, run);

  const std::vector<std::string> one = syllables();
  for (const std::string& syllable : one) {
    if (!merge(syllable.substr(0, 1), syllable.substr(1))) return;
  }
  const std::vector<std::string> spaced = products({space_}, one);
  const std::vector<std::string> two = products(one, one);
  if (!merge_all({space_}, one) || !merge_all(one, one) || !merge_all(spaced, one)) return;
  if (!merge_all(two, one) || !merge_all(products(spaced, one), one)) return;
  CHECK(tokens_.size() >= limit_, "no words for {} tokens", limit_);
}

}  // namespace tessera::synth
