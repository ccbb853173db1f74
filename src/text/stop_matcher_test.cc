#include "text/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

#include "base/check.h"

namespace tessera::text {
namespace {

StopMatcher make(std::vector<std::string> strings) {
  Result<StopMatcher> made = StopMatcher::create(std::move(strings));
  CHECK(made.ok());
  return std::move(*made);
}

TEST(StopMatcher, HoldsBackWhatMayBecomeAStop) {
  StopMatcher stops = make({"END", "\n\n"});
  EXPECT_EQ(stops.feed("one E").text, "one ");
  EXPECT_EQ(stops.feed("N").text, "");
  EXPECT_EQ(stops.feed("EN").text, "EN");
  const StopMatcher::Output last = stops.feed("D of it");
  EXPECT_EQ(last.text, "");
  EXPECT_EQ(last.stop, 0u);
  EXPECT_TRUE(stops.stopped());
  EXPECT_EQ(stops.feed("more").text, "");
  EXPECT_EQ(stops.flush(), "");
}

TEST(StopMatcher, FlushesWhatItHolds) {
  StopMatcher stops = make({"</s>"});
  EXPECT_EQ(stops.feed("a</s").text, "a");
  EXPECT_EQ(stops.flush(), "</s");
  EXPECT_EQ(stops.feed(">").text, ">");
}

TEST(StopMatcher, TakesTheFirstCompleteThenTheLongest) {
  EXPECT_EQ(make({"abcd", "bc"}).feed("xabcd").stop, 1u);
  StopMatcher stops = make({"c", "abc", "bc"});
  const StopMatcher::Output out = stops.feed("xabcd");
  EXPECT_EQ(out.stop, 1u);
  EXPECT_EQ(out.text, "x");
}

TEST(StopMatcher, PassesEverythingWithoutStops) {
  StopMatcher none;
  EXPECT_EQ(none.feed("text").text, "text");
  EXPECT_EQ(none.flush(), "");
}

TEST(StopMatcher, RefusesBadLists) {
  EXPECT_FALSE(StopMatcher::create(std::vector<std::string>(17, "x")).ok());
  EXPECT_TRUE(StopMatcher::create(std::vector<std::string>(16, "x")).ok());
  EXPECT_FALSE(StopMatcher::create({"x", ""}).ok());
  EXPECT_FALSE(StopMatcher::create({std::string(StopMatcher::kMaxBytes + 1, 'x')}).ok());
}

// The same by definition: look at every end of the whole text.
struct Plain {
  std::string text;
  std::optional<std::size_t> stop;
};
Plain search(const std::string& text, const std::vector<std::string>& stops) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < stops.size(); ++i) {
      if (text.substr(0, end).ends_with(stops[i]) &&
          (!best || stops[i].size() > stops[*best].size()))
        best = i;
    }
    if (best) return {text.substr(0, end - stops[*best].size()), best};
  }
  return {text, std::nullopt};
}

std::size_t longest_held(const std::string& text, const std::vector<std::string>& stops) {
  std::size_t held = 0;
  for (const std::string& stop : stops) {
    for (std::size_t n = 1; n < stop.size(); ++n) {
      if (text.ends_with(stop.substr(0, n))) held = std::max(held, n);
    }
  }
  return held;
}

TEST(StopMatcher, AgreesWithTheDefinition) {
  std::mt19937 random(23);
  const auto word = [&](std::size_t most) {
    std::string s(1 + random() % most, ' ');
    for (char& c : s) c = static_cast<char>('a' + random() % 2);
    return s;
  };
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops(1 + random() % 4);
    for (std::string& s : stops) s = word(7);
    const std::string text = word(40);
    const Plain expected = search(text, stops);
    StopMatcher matcher = make(stops);
    std::string shown;
    std::optional<std::size_t> stop;
    for (std::size_t at = 0; at < text.size() && !stop;) {
      const std::size_t n = 1 + random() % 5;
      StopMatcher::Output out = matcher.feed(std::string_view(text).substr(at, n));
      shown += out.text;
      stop = out.stop;
      at = std::min(at + n, text.size());
      if (!stop) {
        ASSERT_EQ(shown.size() + longest_held(text.substr(0, at), stops), at);
      }
    }
    shown += matcher.flush();
    ASSERT_EQ(stop, expected.stop);
    ASSERT_EQ(shown, expected.text);
  }
}

}  // namespace
}  // namespace tessera::text
