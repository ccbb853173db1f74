// Which experts are chosen is counted wherever the layers are: layers in workers are counted as
// those of one process are, whatever their links, and whatever becomes of the workers.
#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "tests/worker/layer_rig.h"

namespace tessera::testing {
namespace {

using namespace std::chrono_literals;
using Counts = std::vector<std::vector<double>>;

// What a model counts. Nothing of it ages.
class Counted {
 public:
  explicit Counted(const std::string& path) : spec_(Model::open(path)->spec()) {}

  RoutingCounts& counter() { return counter_; }
  const Counts& counts() {
    counter_.take(profile_, std::numeric_limits<double>::infinity());
    return profile_.counts();
  }
  double rows(std::size_t layer) {
    const std::vector<double>& own = counts()[layer];
    return std::accumulate(own.begin(), own.end(), 0.0) /
           std::max(counter_.n_used(static_cast<int>(layer)), 1);
  }

 private:
  ModelSpec spec_;
  RoutingCounts counter_{spec_};
  RoutingProfile profile_{spec_, ""};
};

// Of a prompt, and of tokens one by one.
void ask(ModelRunner& runner, std::span<const std::int32_t> ids) {
  ASSERT_TRUE(runner.ready());
  (void)runner.logits(ids, 64);
  (void)runner.logits(ids.first(8), 1);
}

// Of the unsplit model.
Counts plain_counts(const std::string& path, std::span<const std::int32_t> ids) {
  Counted counted(path);
  ModelRunner plain(path, {.threads = 1, .device = {.experts = {.counts = &counted.counter()}}});
  ask(plain, ids);
  return counted.counts();
}

class RoutingLinks : public ::testing::TestWithParam<Link> {};
INSTANTIATE_TEST_SUITE_P(All, RoutingLinks, ::testing::ValuesIn(kLinks), link_param_name);

TEST_P(RoutingLinks, OfASplitModelIsThatOfTheUnsplitOne) {
  const auto ids = prompt().first(100);
  for (const char* name : {"qwen35moe", "laguna", "gemma4moe"}) {
    const std::string path =
        TESSERA_SOURCE_DIR "/tests/data/golden/" + std::string(name) + "-bf16.gguf";
    const Counts plain = plain_counts(path, ids);
    for (const char* topology : {"W", "LW", "WL", "WW"}) {
      if (GetParam() == Link::tcp && std::string_view(topology) == "WW") continue;  // one listens
      SCOPED_TRACE(fmt::format("{}, {}", name, topology));
      Counted counted(path);
      LayerWorkers workers{.transport = transport_of(GetParam())};
      if (GetParam() == Link::tcp) workers.listen(path);
      {
        RunnerOptions options{.device = {.experts = {.counts = &counted.counter()}}};
        ModelRunner runner(path, on_topology(path, topology, options, workers));
        ask(runner, ids);
      }
      EXPECT_EQ(counted.counts(), plain);
    }
  }
}

// Experts that leave the worker's memory are counted in the same way.
TEST(Routing, OfExpertsAwayIsCounted) {
  const auto ids = prompt().first(50);
  Counted counted(model_path());
  LayerWorkers workers;
  {
    RunnerOptions options{.device = {.experts = {.counts = &counted.counter()}},
                          .expert_resident = 40.0};
    ModelRunner runner(model_path(), on_topology(model_path(), "LW", options, workers));
    ask(runner, ids);
  }
  EXPECT_EQ(counted.counts(), plain_counts(model_path(), ids));
}

// A worker that serves one client after another tells each of its own.
TEST(Routing, OfAnEarlierClientIsNotToldToTheNext) {
  const auto ids = prompt().first(50);
  LayerWorkers workers;
  workers.listen(model_path());
  const Counts plain = plain_counts(model_path(), ids);
  for (const bool counts : {true, false, true}) {
    Counted counted(model_path());
    {
      RunnerOptions options;
      if (counts) options.device.experts.counts = &counted.counter();
      ModelRunner runner(model_path(), on_topology(model_path(), "LW", options, workers));
      ask(runner, ids);
    }
    if (counts) {
      EXPECT_EQ(counted.counts(), plain);
    }
  }
}

struct CountedRig {
  explicit CountedRig(Link link) : rig(link) {
    rig.options.device.experts.counts = &counted.counter();
    rig.load();
  }
  std::size_t first_away() const {
    return static_cast<std::size_t>(rig.runner->plan().shards.back().layout.first_layer);
  }
  // Until all layers were told of this many rows.
  bool told(double rows) {
    return eventually([&] {
      for (std::size_t l = 0; l < counted.counts().size(); ++l)
        if (counted.rows(l) < rows) return false;
      return true;
    });
  }
  void end() {
    rig.sequence = {};
    rig.runner.reset();
  }

  Counted counted{model_path()};
  LayerRig rig;
};

// What it had told stays, what it had not is gone, and nothing counts twice.
TEST_P(RoutingLinks, OfAWorkerThatDiesIsCountedAsFarAsItWasTold) {
  CountedRig it(GetParam());
  LayerRig& rig = it.rig;
  ASSERT_TRUE(rig.step(30, true));
  ASSERT_TRUE(it.told(30)) << "while nothing else is done";
  double sent = 30;
  {
    const Injection injection(Fault::kill, rig.pid());
    // A signal may come a moment after the step that follows it.
    for (int i = 0; i < 100; ++i, ++sent)
      if (!rig.step(1, true)) break;
  }
  rig.revive(Fault::kill);
  rig.expect_recovery();
  const auto again = static_cast<double>(question().size());
  const std::size_t first = it.first_away();
  it.end();
  for (std::size_t l = 0; l < it.counted.counts().size(); ++l) {
    SCOPED_TRACE(l);
    if (l < first) {
      EXPECT_GE(it.counted.rows(l), sent + again);
    } else {
      EXPECT_GE(it.counted.rows(l), 30 + again);
      EXPECT_LE(it.counted.rows(l), sent + again) << "of a job that was lost nothing";
    }
  }
}

// The same prompt before and after: each count is there once or twice.
TEST(Routing, OfAReplayedPromptIsNotCountedTwice) {
  CountedRig it(Link::shared);
  (void)it.rig.runner->logits(question(), 64);
  const std::size_t first = it.first_away();
  const int pid = it.rig.pid();
  send_signal(pid, SIGKILL);
  ASSERT_TRUE(eventually([&] { return it.rig.pid() != 0 && it.rig.pid() != pid; }));
  it.rig.expect_recovery();
  it.end();
  Counted plain(model_path());
  ModelRunner runner(model_path(),
                     {.threads = 1, .device = {.experts = {.counts = &plain.counter()}}});
  (void)runner.logits(question(), 64);
  const Counts &one = plain.counts(), &all = it.counted.counts();
  for (std::size_t l = 0; l < one.size(); ++l)
    for (std::size_t e = 0; e < one[l].size(); ++e) {
      if (l < first) {
        EXPECT_EQ(all[l][e], 2 * one[l][e]) << l << ", " << e;
      } else {
        EXPECT_GE(all[l][e], one[l][e]) << l << ", " << e;
        EXPECT_LE(all[l][e], 2 * one[l][e]) << l << ", " << e;
      }
    }
}

}  // namespace
}  // namespace tessera::testing
