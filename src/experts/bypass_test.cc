#include "experts/bypass.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

using namespace std::chrono_literals;
using std::chrono::microseconds;

constexpr std::size_t kPairs = 8;
constexpr double kHostUs = 400;

// A request's layers, one after another, each with the same pairs for one worker.
struct Layers {
  Bypass bypass{1, 100ms};
  Bypass::Clock::time_point now{1h};
  int given = 0;
  int begun = 0;
  int ended = 0;
  double lost_us = 0;  // to the worker, of what the host would have taken

  void run(int layers, double spent_us, std::size_t pairs = kPairs) {
    for (int i = 0; i < layers; ++i) {
      const double host_us = kHostUs * static_cast<double>(pairs) / kPairs;
      if (bypass.passes_over(0, pairs, now)) {
        now += microseconds(static_cast<std::int64_t>(host_us));
        continue;
      }
      ++given;
      lost_us += std::max(0.0, spent_us - host_us);
      now += microseconds(static_cast<std::int64_t>(spent_us));
      const BypassChange change =
          bypass.learn(0, {.pairs = pairs, .us = spent_us, .host_us = host_us}, now);
      begun += change == BypassChange::begun ? 1 : 0;
      ended += change == BypassChange::ended ? 1 : 0;
    }
  }
};

TEST(Bypass, AWorkerThatIsHiddenOrFasterIsKept) {
  for (const double spent_us : {0.0, 100.0, 400.0, 590.0}) {
    Layers layers;
    layers.run(100'000, spent_us);
    EXPECT_EQ(layers.given, 100'000) << spent_us;
  }
}

// However slow it is, a long request loses the patience, half of it at each return, two jobs, and a
// twentieth of its time. What is borne besides is half the host's time of each job.
TEST(Bypass, ASlowWorkerCostsABoundedTime) {
  for (const double spent_us : {1'000.0, 5'000.0, 30'000.0, 108'000.0}) {
    Layers layers;
    const auto begin = layers.now;
    layers.run(20'000, spent_us);
    const double took_us = std::chrono::duration<double, std::micro>(layers.now - begin).count();
    EXPECT_LE(layers.ended, spent_us > 5'600 ? 0 : 6) << spent_us;
    EXPECT_LE(layers.lost_us, 1.5 * (100'000 + 50'000 * layers.ended) + 2 * spent_us + took_us / 20)
        << spent_us;
  }
}

TEST(Bypass, TriesAreFewAndLessAndLessOften) {
  Layers layers;
  layers.run(100, 30'000);
  EXPECT_LE(layers.given, 6) << "4 jobs of 30 ms are more than 100 ms";
  const int before = layers.given;
  layers.run(2'500'000, 30'000);  // a thousand seconds of the host's
  EXPECT_GT(layers.given, before + 15) << "once a minute at least";
  EXPECT_LT(layers.given, before + 30);
}

TEST(Bypass, OneAccidentIsNone) {
  Layers layers;
  layers.run(1, 600'000);
  layers.run(40, 100);
  layers.run(1, 90'000);
  layers.run(1, 100);
  layers.run(1, 90'000);
  EXPECT_EQ(layers.begun, 0);
}

TEST(Bypass, AWorkerThatIsFastAgainComesBackAndIsOnProbation) {
  Layers layers;
  layers.run(10, 30'000);
  ASSERT_EQ(layers.begun, 1);
  EXPECT_EQ(layers.bypass.passed_over(0, layers.now), "jobs of up to 16 pairs");
  layers.now += 700ms;  // 20 times what a job lost
  EXPECT_EQ(layers.bypass.passed_over(0, layers.now), std::nullopt) << "the next job is its";
  layers.run(1, 100);
  EXPECT_EQ(layers.ended, 1);
  const int given = layers.given;
  layers.run(10, 30'000);
  EXPECT_EQ(layers.begun, 2);
  EXPECT_EQ(layers.given, given + 2) << "it has half its patience";
  layers.now += 10s;
  layers.run(200, 100);
  EXPECT_EQ(layers.ended, 2);
  layers.run(3, 30'000);
  EXPECT_EQ(layers.begun, 2) << "it has won some";
}

TEST(Bypass, OneWorkerThatIsSlowAndFastInTurnsIsTriedLessAndLess) {
  Layers layers;
  for (int i = 0; i < 12; ++i) {
    layers.run(10, 30'000);  // slow whenever it is used
    while (layers.bypass.passed_over(0, layers.now)) layers.now += 10ms;
    layers.run(1, 100);  // and fast when it is tried
  }
  EXPECT_EQ(layers.ended, 12);
  EXPECT_GT(layers.now - Bypass::Clock::time_point(1h), 3min);
}

TEST(Bypass, SizesAndWorkersAreJudgedApart) {
  Bypass bypass(2, 100ms);
  Bypass::Clock::time_point now(1h);
  for (int i = 0; i < 20; ++i) bypass.learn(1, {.pairs = 8, .us = 30'000, .host_us = 400}, now);
  EXPECT_TRUE(bypass.passes_over(1, 8, now));
  EXPECT_FALSE(bypass.passes_over(1, 4000, now));
  EXPECT_FALSE(bypass.passes_over(0, 8, now));
  for (int i = 0; i < 20; ++i)
    bypass.learn(1, {.pairs = 4000, .us = 300'000, .host_us = 100'000}, now);
  EXPECT_EQ(bypass.passed_over(1, now), "jobs of up to 16 pairs, jobs of over 1024 pairs");
}

TEST(Bypass, ADearJobIsTriedLateAndWhatTheHostTakesIsWhatCounts) {
  Bypass bypass(1, 100ms);
  Bypass::Clock::time_point now(1h);
  const auto learn = [&](double host_us) {
    return bypass.learn(0, {.pairs = 400, .us = 550'000, .host_us = host_us}, now);
  };
  for (int i = 0; i < 20; ++i) EXPECT_EQ(learn(0), BypassChange::none) << "nothing is known";
  for (int i = 0; i < 20; ++i) EXPECT_EQ(learn(400'000), BypassChange::none);
  for (int i = 0; i < 20; ++i) learn(40'000);
  EXPECT_TRUE(bypass.passes_over(0, 400, now));
  EXPECT_TRUE(bypass.passes_over(0, 400, now + 59s));
  EXPECT_FALSE(bypass.passes_over(0, 400, now + 61s)) << "a dear one is tried late";
  now += 61s;
  EXPECT_EQ(learn(1'000'000), BypassChange::ended) << "the host's pages were cold";
}

}  // namespace
}  // namespace tessera
