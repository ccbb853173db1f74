#include "text/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "base/check.h"
#include "text/vocab_toy.h"

namespace tessera::text {
namespace {

// Merging as it is defined: the best pair of the whole word, again and again, over strings.
std::vector<std::string> merge_plainly(const std::string& word,
                                       const std::vector<std::string>& merges) {
  std::map<std::pair<std::string, std::string>, std::size_t> ranks;
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const std::size_t space = merges[i].find(' ', 1);
    ranks[{merges[i].substr(0, space), merges[i].substr(space + 1)}] = i;
  }
  std::vector<std::string> parts;
  for (const char c : word) parts.emplace_back(1, c);
  for (;;) {
    std::size_t best = merges.size();
    std::size_t where = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = ranks.find({parts[i], parts[i + 1]});
      if (found != ranks.end() && found->second < best) {
        best = found->second;
        where = i;
      }
    }
    if (best == merges.size()) return parts;
    parts[where] += parts[where + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(where) + 1);
  }
}

struct Rules {
  Vocabulary vocabulary;
  MergeTable table;
};

// Random rules over few letters, in any order: a rule may need the result of a later one, and some
// results are no tokens.
Rules random_rules(std::mt19937& random, std::vector<std::string>& merges) {
  TokenizerSpec spec = toy_byte_level_spec();
  std::vector<std::string> texts = {"a", "b", "c"};
  for (int i = 0; i < 12; ++i) {
    const std::string left = texts[random() % texts.size()];
    const std::string right = texts[random() % texts.size()];
    texts.push_back(left + right);
    merges.push_back(left + " " + right);
    if (random() % 4 != 0) add_token(spec, left + right, TokenType::normal);
  }
  std::shuffle(merges.begin(), merges.end(), random);
  Result<Vocabulary> vocabulary = Vocabulary::create(spec);
  CHECK(vocabulary.ok());
  Result<MergeTable> table = MergeTable::create(*vocabulary, merges);
  CHECK(table.ok());
  return {std::move(*vocabulary), std::move(*table)};
}

TEST(BpeMerger, AgreesWithTheDefinition) {
  std::mt19937 random(3);
  BpeMerger merger;
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> merges;
    const Rules rules = random_rules(random, merges);
    for (const std::size_t length : {1u, 2u, 5u, 40u, 160u, 161u, 400u}) {
      std::string word;
      const unsigned letters = 1 + static_cast<unsigned>(random() % 3);
      while (word.size() < length) word.push_back(static_cast<char>('a' + random() % letters));
      merger.begin_word();
      for (std::size_t i = 0; i < word.size(); ++i)
        merger.add(rules.table.of_byte(static_cast<std::uint8_t>(word[i])), i);
      merger.merge(rules.table);
      std::vector<std::string> parts;
      for (std::size_t i = 0; i < merger.size(); ++i) {
        const std::size_t end = i + 1 < merger.size() ? merger.offset(i + 1) : word.size();
        parts.push_back(word.substr(merger.offset(i), end - merger.offset(i)));
        if (merger.symbol(i) < static_cast<Symbol>(rules.vocabulary.size())) {
          EXPECT_EQ(rules.vocabulary.text(static_cast<TokenId>(merger.symbol(i))), parts.back());
        }
      }
      ASSERT_EQ(parts, merge_plainly(word, merges)) << word;
    }
  }
}

TEST(MergeTable, TakesTheLastOfEqualRules) {
  TokenizerSpec spec = toy_byte_level_spec();
  const std::vector<std::string> merges = {"a b", "b c", "a b"};
  const Vocabulary vocabulary = std::move(*Vocabulary::create(spec));
  const MergeTable table = std::move(*MergeTable::create(vocabulary, merges));
  EXPECT_EQ(table.rank('a', 'b'), 2u);
  EXPECT_EQ(table.rank('b', 'c'), 1u);
  EXPECT_EQ(table.rank('c', 'a'), kNoRank);
  EXPECT_EQ(table.rank(0, 0), kNoRank);
}

TEST(MergeTable, RefusesWhatIsNotARule) {
  TokenizerSpec spec = toy_byte_level_spec();
  const Vocabulary vocabulary = std::move(*Vocabulary::create(spec));
  for (const std::string bad : {"", " ", "a", " a", "a ", "ab"}) {
    const std::vector<std::string> merges = {"a b", bad};
    const Result<MergeTable> table = MergeTable::create(vocabulary, merges);
    ASSERT_FALSE(table.ok()) << '"' << bad << '"';
    EXPECT_EQ(table.error().message, "merge 1 is not two texts with a space between them");
  }
  // Cut at the first space that leaves a left side.
  EXPECT_TRUE(MergeTable::create(vocabulary, std::vector<std::string>{"  b", "a  "}).ok());
}

}  // namespace
}  // namespace tessera::text
