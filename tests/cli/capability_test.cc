// Options of models mean the same wherever layers and experts lie: every option of the table, on
// every topology, is honoured or refused at start. The data is capability_matrix.h; what holds is
// shown on the program's own code, from its words to plans and logits, within this process (workers
// are processes of the program):
//
//   every option    has an entry; one alone at another value, on each topology: it is taken, or
//                   refused with the line that kRefusals has, and nothing else is refused
//   Effect::plan    shows in the plan, in every shard that it is about
//   Effect::logits  alone changes the bits on one device; all of them that a topology takes, set
//                   together, give there the bits of one device with the same. An option that were
//                   dropped on the way would be missing in them.
//   Effect::layers, Effect::experts, Effect::workers
//                   show in how the topology's workers are reached, or in the counts of jobs and
//                   bytes; without such workers they change nothing
//   Effect::gpu, Effect::process      change nothing: all set together, the plan and the bits are
//                   those without
//   Effect::pages   shows in what the process has locked in memory
//   Effect::topology                  is what some topology here is made of
//
// Bits of a split are those of one device, and so are those of experts away: adding their sums
// loses nothing (experts/executor.h).
#include <unistd.h>

#include <filesystem>
#include <map>
#include <numeric>

#include "base/log.h"
#include "cli/loading.h"
#include "cli/option_table.h"
#include "cli/option_value.h"
#include "cli/placement_options.h"
#include "tests/cli/capability_entries.h"
#include "tests/cli/program.h"
#include "tests/cli/reluctant_worker.h"

namespace tessera::testing {
namespace {

using nlohmann::json;

bool is_over_address(const std::string& device) {
  return device.starts_with("worker:unix") || device.starts_with("worker:tcp");
}

TEST(Capabilities, EveryOptionHasAnEntry) {
  for (const cli::Option& option : cli::option_table()) {
    const Entry* entry = find_entry(option.key);
    ASSERT_NE(entry, nullptr) << option.key;
    const bool of_models = (option.commands & cli::kModelCommands) != 0;
    const bool one_call = entry->effect == Effect::call;
    EXPECT_TRUE(one_call || of_models) << option.key;
    EXPECT_TRUE(!one_call || !of_models || !option.file) << option.key;
    const bool has_value = !entry->value.empty();
    EXPECT_EQ(has_value, !one_call && entry->effect != Effect::topology) << option.key;
  }
  for (const Entry& entry : kEntries) {
    const cli::Option* option = cli::find_option(entry.key);
    ASSERT_NE(option, nullptr) << entry.key << " is no option any more";
    if (entry.value.empty() || option->choices.empty()) continue;
    const std::vector<Entry> values = values_of(entry);
    EXPECT_EQ(std::count(option->choices.begin(), option->choices.end(), '|'),
              static_cast<std::ptrdiff_t>(values.size()))
        << entry.key << ": all choices but the default";
  }
  for (const Refusal& refusal : kRefusals)
    EXPECT_NE(cli::find_option(refusal.key), nullptr) << refusal.key;
}

TEST(Capabilities, EveryOptionAloneIsTakenOrRefused) {
  for (const Topology topology : kTopologies) {
    const Result<json> base = plan_of(Rig::get().topology(topology));
    ASSERT_TRUE(base) << name_of(topology) << ": " << base.error().message;
    for_each_entry([&](const Entry& entry) {
      // Those that change nothing are tried together below.
      if (entry.effect != Effect::logits && entry.effect != Effect::plan) return;
      if (is_default_here(entry) || entry.key == "placement.layer_times") return;
      SCOPED_TRACE(fmt::format("{} {} on {}", entry.key, entry.value, name_of(topology)));
      const Result<json> plan = plan_of(with(entry, topology));
      if (const Refusal* refusal = find_refusal(entry, topology)) {
        ASSERT_FALSE(plan);
        EXPECT_NE(plan.error().message.find(refusal->part), std::string::npos)
            << plan.error().message;
      } else {
        EXPECT_TRUE(plan) << plan.error().message;
      }
    });
  }
}

// Those of the list that are about other values than the entries'.
TEST(Capabilities, WhatIsRefusedSaysWhy) {
  for (const Refusal& refusal : kRefusals) {
    for (const Topology topology : kTopologies) {
      if ((refusal.where & of(topology)) == 0) continue;
      SCOPED_TRACE(fmt::format("{} on {}", refusal.key, name_of(topology)));
      Entry entry = *find_entry(refusal.key);
      if (!refusal.value.empty()) entry.value = refusal.value;
      if (is_default_here(entry)) continue;
      const Result<json> plan = plan_of(with(entry, topology));
      ASSERT_FALSE(plan);
      EXPECT_NE(plan.error().message.find(refusal.part), std::string::npos) << plan.error().message;
      EXPECT_EQ(plan.error().message.find('\n'), std::string::npos);
    }
  }
}

// Of a model without experts the options of experts are refused by name, and no others.
TEST(Capabilities, ADenseModelRefusesOptionsOfExperts) {
  const Result<Model> dense = Model::open(TESSERA_SOURCE_DIR "/tests/data/golden/qwen3-bf16.gguf");
  ASSERT_TRUE(dense);
  for_each_entry([&](const Entry& entry) {
    if (!entry.key.starts_with("experts.")) return;
    const Result<cli::Config> config = resolve(with(entry, Topology::one));
    if (!config) return;  // said before any model is read
    const Result<Plan> plan = cli::plan_model(*config, *dense, {});
    ASSERT_FALSE(plan) << entry.key;
    const std::string flag = last_flag(*cli::find_option(entry.key));
    EXPECT_EQ(plan.error().message, flag + ": the model has no routed experts; leave it out");
  });
  const Result<cli::Config> plain = resolve(Rig::get().topology(Topology::one));
  ASSERT_TRUE(plain);
  const Result<Plan> plan = cli::plan_model(*plain, *dense, {});
  EXPECT_TRUE(plan) << plan.error().message;
}

// What the plan with the option says, against the one without.
void check_plan(const Entry& entry, Topology topology, const json& got, const json& base) {
  const std::string_view key = entry.key;
  const std::string value(entry.value);
  const json& shards = got["shards"];
  if (key == "placement.threads") {
    int threads = 0;
    for (const json& shard : shards)
      if (!is_over_address(shard["device"])) threads += shard["threads"].get<int>();
    EXPECT_EQ(threads, std::stoi(value));
  } else if (key == "placement.budget") {
    const auto bytes = cli::parse_bytes(value.substr(value.find('=') + 1));
    for (const json& shard : shards) EXPECT_EQ(shard["budget_bytes"], *bytes) << shard.dump();
  } else if (key == "placement.target_layer_split") {
    const std::size_t longest = value == "{last}" ? shards.size() - 1 : 0;
    for (std::size_t i = 0; i < shards.size(); ++i) {
      if (i == longest) continue;
      EXPECT_EQ(shards[i]["end_layer"].get<int>() - shards[i]["first_layer"].get<int>(), 1);
    }
  } else if (key == "placement.compute") {
    for (std::size_t i = 0; i < shards.size(); ++i)
      EXPECT_GT(shards[i]["weight_bytes"], base["shards"][i]["weight_bytes"]);
  } else if (key == "placement.layer_times") {
    const char* by = value == "bytes" ? "bytes" : "times";
    EXPECT_EQ(got["cut_by"], shards.size() > 1 ? by : "nothing");
    if (shards.size() > 1 && value == "measure") {
      for (const json& shard : shards) EXPECT_FALSE(shard["measured_time"].is_null());
    }
  } else if (key == "placement.prompt_ratio") {
    // By Rig::make_times_uneven: prompts that are long want all they can on the others.
    const int n = got["layers"], devices = static_cast<int>(shards.size());
    EXPECT_EQ(got["cut_by"], devices > 1 ? "times" : "nothing");
    EXPECT_EQ(base["shards"][0]["end_layer"], devices > 1 ? 1 : n);
    EXPECT_EQ(shards[0]["end_layer"], n + 1 - devices);
  } else if (key == "kv.ctx") {
    EXPECT_EQ(got["context"], std::stoi(value));
    for (std::size_t i = 0; i < shards.size(); ++i)
      EXPECT_LT(shards[i]["kv_pages"][0], base["shards"][i]["kv_pages"][0]);
  } else if (key == "engine.parallel") {
    EXPECT_EQ(got["parallel"], std::stoi(value));
    for (const json& shard : shards) EXPECT_EQ(shard["slots"], std::stoi(value));
  } else if (key == "engine.prefill_chunk") {
    EXPECT_EQ(got["prefill_chunk"], std::stoi(value));
    for (std::size_t i = 0; i < shards.size(); ++i)
      EXPECT_LT(shards[i]["scratch_bytes"], base["shards"][i]["scratch_bytes"]);
  } else if (key == "experts.resident") {
    for (const json& shard : shards) {
      const int away = shard["experts_host"].get<int>() + shard["experts_worker"].get<int>();
      EXPECT_GT(away, 0);
      const int here = shard["experts_resident"];
      EXPECT_EQ(100 * here, std::stoi(value) * (here + away));
      EXPECT_EQ(shard["experts_worker"].get<int>() > 0,
                (of(topology) & kExpertWorkers) != 0 && !shard["remote"].get<bool>());
    }
  } else if (key == "experts.cache") {
    for (std::size_t i = 0; i < shards.size(); ++i)
      EXPECT_GT(shards[i]["weight_bytes"], base["shards"][i]["weight_bytes"]);
  } else if (key == "experts.profile") {
    for (std::size_t i = 0; i < shards.size(); ++i)
      EXPECT_LT(shards[i]["experts_away_share"], base["shards"][i]["experts_away_share"]);
  } else {
    ADD_FAILURE() << key << ": say here what shows in the plan";
  }
}

TEST(Capabilities, PlansShowTheOption) {
  for (const Topology topology : kTopologies) {
    std::map<bool, json> bases;  // without the option, by whether experts are away
    for_each_entry([&](const Entry& entry) {
      if (entry.effect != Effect::plan || find_refusal(entry, topology) != nullptr) return;
      SCOPED_TRACE(fmt::format("{} {} on {}", entry.key, entry.value, name_of(topology)));
      // These say something where experts are away.
      Settings away;
      if (entry.key == "experts.cache" || entry.key == "experts.profile") {
        if (topology == Topology::layers_sent) return;  // none can be
        away = {{"experts.resident", {"50%"}}};
      }
      const bool uneven = entry.key == "placement.prompt_ratio";
      if (uneven) {
        Rig::get().make_times_uneven(topology);
        bases.clear();
      }
      if (!bases.contains(!away.empty())) {
        const Result<json> base = plan_of(joined(Rig::get().topology(topology), away));
        ASSERT_TRUE(base) << base.error().message;
        bases[!away.empty()] = *base;
      }
      if (entry.key == "placement.layer_times") Rig::get().keep_measurements_apart(true);
      const Result<json> plan = plan_of(joined(with(entry, topology), away));
      Rig::get().keep_measurements_apart(false);
      ASSERT_TRUE(plan) << plan.error().message;
      check_plan(entry, topology, *plan, bases[!away.empty()]);
      if (uneven) bases.clear();
    });
  }
}

// Experts that the host reads are locked in its memory; a worker of layers reads its own, and says
// so.
TEST(Capabilities, PagesOfTheFileAreLockedAsSaid) {
  for (const Topology topology : kTopologies)
    for_each_entry([&](const Entry& entry) {
      if (entry.effect != Effect::pages || topology == Topology::layers_sent) return;
      SCOPED_TRACE(fmt::format("{} {} on {}", entry.key, entry.value, name_of(topology)));
      const Settings away = {{"experts.resident", {"50%"}}};
      const Result<Computed> plain = compute(joined(Rig::get().topology(topology), away));
      const Result<Computed> locked = compute(joined(with(entry, topology), away));
      ASSERT_TRUE(plain) << plain.error().message;
      EXPECT_EQ(plain->locked, 0);
      if ((of(topology) & kLayerWorkers) != 0) {
        ASSERT_FALSE(locked);
        EXPECT_NE(locked.error().message.find("from its own file"), std::string::npos)
            << locked.error().message;
      } else if (locked) {
        EXPECT_EQ(locked->locked > 0, entry.value == "lock");
        EXPECT_TRUE(locked->logits == plain->logits);
      } else {  // this user may not
        EXPECT_NE(locked.error().message.find("cannot be locked"), std::string::npos)
            << locked.error().message;
      }
    });
}

TEST(Capabilities, OtherOptionsChangeNoPlan) {
  for (const Topology topology : kTopologies) {
    SCOPED_TRACE(name_of(topology));
    const Settings here = Rig::get().topology(topology);
    const Result<json> base = plan_of(here);
    ASSERT_TRUE(base) << base.error().message;
    for (int round = 0; round < kRounds; ++round) {
      const Result<json> plan = plan_of(joined(here, idle_on(topology, round)));
      ASSERT_TRUE(plan) << plan.error().message;
      EXPECT_EQ(*plan, *base) << round;
    }
  }
}

TEST(Capabilities, LogitsAreThoseOfOneDeviceWithTheSameOptions) {
  const std::vector<float> plain = logits_of({});
  for_each_entry([&](const Entry& entry) {
    if (entry.effect == Effect::logits && !is_default_here(entry)) {
      EXPECT_GT(distance(logits_of(with(entry, Topology::one)), plain), 0.0f)
          << entry.key << " " << entry.value
          << " changes nothing, so nothing shows whether it is honoured";
    }
  });
  for (const Topology topology : kTopologies) {
    SCOPED_TRACE(name_of(topology));
    const Settings here = Rig::get().topology(topology);
    for (int round = 0; round < kRounds; ++round) {
      EXPECT_TRUE(logits_of(joined(here, idle_on(topology, round))) == plain) << round;
      if (topology == Topology::one) continue;
      const Settings options = all_of({Effect::logits}, topology, round);
      EXPECT_TRUE(logits_of(joined(here, options)) ==
                  logits_of(joined(Rig::get().topology(Topology::one), options)))
          << round;
    }
  }
}

// --- Workers ---

void check_site(const Entry& entry, const worker::WorkerSite& site) {
  if (entry.key == "worker.transport" || entry.key == "experts.ipc_transport") {
    EXPECT_EQ(site.transport, entry.value == "stream" ? worker::TransportChoice::stream
                                                      : worker::TransportChoice::shared);
  } else if (entry.key == "worker.timeout") {
    EXPECT_EQ(site.job_limit, std::chrono::seconds(std::stoi(std::string(entry.value))));
  } else {
    ADD_FAILURE() << entry.key << ": say here where it shows";
  }
}

TEST(Capabilities, WorkersOfLayersAreReachedAsSaid) {
  for (const Topology topology : kTopologies) {
    if ((of(topology) & kLayerWorkers) == 0) continue;
    for (int round = 0; round < kRounds; ++round) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(topology), round));
      const auto effects = {Effect::layers, Effect::workers};
      const Settings settings =
          joined(Rig::get().topology(topology), all_of(effects, topology, round));
      const Result<cli::Config> config = resolve(settings);
      ASSERT_TRUE(config) << config.error().message;
      const auto found =
          cli::find_layer_workers(*config, capability_model(), *cli::placement_of(*config));
      ASSERT_TRUE(found) << found.error().message;
      ASSERT_EQ(found->size(), topology == Topology::layers_chain ? 2u : 1u);
      for (const cli::LayerWorker& worker : *found)
        for (const Entry& entry : chosen(effects, topology, round)) check_site(entry, worker.site);
      EXPECT_TRUE(logits_of(settings) == logits_of({}));
    }
  }
}

// A profile is brought up to date for all layers, wherever they are: those in workers tell the last
// of what they counted at the end.
TEST(Capabilities, AProfileIsOfAllLayers) {
  for (const Topology topology : kTopologies) {
    if ((of(topology) & kLayerWorkers) == 0) continue;
    SCOPED_TRACE(name_of(topology));
    const std::string path =
        ::testing::TempDir() + fmt::format("whole_{}_{}.csv", name_of(topology), ::getpid());
    const Result<cli::Config> config = resolve(joined(
        Rig::get().topology(topology), Rig::get().setting("experts.profile", path, topology)));
    ASSERT_TRUE(config) << config.error().message;
    MetricsRegistry metrics;
    {
      const auto loaded = cli::load_model(*config, capability_model(),
                                          {.logit_rows = kRows, .keep_profile = true}, metrics);
      ASSERT_TRUE(loaded) << loaded.error().message;
      std::vector<float> logits;
      ASSERT_TRUE(forward(*loaded, std::min(kRows, loaded->plan.prefill_chunk), logits));
    }
    const Result<RoutingProfile> profile = RoutingProfile::read(path);
    ASSERT_TRUE(profile) << profile.error().message;
    const std::vector<LayerSpec>& layers = capability_model().spec().layers;
    for (std::size_t l = 0; l < layers.size(); ++l) {
      const std::vector<double>& counts = profile->counts()[l];
      EXPECT_NEAR(std::accumulate(counts.begin(), counts.end(), 0.0),
                  layers[l].moe ? 1.0 * kRows * layers[l].moe->n_used : 0.0, 0.01)
          << l;
    }
    std::filesystem::remove(path);
  }
}

// `streamed`: with jobs one by one.
void check_expert_jobs(const Entry& entry, const Computed& got, const Computed& base,
                       const Computed& streamed) {
  const std::string_view key = entry.key;
  if (key == "experts.ipc_mode" && entry.value == "batched") {
    EXPECT_EQ(got.calls, base.calls);
  } else if (key == "experts.ipc_mode") {
    EXPECT_GT(got.calls, base.calls);
  } else if (key == "experts.ipc_batch_capacity") {
    EXPECT_GT(got.calls, streamed.calls);
  } else if (key == "experts.ipc_dtype") {
    EXPECT_EQ(got.calls, base.calls);
    EXPECT_LT(got.bytes_sent, 0.6 * base.bytes_sent);
    EXPECT_GT(distance(got.logits, base.logits), 0.0f);
  } else if (key == "experts.ipc_required" || key == "experts.ipc_transport") {
    EXPECT_TRUE(got.logits == base.logits);  // and below
  } else {
    ADD_FAILURE() << key << ": say here where it shows";
  }
}

TEST(Capabilities, WorkersOfExpertsAreReachedAndGivenJobsAsSaid) {
  for (const Topology topology : kTopologies) {
    if ((of(topology) & kExpertWorkers) == 0) continue;
    SCOPED_TRACE(name_of(topology));
    const Settings here = Rig::get().topology(topology);
    const auto run = [&](const Settings& options) {
      // On a busy machine the host may be first with a job that a good worker is late with.
      for (int tries = 10;; --tries) {
        const Result<Computed> computed = compute(joined(here, options));
        EXPECT_TRUE(computed) << computed.error().message;
        if (!computed) return Computed();
        if (computed->fallbacks == 0 || tries == 1) return *computed;
      }
    };
    const Computed base = run({});
    EXPECT_EQ(base.fallbacks, 0);
    const Computed streamed = run({{"experts.ipc_mode", {"stream"}}});
    for_each_entry([&](const Entry& entry) {
      if (entry.effect != Effect::experts || find_refusal(entry, topology) != nullptr) return;
      SCOPED_TRACE(fmt::format("{} {}", entry.key, entry.value));
      check_expert_jobs(entry, run(with(entry, topology)), base, streamed);
    });
    for (int round = 0; round < kRounds; ++round) {
      const auto effects = {Effect::experts, Effect::workers};
      const Result<cli::Config> config = resolve(joined(here, all_of(effects, topology, round)));
      ASSERT_TRUE(config) << config.error().message;
      const Result<Placement> placement = cli::placement_of(*config);
      ASSERT_TRUE(placement) << placement.error().message;
      const auto found = cli::find_expert_workers(*config, capability_model(), *placement);
      ASSERT_TRUE(found) << found.error().message;
      ASSERT_EQ(found->size(), topology == Topology::experts_two ? 2u : 1u);
      for (const cli::ExpertSite& worker : *found)
        for (const Entry& entry : chosen(effects, topology, round))
          if (entry.key == "experts.ipc_transport" || entry.effect == Effect::workers)
            check_site(entry, worker.site);
    }
  }
}

// One that does not come up is computed for, or the start is refused.
TEST(Capabilities, RequiredWorkersAreRequired) {
  const Settings here = Rig::get().topology(Topology::experts_here);
  const Settings lame = joined(
      here, {{"worker.spawn", {"experts,bin=" + reluctant_worker("exit 3", missing_path())}}});
  const Result<Computed> computed = compute(lame);
  ASSERT_TRUE(computed) << computed.error().message;
  EXPECT_GT(computed->fallbacks, 0);
  EXPECT_TRUE(computed->logits == logits_of(here));
  const Result<Computed> refused = compute(joined(lame, {{"experts.ipc_required", {"true"}}}));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("worker:0"), std::string::npos) << refused.error().message;
}

TEST(Capabilities, TopologiesAreMadeOfEveryOptionThatIsOne) {
  for (const Entry& entry : kEntries) {
    if (entry.effect != Effect::topology) continue;
    bool used = false;
    for (const Topology topology : kTopologies)
      used |= Rig::get().topology(topology).contains(std::string(entry.key));
    // These two say in the environment what others say as flags.
    const cli::Option& option = *cli::find_option(entry.key);
    EXPECT_NE(used, option.flags.empty()) << entry.key;
  }
}

}  // namespace
}  // namespace tessera::testing
