// Options mean the same wherever layers and experts lie: every option of the table, on every
// topology, is honoured or refused at start. The data is capability_matrix.h; what holds is shown
// on the program's own code, from its words to plans and logits, within this process (workers are
// processes of the program):
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
//   Effect::call    is refused by serve and the configuration file, or by every command that loads
//                   a model
//   Effect::topology                  is what some topology here is made of
//
// Bits of a split are those of one device, and so are those of experts away: adding their sums
// loses nothing (experts/executor.h).
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>

#include "base/log.h"
#include "cli/loading.h"
#include "cli/option_table.h"
#include "cli/placement_options.h"
#include "device/cpu/isa.h"
#include "tests/cli/capability_rig.h"
#include "tests/cli/program.h"
#include "tests/cli/reluctant_worker.h"

namespace tessera::testing {
namespace {

using nlohmann::json;

const Entry* find_entry(std::string_view key) {
  for (const Entry& entry : kEntries)
    if (entry.key == key) return &entry;
  return nullptr;
}

// Of every option of the table.
template <typename Use>
void for_each_entry(const Use& use) {
  for (const cli::Option& option : cli::option_table()) {
    const Entry* entry = find_entry(option.key);
    if (entry == nullptr)
      ADD_FAILURE() << option.key << ": capability_matrix.h does not say what it means where "
                    << "layers or experts are elsewhere";
    else
      use(*entry);
  }
}

const Refusal* find_refusal(const Entry& entry, Topology topology) {
  for (const Refusal& refusal : kRefusals)
    if (refusal.key == entry.key && refusal.value == entry.value &&
        (refusal.where & of(topology)) != 0)
      return &refusal;
  return nullptr;
}

// The narrowest kernels may be all that this machine has.
bool is_default_here(const Entry& entry) {
  return entry.key == "placement.cpu_isa" && cpu::detect_isa() == cpu::Isa::portable;
}

// A topology with the option at its value.
Settings with(const Entry& entry, Topology topology) {
  return joined(Rig::get().topology(topology),
                Rig::get().setting(entry.key, entry.value, topology));
}

// Every option of these effects at once.
Settings all_of(std::initializer_list<Effect> effects, Topology topology) {
  Settings settings;
  for (const Entry& entry : kEntries)
    if (std::count(effects.begin(), effects.end(), entry.effect) > 0 &&
        find_refusal(entry, topology) == nullptr && !is_default_here(entry))
      settings = joined(settings, Rig::get().setting(entry.key, entry.value, topology));
  return settings;
}

// What changes nothing there.
Settings idle_on(Topology topology) {
  Settings settings = all_of({Effect::process, Effect::gpu}, topology);
  if ((of(topology) & kLayerWorkers) == 0)
    settings = joined(settings, all_of({Effect::layers}, topology));
  if ((of(topology) & kExpertWorkers) == 0)
    settings = joined(settings, all_of({Effect::experts}, topology));
  if ((of(topology) & kWorkers) == 0)
    settings = joined(settings, all_of({Effect::workers}, topology));
  return settings;
}

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
  for (const Entry& entry : kEntries)
    EXPECT_NE(cli::find_option(entry.key), nullptr) << entry.key << " is no option any more";
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
      SCOPED_TRACE(fmt::format("{} on {}", entry.key, name_of(topology)));
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
      const Entry entry{refusal.key, find_entry(refusal.key)->effect, refusal.value};
      if (is_default_here(entry)) continue;
      const Result<json> plan = plan_of(with(entry, topology));
      ASSERT_FALSE(plan);
      EXPECT_NE(plan.error().message.find(refusal.part), std::string::npos) << plan.error().message;
      EXPECT_EQ(plan.error().message.find('\n'), std::string::npos);
    }
  }
}

// What the plan with the option says, against the one without.
void check_plan(std::string_view key, Topology topology, const json& got, const json& base) {
  const json& shards = got["shards"];
  if (key == "placement.threads") {
    int threads = 0;
    for (const json& shard : shards)
      if (!is_over_address(shard["device"])) threads += shard["threads"].get<int>();
    EXPECT_EQ(threads, 4);
  } else if (key == "placement.budget") {
    for (const json& shard : shards) EXPECT_EQ(shard["budget_bytes"], 1 << 30) << shard.dump();
  } else if (key == "placement.target_layer_split") {
    for (std::size_t i = 1; i < shards.size(); ++i)
      EXPECT_EQ(shards[i]["end_layer"].get<int>() - shards[i]["first_layer"].get<int>(), 1);
  } else if (key == "placement.compute") {
    for (std::size_t i = 0; i < shards.size(); ++i)
      EXPECT_GT(shards[i]["weight_bytes"], base["shards"][i]["weight_bytes"]);
  } else if (key == "placement.layer_times") {
    EXPECT_EQ(got["cut_by"], shards.size() > 1 ? "times" : "nothing");
    if (shards.size() > 1) {
      for (const json& shard : shards) EXPECT_FALSE(shard["measured_time"].is_null());
    }
  } else if (key == "placement.prompt_ratio") {
    // By Rig::make_times_uneven: prompts that are long want all they can on the others.
    const int n = got["layers"], devices = static_cast<int>(shards.size());
    EXPECT_EQ(got["cut_by"], devices > 1 ? "times" : "nothing");
    EXPECT_EQ(base["shards"][0]["end_layer"], devices > 1 ? 1 : n);
    EXPECT_EQ(shards[0]["end_layer"], n + 1 - devices);
  } else if (key == "kv.ctx") {
    EXPECT_EQ(got["context"], 200);
    for (std::size_t i = 0; i < shards.size(); ++i)
      EXPECT_LT(shards[i]["kv_pages"][0], base["shards"][i]["kv_pages"][0]);
  } else if (key == "engine.parallel") {
    EXPECT_EQ(got["parallel"], 3);
    for (const json& shard : shards) EXPECT_EQ(shard["slots"], 3);
  } else if (key == "engine.prefill_chunk") {
    EXPECT_EQ(got["prefill_chunk"], 16);
    for (std::size_t i = 0; i < shards.size(); ++i)
      EXPECT_LT(shards[i]["scratch_bytes"], base["shards"][i]["scratch_bytes"]);
  } else if (key == "experts.resident") {
    for (const json& shard : shards) {
      const int away = shard["experts_host"].get<int>() + shard["experts_worker"].get<int>();
      EXPECT_GT(away, 0);
      EXPECT_EQ(shard["experts_resident"], away);
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
  for (const Topology topology : kTopologies)
    for_each_entry([&](const Entry& entry) {
      if (entry.effect != Effect::plan || find_refusal(entry, topology) != nullptr) return;
      SCOPED_TRACE(fmt::format("{} on {}", entry.key, name_of(topology)));
      // These say something where experts are away.
      Settings away;
      if (entry.key == "experts.cache" || entry.key == "experts.profile") {
        if (topology == Topology::layers_sent) return;  // none can be
        away = {{"experts.resident", {"50%"}}};
      }
      if (entry.key == "placement.prompt_ratio") Rig::get().make_times_uneven(topology);
      const Result<json> base = plan_of(joined(Rig::get().topology(topology), away));
      if (entry.key == "placement.layer_times") Rig::get().keep_measurements_apart(true);
      const Result<json> plan = plan_of(joined(with(entry, topology), away));
      Rig::get().keep_measurements_apart(false);
      ASSERT_TRUE(base) << base.error().message;
      ASSERT_TRUE(plan) << plan.error().message;
      check_plan(entry.key, topology, *plan, *base);
    });
}

// Experts that the host reads are locked in its memory; a worker of layers reads its own, and says
// so.
TEST(Capabilities, PagesOfTheFileAreLockedAsSaid) {
  for (const Topology topology : kTopologies)
    for_each_entry([&](const Entry& entry) {
      if (entry.effect != Effect::pages || topology == Topology::layers_sent) return;
      SCOPED_TRACE(fmt::format("{} on {}", entry.key, name_of(topology)));
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
        EXPECT_GT(locked->locked, 0);
        EXPECT_TRUE(locked->logits == plain->logits);
      } else {  // this user may not
        EXPECT_NE(locked.error().message.find("cannot be locked"), std::string::npos)
            << locked.error().message;
      }
    });
}

// A flag that a command does not have is refused by it, and the file has no place for what is of
// one call.
TEST(Capabilities, EveryCommandRefusesTheOptionsOfOthers) {
  const auto takes = [](const cli::CommandInfo& command, const std::string& flag) {
    for (const cli::Option& option : cli::option_table())
      if ((option.commands & command.command) != 0 && last_flag(option) == flag) return true;
    return false;
  };
  const auto expect_refused = [](const cli::CommandInfo& command,
                                 const std::vector<std::string>& words, const std::string& part) {
    const Result<cli::Config> config = cli::Config::resolve(command, words);
    ASSERT_FALSE(config) << command.name << ": " << words.front();
    EXPECT_EQ(config.error().code, ErrorCode::invalid);
    EXPECT_NE(config.error().message.find(part), std::string::npos) << config.error().message;
  };
  const std::string file = scratch_folder() + "/of_one_call.toml";
  for (const cli::Option& option : cli::option_table()) {
    const std::string flag = last_flag(option), key(option.key);
    for (const cli::CommandInfo& command : cli::command_table())
      if (!flag.empty() && !takes(command, flag))
        expect_refused(command, {flag, "1"},
                       fmt::format("{} is no option of 'tessera {}'", flag, command.name));
    if (option.file) continue;
    const std::size_t dot = key.find('.');
    write_file(file, fmt::format("[{}]\n{} = 1\n", key.substr(0, dot), key.substr(dot + 1)));
    expect_refused(cli::command_info(cli::kServe), {"--config", file},
                   "belongs on the command line");
  }
}

TEST(Capabilities, OtherOptionsChangeNoPlan) {
  for (const Topology topology : kTopologies) {
    SCOPED_TRACE(name_of(topology));
    const Result<json> base = plan_of(Rig::get().topology(topology));
    const Result<json> plan = plan_of(joined(Rig::get().topology(topology), idle_on(topology)));
    ASSERT_TRUE(base) << base.error().message;
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(*plan, *base);
  }
}

std::vector<float> logits_of(const Settings& settings) {
  const Result<Computed> computed = compute(settings);
  EXPECT_TRUE(computed) << computed.error().message;
  return computed ? computed->logits : std::vector<float>();
}

float distance(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size() || a.empty()) return INFINITY;
  float worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  return worst;
}

TEST(Capabilities, LogitsAreThoseOfOneDeviceWithTheSameOptions) {
  const std::vector<float> plain = logits_of({});
  for_each_entry([&](const Entry& entry) {
    if (entry.effect == Effect::logits && !is_default_here(entry)) {
      EXPECT_GT(distance(logits_of(with(entry, Topology::one)), plain), 0.0f)
          << entry.key << " changes nothing, so nothing shows whether it is honoured";
    }
  });
  for (const Topology topology : kTopologies) {
    SCOPED_TRACE(name_of(topology));
    const Settings here = Rig::get().topology(topology);
    EXPECT_TRUE(logits_of(joined(here, idle_on(topology))) == plain);
    if (topology == Topology::one) continue;
    const Settings options = all_of({Effect::logits}, topology);
    EXPECT_TRUE(logits_of(joined(here, options)) ==
                logits_of(joined(Rig::get().topology(Topology::one), options)));
  }
}

// --- Workers ---

void check_site(std::string_view key, const worker::WorkerSite& site) {
  if (key == "worker.transport" || key == "experts.ipc_transport") {
    EXPECT_EQ(site.transport, worker::TransportChoice::stream);
  } else if (key == "worker.timeout") {
    EXPECT_EQ(site.job_limit, std::chrono::seconds(7));
  } else {
    ADD_FAILURE() << key << ": say here where it shows";
  }
}

TEST(Capabilities, WorkersOfLayersAreReachedAsSaid) {
  for (const Topology topology : kTopologies) {
    if ((of(topology) & kLayerWorkers) == 0) continue;
    SCOPED_TRACE(name_of(topology));
    const Settings settings =
        joined(Rig::get().topology(topology), all_of({Effect::layers, Effect::workers}, topology));
    const Result<cli::Config> config = resolve(settings);
    ASSERT_TRUE(config) << config.error().message;
    const auto found =
        cli::find_layer_workers(*config, capability_model(), *cli::placement_of(*config));
    ASSERT_TRUE(found) << found.error().message;
    ASSERT_EQ(found->size(), topology == Topology::layers_chain ? 2u : 1u);
    for (const cli::LayerWorker& worker : *found)
      for_each_entry([&](const Entry& entry) {
        if (entry.effect == Effect::layers || entry.effect == Effect::workers)
          check_site(entry.key, worker.site);
      });
    EXPECT_TRUE(logits_of(settings) == logits_of({}));
  }
}

// Workers count no choices, and a profile of layers here and there is brought up to date in part.
TEST(Capabilities, AProfileTellsWhichLayersAreNotCounted) {
  const Topology topology = Topology::layers_spawned;
  const std::string path = ::testing::TempDir() + fmt::format("partly_{}.csv", ::getpid());
  const Result<cli::Config> config = resolve(
      joined(Rig::get().topology(topology), Rig::get().setting("experts.profile", path, topology)));
  ASSERT_TRUE(config) << config.error().message;
  MetricsRegistry metrics;
  set_log_level(LogLevel::info);
  ::testing::internal::CaptureStderr();
  const auto loaded = cli::load_model(*config, capability_model(), {.keep_profile = true}, metrics);
  const std::string log = ::testing::internal::GetCapturedStderr();
  set_log_level(LogLevel::error);
  ASSERT_TRUE(loaded) << loaded.error().message;
  const ShardLayout &here = loaded->plan.shards.front().layout,
                    &there = loaded->plan.shards.back().layout;
  EXPECT_NE(log.find(fmt::format("for layers {}-{}, and not for {}-{}", here.first_layer,
                                 here.end_layer - 1, there.first_layer, there.end_layer - 1)),
            std::string::npos)
      << log;
}

// `streamed`: with jobs one by one.
void check_expert_jobs(std::string_view key, const Computed& got, const Computed& base,
                       const Computed& streamed) {
  if (key == "experts.ipc_mode") {
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
    const auto run = [&](std::string_view key) {
      // On a busy machine the host may be first with a job that a good worker is late with.
      for (int tries = 10;; --tries) {
        const Result<Computed> computed =
            compute(key.empty() ? here : with(*find_entry(key), topology));
        EXPECT_TRUE(computed) << key << ": " << computed.error().message;
        if (!computed) return Computed();
        if (computed->fallbacks == 0 || tries == 1) return *computed;
      }
    };
    const Computed base = run("");
    EXPECT_EQ(base.fallbacks, 0);
    const Computed streamed = run("experts.ipc_mode");
    for_each_entry([&](const Entry& entry) {
      if (entry.effect == Effect::experts)
        check_expert_jobs(entry.key, run(entry.key), base, streamed);
    });
    const Result<cli::Config> config = resolve(joined(
        with(*find_entry("experts.ipc_transport"), topology), all_of({Effect::workers}, topology)));
    ASSERT_TRUE(config) << config.error().message;
    const Result<Placement> placement = cli::placement_of(*config);
    ASSERT_TRUE(placement) << placement.error().message;
    const auto found = cli::find_expert_workers(*config, capability_model(), *placement);
    ASSERT_TRUE(found) << found.error().message;
    ASSERT_EQ(found->size(), 1u);
    for_each_entry([&](const Entry& entry) {
      if (entry.key == "experts.ipc_transport" || entry.effect == Effect::workers)
        check_site(entry.key, found->front().site);
    });
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
