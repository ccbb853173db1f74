// MergeTable: tokens and the merges that make them, grown to a size.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace tessera::synth {

enum class Kind : std::int32_t {
  normal = 1,
  unknown = 2,
  control = 3,
  user = 4,
  unused = 5,
  byte = 6
};

class MergeTable {
 public:
  // `space` is how the vocabulary spells U+0020.
  explicit MergeTable(std::string space) : space_(std::move(space)) {}

  std::size_t size() const { return tokens_.size(); }
  void add_token(std::string text, Kind kind);

  // Adds merged tokens until there are `size` tokens: frequent pieces first, then syllables and
  // words of them. The base symbols (letters, the space) must be there.
  void grow(std::size_t size);

  std::vector<std::string>& tokens() { return tokens_; }
  std::vector<std::int32_t>& kinds() { return kinds_; }
  std::vector<std::string>& merges() { return merges_; }

 private:
  // False when the table is full. A token that is there already is not added again.
  bool merge(const std::string& left, const std::string& right);
  bool merge_all(const std::vector<std::string>& lefts, const std::vector<std::string>& rights);

  std::string space_;
  std::size_t limit_ = 0;
  std::vector<std::string> tokens_;
  std::vector<std::int32_t> kinds_;
  std::vector<std::string> merges_;
  std::unordered_set<std::string> known_;
};

}  // namespace tessera::synth
