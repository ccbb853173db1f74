// tessera bench: speed of prompts and generation beside what the machine could do.
#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "cli/bandwidth.h"
#include "cli/bench_run.h"
#include "cli/commands.h"
#include "cli/machine_file.h"
#include "cli/output.h"
#include "cli/placement_options.h"
#include "cli/progress.h"
#include "device/gpu/plugin.h"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostTokens = 1 << 24;

struct BenchTest {
  std::string name;  // "pp512", "tg128", "tg32 x8"
  bool prompt = false;
  BenchCase size;
  double bytes_per_token = 0.0;
  double operations_per_token = 0.0;  // of the layers' matrices
  std::vector<double> rates{};        // tokens a second, run by run
  ExpertUse experts{};                // of one token, on average
};

struct Lists {
  std::vector<int> prompt, generate, depth, batch;
};

Result<std::vector<int>> list(const Config& config, std::string_view key, int min, int max) {
  Result<std::vector<int>> numbers = parse_int_list(config.text(key), min, max);
  if (!numbers) return std::move(numbers).error().in(config.name_as_given(key));
  return numbers;
}

Result<Lists> read_lists(const Config& config) {
  Lists lists;
  TESSERA_ASSIGN(lists.prompt, list(config, "bench.prompt", 0, kMostTokens));
  TESSERA_ASSIGN(lists.generate, list(config, "bench.generate", 0, kMostTokens));
  TESSERA_ASSIGN(lists.depth, list(config, "bench.depth", 0, kMostTokens));
  TESSERA_ASSIGN(lists.batch, list(config, "bench.batch", 1, 256));
  return lists;
}

// A length of 0 leaves that kind of test out.
std::vector<BenchTest> make_tests(const Lists& lists) {
  std::vector<BenchTest> tests;
  for (const int depth : lists.depth) {
    for (const int n : lists.prompt)
      if (n > 0)
        tests.push_back({fmt::format("pp{}", n), true, {.depth = depth, .tokens = n, .batch = 1}});
    for (const int n : lists.generate)
      for (const int batch : lists.batch)
        if (n > 0)
          tests.push_back({batch > 1 ? fmt::format("tg{} x{}", n, batch) : fmt::format("tg{}", n),
                           false,
                           {.depth = depth, .tokens = n, .batch = batch}});
  }
  return tests;
}

// Multiplications and additions with the layers' matrices for one token.
double layer_operations(const Model& model) {
  double elements = 0.0;
  for (const TensorSlice& slice : model.tensors()) {
    if (slice.layer < 0) continue;
    double part = static_cast<double>(slice.elements());
    if (slice.matrices > 1)
      part *= static_cast<double>(
                  model.spec().layers[static_cast<std::size_t>(slice.layer)].moe->n_used) /
              static_cast<double>(slice.matrices);
    elements += part;
  }
  return 2.0 * elements;
}

void add_costs(const Model& model, const Plan& plan, std::vector<BenchTest>& tests) {
  for (BenchTest& test : tests) {
    const int rows = test.prompt ? std::min(test.size.tokens, plan.prefill_chunk) : test.size.batch;
    const int depth = test.size.depth + test.size.tokens / 2;
    test.bytes_per_token = decode_bytes(model, {.kv_type = plan.kv_type,
                                                .f32_weights = plan.f32_weights,
                                                .depth = test.prompt ? 0 : depth,
                                                .rows = rows,
                                                .prompt = test.prompt});
    test.operations_per_token = layer_operations(model);
  }
}

Status run_tests(BenchRun& run, const ExpertMetrics& experts, int repeat,
                 std::vector<BenchTest>& tests) {
  Progress progress({.what = "measuring", .unit = ProgressUnit::steps});
  const auto total = static_cast<std::int64_t>(tests.size()) * (repeat + 1);
  std::int64_t done = 0;
  for (BenchTest& test : tests) {
    // The first run of each is not counted: it brings memory and caches into their usual state.
    for (int i = 0; i <= repeat; ++i) {
      progress.update(done++, total, test.name);
      BenchCase size = test.size;
      if (i == 0) size = {.depth = 0, .tokens = std::min(size.tokens, 64), .batch = size.batch};
      const ExpertUse before = experts.totals();
      TESSERA_ASSIGN(const double seconds,
                     test.prompt ? run.time_prompt(size) : run.time_generation(size));
      if (i == 0) continue;
      const int tokens = size.tokens * size.batch;
      test.rates.push_back(tokens / seconds);
      // What filled the context is a part of it.
      const double share = 1.0 / (tokens + size.depth * size.batch) / repeat;
      test.experts.add(experts.totals(), share);
      test.experts.add(before, -share);
    }
  }
  return {};
}

struct Spread {
  double min, median, max;
};
Spread spread(std::vector<double> rates) {
  std::sort(rates.begin(), rates.end());
  const std::size_t middle = rates.size() / 2;
  return {rates.front(),
          rates.size() % 2 == 1 ? rates[middle] : (rates[middle - 1] + rates[middle]) / 2,
          rates.back()};
}
double median(const std::vector<double>& rates) {
  return spread(rates).median;
}

// Whether all that computes is on this machine, so that what it can do is a measure of the tests.
bool all_here(const Plan& plan) {
  const auto away = [](const auto& part) { return !part.here; };
  return std::none_of(plan.shards.begin(), plan.shards.end(), away) &&
         std::none_of(plan.expert_workers.begin(), plan.expert_workers.end(),
                      [&](const ExpertWorkerPlan& w) { return w.experts > 0 && away(w); });
}

double int8_fraction(const BenchTest& test, const MachineSpeed& speed, int threads) {
  if (speed.int8_op_per_s <= 0.0) return 0.0;
  return median(test.rates) * test.operations_per_token / (speed.int8_op_per_s * threads);
}

SpeedBound predicted(const Plan& plan, const BenchTest& test) {
  return test.prompt ? predicted_prompt(plan, test.size.tokens) : plan.predicted->decode;
}

// Whether anything was computed away from its device.
bool away(const BenchTest& test) {
  return test.experts.host.calls + test.experts.worker.calls + test.experts.pairs_streamed > 0.0;
}

Json per_token(const ExpertUse& use) {
  const auto executor = [](const ExpertUse::Executor& by) {
    return Json{{"calls", by.calls},
                {"pairs", by.pairs},
                {"wait_us", by.wait_us},
                {"hidden_us", by.hidden_us}};
  };
  return {{"pairs_resident", use.pairs_resident},
          {"pairs_streamed", use.pairs_streamed},
          {"experts_streamed", use.experts_streamed},
          {"pairs_foreseen", use.pairs_foreseen},
          {"pairs_unforeseen", use.pairs_unforeseen},
          {"bytes_streamed", use.bytes_streamed},
          {"experts_ahead", use.experts_ahead},
          {"host", executor(use.host)},
          {"worker", executor(use.worker)},
          {"bytes", use.bytes_out + use.bytes_in},
          {"fallbacks", use.fallbacks}};
}

Json test_json(const BenchTest& test, const Plan& plan, const MachineSpeed& speed, int threads) {
  const Spread rates = spread(test.rates);
  const double bytes_per_s = rates.median * test.bytes_per_token;
  Json json = {
      {"test", test.name},
      {"depth", test.size.depth},
      {"batch", test.size.batch},
      {"tokens_per_s",
       {{"min", rates.min}, {"median", rates.median}, {"max", rates.max}, {"runs", test.rates}}},
      {"bytes_per_token", test.bytes_per_token},
      {"gb_per_s", bytes_per_s / 1e9}};
  if (all_here(plan)) {
    json["fraction_of_measured_bandwidth"] = bytes_per_s / speed.read_bytes_per_s;
    if (test.prompt) json["fraction_of_int8_peak"] = int8_fraction(test, speed, threads);
  }
  if (plan.predicted && test.size.depth == 0 && test.size.batch == 1) {
    const SpeedBound bound = predicted(plan, test);
    json["predicted"] = {{"tokens_per_s", bound.tokens_per_s},
                         {"bound", bound.bound},
                         {"reached", rates.median / bound.tokens_per_s}};
  }
  if (away(test)) json["experts_per_token"] = per_token(test.experts);
  json["machine"] = {{"threads", threads},
                     {"read_gb_per_s", speed.read_bytes_per_s / 1e9},
                     {"f32_gflop_per_s_per_thread", speed.f32_flop_per_s / 1e9},
                     {"int8_gop_per_s_per_thread", speed.int8_op_per_s / 1e9}};
  return json;
}

// One of this machine's, whose reading the tests are compared with.
bool starts_on_gpu(const Plan& plan) {
  const ShardPlan& first = plan.shards.front();
  return first.kind != DeviceKind::cpu && !first.remote;
}

void print_table(const Plan& plan, const std::vector<BenchTest>& tests, const MachineSpeed& speed,
                 int threads, const char* isa) {
  const auto percent = [here = all_here(plan)](double fraction) {
    return here ? fmt::format("{:.1f}%", 100.0 * fraction) : std::string("-");
  };
  print_out("{} ({}), KV in {}, prefill chunks of {}\n", plan.model.empty() ? "model" : plan.model,
            plan.architecture, kv_type_name(plan.kv_type), plan.prefill_chunk);
  if (starts_on_gpu(plan)) {
    print_out("{}: reads {:.1f} GB/s\n\n", plan.shards.front().device,
              speed.read_bytes_per_s / 1e9);
  } else {
    print_out(
        "machine: {} thread{}, {}; reads {:.1f} GB/s, a thread does {:.0f} GFLOP/s f32 and {:.0f} "
        "Gop/s int8\n\n",
        threads, threads == 1 ? "" : "s", isa, speed.read_bytes_per_s / 1e9,
        speed.f32_flop_per_s / 1e9, speed.int8_op_per_s / 1e9);
  }
  print_out("{:<12}{:>8}{:>12}{:>22}{:>13}{:>10}{:>12}{:>10}\n", "test", "depth", "tokens/s",
            "min - max", "bytes/token", "GB/s", "of reading", "of int8");
  for (const BenchTest& test : tests) {
    const Spread rates = spread(test.rates);
    const double bytes_per_s = rates.median * test.bytes_per_token;
    print_out("{:<12}{:>8}{:>12.2f}{:>22}{:>13}{:>10.2f}{:>12}{:>10}\n", test.name, test.size.depth,
              rates.median, fmt::format("{:.2f} - {:.2f}", rates.min, rates.max),
              format_bytes(static_cast<std::int64_t>(test.bytes_per_token)), bytes_per_s / 1e9,
              percent(bytes_per_s / speed.read_bytes_per_s),
              test.prompt && speed.int8_op_per_s > 0.0
                  ? percent(int8_fraction(test, speed, threads))
                  : "");
  }
}

// What the plan promised beside what was measured: of one sequence with an empty context.
void print_prediction(const Plan& plan, const std::vector<BenchTest>& tests) {
  if (!plan.predicted) return;
  print_out("\n{:<12}{:>12}{:>12}{:>12}  {}\n", "plan",
            plan.predicted->measured ? "about" : "at most", "measured", "reached", "bound by");
  for (const BenchTest& test : tests) {
    if (test.size.depth > 0 || test.size.batch > 1) continue;
    const SpeedBound bound = predicted(plan, test);
    print_out("{:<12}{:>12.1f}{:>12.1f}{:>11.0f}%  {}\n", test.name, bound.tokens_per_s,
              median(test.rates), 100.0 * median(test.rates) / bound.tokens_per_s, bound.bound);
  }
}

// What a token's experts cost that are away from their devices.
void print_experts(const std::vector<BenchTest>& tests) {
  if (std::none_of(tests.begin(), tests.end(), away)) return;
  print_out("\n{:<12}{:>8}{:>10}{:>10}{:>10}{:>12}{:>10}{:>11}{:>9}\n", "a token", "", "calls",
            "pairs", "resident", "payload", "wait us", "hidden us", "hidden");
  for (const BenchTest& test : tests) {
    const auto line = [&](const char* who, const ExpertUse::Executor& by, double bytes) {
      if (by.calls <= 0.0) return;
      const double share = by.hidden_us / std::max(by.wait_us + by.hidden_us, 1e-9);
      print_out("{:<12}{:>8}{:>10.2f}{:>10.2f}{:>10.2f}{:>12}{:>10.1f}{:>11.1f}{:>8.0f}%\n",
                test.name, who, by.calls, by.pairs, test.experts.pairs_resident,
                format_bytes(static_cast<std::int64_t>(bytes)), by.wait_us, by.hidden_us,
                100.0 * share);
    };
    line("host", test.experts.host, 0.0);
    line("workers", test.experts.worker, test.experts.bytes_out + test.experts.bytes_in);
  }
  for (const BenchTest& test : tests)
    if (const ExpertUse& use = test.experts; use.bytes_streamed > 0.0)
      print_out(
          "{}: {:.2f} experts a token crossed to their device for {:.1f} pairs: {}, {:.1f} GB/s; "
          "{:.0f} % of them ahead\n",
          test.name, use.experts_streamed, use.pairs_streamed,
          format_bytes(static_cast<std::int64_t>(use.bytes_streamed)),
          use.bytes_streamed * median(test.rates) / 1e9,
          100.0 * use.experts_ahead / use.experts_streamed);
  for (const BenchTest& test : tests)
    if (const double told = test.experts.pairs_foreseen + test.experts.pairs_unforeseen; told > 0.0)
      print_out("{}: {:.0f} % of {:.1f} pairs a token of the host were foreseen by a device\n",
                test.name, 100.0 * test.experts.pairs_foreseen / told, told);
}

// What the tests need of the context and of sequences.
Result<LoadNeeds> needs_of(const Config& config, const std::vector<BenchTest>& tests,
                           const ModelSpec& spec) {
  LoadNeeds needs;
  for (const BenchTest& test : tests) {
    needs.context = std::max(needs.context, test.size.depth + test.size.tokens);
    needs.parallel = std::max(needs.parallel, test.size.batch);
  }
  const int ctx = config.small("kv.ctx"), parallel = config.small("engine.parallel");
  const int most = ctx > 0 ? ctx : spec.context_length;
  if (needs.context > most)
    return Error::make(ErrorCode::invalid, "the tests reach {} tokens, the context has {}",
                       needs.context, most);
  if (parallel > 0 && parallel < needs.parallel)
    return Error::make(ErrorCode::invalid, "--batch {} needs --parallel {} or more", needs.parallel,
                       needs.parallel);
  needs.context = std::max(needs.context, 64);
  if (needs.context > spec.context_length) needs.context = spec.context_length;
  return needs;
}

Status bench(const Config& config, std::vector<BenchTest> tests) {
  TESSERA_ASSIGN(const ModelPath path, model_path(config));
  TESSERA_ASSIGN(const Model model, Model::open(path.path));
  TESSERA_ASSIGN(LoadNeeds needs, needs_of(config, tests, model.spec()));
  needs.measure = MeasureLayers::never;  // loading does
  TESSERA_ASSIGN(const Plan plan, plan_model(config, model, needs));
  const int threads = std::max(1, plan.threads());
  TESSERA_ASSIGN(const cpu::Isa isa, chosen_isa(config));
  MachineSpeed speed;
  const ShardPlan& first = plan.shards.front();
  if (starts_on_gpu(plan)) {
    TESSERA_ASSIGN(speed.read_bytes_per_s,
                   measure_gpu_read(device_kind_name(first.kind), first.number,
                                    config.text("placement.gpu_plugins")));
  } else {
    log_info("measuring what the machine can do");
    ThreadTeam team({.threads = threads});
    // Before there is a model: what will be its memory.
    TESSERA_ASSIGN(speed, measure_machine(team, isa, plan.total_bytes() - plan.process_bytes));
  }
  if (!plan.has_gpu()) save_speed(measured_speed(speed, threads), threads, isa);
  MetricsRegistry metrics;
  needs.measure = MeasureLayers::missing;
  TESSERA_ASSIGN(LoadedModel loaded, load_model(config, model, needs, metrics));
  if (!plan.has_gpu() &&
      host_threads(plan) == threads)  // the speed was not kept where the cache cannot be written
    loaded.plan.predicted = predict(model, loaded.plan, measured_speed(speed, threads));
  add_costs(model, loaded.plan, tests);
  BenchRun run(loaded, std::min(model.spec().n_token, model.spec().n_vocab));
  TESSERA_TRY(run_tests(run, *loaded.experts.metrics, config.small("bench.repeat"), tests));
  if (!config.flag("output.json")) {
    print_table(loaded.plan, tests, speed, threads, cpu::isa_name(isa));
    print_prediction(loaded.plan, tests);
    print_experts(tests);
    return {};
  }
  Json out = Json::array();
  for (const BenchTest& test : tests) out.push_back(test_json(test, loaded.plan, speed, threads));
  print_out(json_text(out, 2) + "\n");
  return {};
}

}  // namespace

int bench_command(const Config& config) {
  const Result<Lists> lists = read_lists(config);
  if (!lists) return misuse(lists.error());
  std::vector<BenchTest> tests = make_tests(*lists);
  if (tests.empty())
    return misuse(Error::make(ErrorCode::invalid, "nothing to measure: -p and -n are both 0"));
  return exit_code(bench(config, std::move(tests)));
}

}  // namespace tessera::cli
