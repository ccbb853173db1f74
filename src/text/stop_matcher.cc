#include "text/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace tessera::text {
namespace {

std::vector<std::uint32_t> borders(std::string_view s) {
  std::vector<std::uint32_t> border(s.size() + 1, 0);
  std::uint32_t k = 0;
  for (std::size_t i = 1; i < s.size(); ++i) {
    while (k > 0 && s[i] != s[k]) k = border[k];
    if (s[i] == s[k]) ++k;
    border[i + 1] = k;
  }
  return border;
}

}  // namespace

Result<StopMatcher> StopMatcher::create(std::vector<std::string> strings) {
  if (strings.size() > kMaxStrings)
    return Error::make(ErrorCode::invalid, "{} stop strings were given; at most {} are supported",
                       strings.size(), kMaxStrings);
  StopMatcher matcher;
  for (std::size_t i = 0; i < strings.size(); ++i) {
    if (strings[i].empty()) return Error::make(ErrorCode::invalid, "stop string {} is empty", i);
    if (strings[i].size() > kMaxBytes)
      return Error::make(ErrorCode::invalid,
                         "stop string {} has {} bytes; at most {} are supported", i,
                         strings[i].size(), kMaxBytes);
    matcher.automata_.push_back({borders(strings[i]), 0});
  }
  matcher.strings_ = std::move(strings);
  return matcher;
}

StopMatcher::Output StopMatcher::feed(std::string_view piece) {
  Output out;
  if (stopped_) return out;
  held_.append(piece);
  const std::size_t first_new = held_.size() - piece.size();
  for (std::size_t at = first_new; at < held_.size(); ++at) {
    for (std::size_t i = 0; i < automata_.size(); ++i) {
      const std::string& s = strings_[i];
      std::uint32_t& matched = automata_[i].matched;
      while (matched > 0 && s[matched] != held_[at]) matched = automata_[i].border[matched];
      if (s[matched] == held_[at]) ++matched;
      if (matched == s.size() && (!out.stop || s.size() > strings_[*out.stop].size())) out.stop = i;
    }
    if (out.stop) {
      out.text = held_.substr(0, at + 1 - strings_[*out.stop].size());
      held_.clear();
      stopped_ = true;
      return out;
    }
  }
  std::uint32_t keep = 0;
  for (const Automaton& automaton : automata_) keep = std::max(keep, automaton.matched);
  out.text = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return out;
}

std::string StopMatcher::flush() {
  for (Automaton& automaton : automata_) automaton.matched = 0;
  stopped_ = false;
  return std::exchange(held_, {});
}

}  // namespace tessera::text
