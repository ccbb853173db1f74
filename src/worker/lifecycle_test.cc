#include "worker/lifecycle.h"

#include <gtest/gtest.h>

namespace tessera::worker {
namespace {

using namespace std::chrono_literals;

class States : public testing::Test {
 protected:
  States()
      : life_({.heartbeat = 10ms, .dead_after = 100ms, .job_limit = 1s, .settled = 60s}, now_) {}
  Session::Health silent_for(Clock::duration silence) const { return {.heard = now_ - silence}; }
  Session::Health busy_for(Clock::duration age, int abandoned = 0) const {
    return {.heard = now_ - age, .oldest_job = now_ - age, .abandoned = abandoned};
  }
  void die() {
    life_.lost(now_);
    life_.buried(now_);
  }

  Deadline now_ = Deadline(1000s);
  Lifecycle life_;
};

TEST_F(States, HeartbeatsDecideWhileIdle) {
  EXPECT_EQ(life_.state(), WorkerState::starting);
  EXPECT_EQ(life_.tick(now_, silent_for(1h)), std::nullopt) << "not judged while it starts";
  life_.started(now_);
  EXPECT_EQ(life_.tick(now_, silent_for(29ms)), std::nullopt);
  EXPECT_EQ(life_.state(), WorkerState::healthy);
  EXPECT_EQ(life_.tick(now_, silent_for(30ms)), std::nullopt);
  EXPECT_EQ(life_.state(), WorkerState::suspect);
  EXPECT_EQ(life_.tick(now_, silent_for(1ms)), std::nullopt);
  EXPECT_EQ(life_.state(), WorkerState::healthy);
  EXPECT_EQ(life_.tick(now_, silent_for(100ms)), DeathReason::hung);
}

// With a drain under way nobody waits for the whole of a job's time.
TEST_F(States, OneThatStaysSuspectIsGivenUpInAHurry) {
  const auto late = [this](Clock::duration age) {
    return Session::Health{.heard = now_ - age, .oldest_job = now_ - age, .late = true};
  };
  life_.started(now_);
  EXPECT_EQ(life_.tick(now_, late(500ms)), std::nullopt);
  now_ += 1h;
  life_.hurry(now_);
  EXPECT_EQ(life_.tick(now_, late(500ms)), std::nullopt) << "however long it was suspect";
  now_ += 99ms;
  life_.hurry(now_);
  EXPECT_EQ(life_.tick(now_, late(600ms)), std::nullopt);
  EXPECT_EQ(life_.tick(now_, busy_for(1ms)), std::nullopt);
  EXPECT_EQ(life_.state(), WorkerState::healthy) << "it has answered";
  now_ += 1h;
  EXPECT_EQ(life_.tick(now_, busy_for(900ms)), std::nullopt) << "a long job and no late one";
  EXPECT_EQ(life_.tick(now_, late(900ms)), std::nullopt);
  now_ += 100ms;
  EXPECT_EQ(life_.tick(now_, late(900ms)), DeathReason::hung);
}

// A process that stood still has not listened meanwhile.
TEST_F(States, SilenceCountsWhileSomebodyLooks) {
  life_.started(now_);
  const Deadline heard = now_;
  now_ += 1h;
  EXPECT_EQ(life_.tick(now_, {.heard = heard}), std::nullopt);
  EXPECT_EQ(life_.state(), WorkerState::suspect);
  now_ += 1h;
  EXPECT_EQ(life_.tick(now_, {.heard = heard}), std::nullopt);
  for (int look = 0; look < 3; ++look) {
    now_ += 10ms;
    EXPECT_EQ(life_.tick(now_, {.heard = heard}), std::nullopt) << look;
  }
  now_ += 10ms;
  EXPECT_EQ(life_.tick(now_, {.heard = heard}), DeathReason::hung) << "100 ms were watched";
  life_.started(now_);
  now_ += 1h;
  EXPECT_EQ(life_.tick(now_, {.heard = now_ - 29ms}), std::nullopt);
  EXPECT_EQ(life_.state(), WorkerState::healthy);
}

TEST_F(States, TheOldestJobDecidesWhileBusy) {
  life_.started(now_);
  EXPECT_EQ(life_.tick(now_, busy_for(900ms)), std::nullopt);
  EXPECT_EQ(life_.state(), WorkerState::healthy);
  EXPECT_EQ(life_.tick(now_, busy_for(900ms, 1)), std::nullopt);
  EXPECT_EQ(life_.state(), WorkerState::suspect) << "a job passed its deadline";
  Session::Health late = busy_for(900ms);
  EXPECT_EQ(life_.tick(now_, late), std::nullopt);
  EXPECT_EQ(life_.state(), WorkerState::healthy);
  late.late = true;
  EXPECT_EQ(life_.tick(now_, late), std::nullopt);
  EXPECT_EQ(life_.state(), WorkerState::suspect) << "others took less";
  EXPECT_EQ(life_.tick(now_, busy_for(1s, 1)), DeathReason::hung);
}

// It has a heartbeat to answer before any job that comes then.
TEST_F(States, AJobDoesNotExcuseWhoWasSilentBefore) {
  life_.started(now_);
  const Deadline heard = now_;
  now_ += 30ms;
  EXPECT_EQ(life_.tick(now_, {.heard = heard}), std::nullopt);
  EXPECT_EQ(life_.state(), WorkerState::suspect);
  const Deadline begun = now_;
  for (now_ += 10ms; now_ < heard + 100ms; now_ += 10ms) {
    EXPECT_EQ(life_.tick(now_, {.heard = heard, .oldest_job = begun}), std::nullopt);
    EXPECT_EQ(life_.state(), WorkerState::suspect);
  }
  EXPECT_EQ(life_.tick(now_, {.heard = heard, .oldest_job = begun}), DeathReason::hung);
}

TEST_F(States, WhoAnswersTheHeartbeatMayTakeItsTimeWithTheJob) {
  life_.started(now_);
  const Deadline heard = now_;
  now_ += 30ms;
  EXPECT_EQ(life_.tick(now_, {.heard = heard}), std::nullopt);
  const Deadline begun = now_;
  now_ += 900ms;
  EXPECT_EQ(life_.tick(now_, {.heard = begun, .oldest_job = begun}), std::nullopt);
  EXPECT_EQ(life_.state(), WorkerState::healthy);
}

TEST_F(States, BackoffDoublesToItsMost) {
  for (const auto want : {1s, 2s, 4s, 8s, 16s, 32s, 60s, 60s}) {
    die();
    EXPECT_EQ(life_.state(), WorkerState::backoff);
    EXPECT_EQ(life_.backoff(), want);
    EXPECT_EQ(life_.next_look(now_), now_ + want);
    now_ += want - 1ms;
    life_.tick(now_);
    EXPECT_EQ(life_.state(), WorkerState::backoff);
    now_ += 1ms;
    life_.tick(now_);
    EXPECT_EQ(life_.state(), WorkerState::starting);
  }
}

TEST_F(States, ALongLifeForgivesEarlierDeaths) {
  die();
  die();
  EXPECT_EQ(life_.backoff(), 2s);
  now_ += 2s;
  life_.tick(now_);
  life_.started(now_);
  now_ += 59s;
  die();
  EXPECT_EQ(life_.backoff(), 4s);
  now_ += 4s;
  life_.tick(now_);
  life_.started(now_);
  now_ += 60s;
  die();
  EXPECT_EQ(life_.backoff(), 1s);
}

class Capped : public States {
 protected:
  void set(bool reappears) {
    life_ = Lifecycle({.most_restarts = 3, .restart_window = 600s, .reappears = reappears}, now_);
  }
  // Until the next start begins; false where there is none.
  bool starts_again() {
    for (int i = 0; i < 200 && life_.state() != WorkerState::starting; ++i) {
      now_ += 1s;
      life_.tick(now_);
    }
    return life_.state() == WorkerState::starting;
  }
};

TEST_F(Capped, AWorkerThatDiesTooOftenFails) {
  set(false);
  life_.started(now_);
  for (int restart = 0; restart < 3; ++restart) {
    die();
    EXPECT_FALSE(life_.failed());
    ASSERT_TRUE(starts_again());
    life_.started(now_);
  }
  die();
  EXPECT_TRUE(life_.failed());
  EXPECT_EQ(life_.state(), WorkerState::failed);
  EXPECT_FALSE(starts_again());
}

TEST_F(Capped, StartsThatFailCountAndOldOnesDoNot) {
  set(false);
  die();  // before its first success: the caller's to judge
  ASSERT_TRUE(starts_again());
  life_.started(now_);
  for (int round = 0; round < 5; ++round) {
    now_ += 601s;
    die();
    ASSERT_TRUE(starts_again());
    die();  // it does not start
    ASSERT_TRUE(starts_again());
    life_.started(now_);
  }
  die();
  ASSERT_TRUE(starts_again());
  die();
  EXPECT_TRUE(life_.failed());
}

TEST_F(Capped, OneThatIsStartedElsewhereIsLookedForAndBeginsAnew) {
  set(true);
  for (int round = 0; round < 2; ++round) {
    life_.started(now_);
    EXPECT_FALSE(life_.failed());
    for (int restart = 0; restart < 3; ++restart) {
      die();
      EXPECT_FALSE(life_.failed());
      ASSERT_TRUE(starts_again());
    }
    for (int attempt = 0; attempt < 5; ++attempt) {
      die();
      EXPECT_EQ(life_.state(), WorkerState::failed);
      ASSERT_TRUE(starts_again());
      EXPECT_TRUE(life_.failed()) << "until it is back";
    }
  }
}

TEST_F(States, StoppedIsForGood) {
  life_.stop(now_);
  life_.lost(now_);
  life_.buried(now_);
  life_.started(now_);
  EXPECT_EQ(life_.state(), WorkerState::stopped);
}

}  // namespace
}  // namespace tessera::worker
