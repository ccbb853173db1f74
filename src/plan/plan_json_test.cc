// Every field of a plan is in its JSON. The structs are taken apart here, so that one with a new
// field does not compile until a line below says where the field is told.
#include <gtest/gtest.h>

#include "plan/plan.h"

namespace tessera {
namespace {

using nlohmann::ordered_json;

// One value a field, so that none can stand for another.
ShardLayout some_layout() {
  ShardLayout layout;
  layout.first_layer = 2;
  layout.end_layer = 4;
  layout.embedding = false;
  layout.head = true;
  layout.table_device_rows = 112;
  layout.max_rows = 101;
  layout.max_logit_rows = 102;
  layout.slots = 103;
  layout.context = 104;
  layout.kept_pieces = 108;
  layout.rows_abreast = 109;
  layout.kv_type = KvType::q8_0;
  layout.f32_weights = true;
  layout.file_parts = 105;
  layout.kv_pages = {106, 107};
  const auto worker = ExpertHome::worker(0);
  layout.experts = {{.home = {ExpertHome::resident(), worker, worker, ExpertHome::host()},
                     .spare = 2,
                     .streamed = true},
                    {}};
  return layout;
}

ShardPlan some_shard() {
  return {.device = "cuda:9",
          .remote = true,
          .here = false,
          .kind = DeviceKind::cuda,
          .number = 9,
          .threads = 201,
          .cpus = {202, 203},
          .layout = some_layout(),
          .weight_bytes = 204,
          .kv_bytes = 205,
          .recurrent_bytes = 206,
          .scratch_bytes = 207,
          .handoff_bytes = 208,
          .connection_bytes = 209,
          .host_bytes = 210,
          .budget_bytes = 211,
          .bounded = true,
          .experts = 212,
          .experts_host = 213,
          .experts_worker = 214,
          .cold_share = 0.215,
          .worker_uses = {{.share = 0.216, .calls = 0.217}},
          .offload_bytes = 218,
          .staging_bytes = 227,
          .drafter_bytes = 219,
          .mapped_bytes = 220,
          .locked_bytes = 226,
          .table_bytes = 229,
          .streamed_bytes = 228,
          .file_bytes = 221,
          .file_parts = "layers 2-3",
          .time = StepTime{.prompt_row_s = 0.222, .token_s = 0.223},
          .bytes_per_s = 224.0,
          .op_per_s = 225.0};
}

ExpertWorkerPlan some_worker() {
  return {.device = "worker:0",
          .here = true,
          .kind = DeviceKind::hip,
          .threads = 301,
          .experts = 302,
          .job_rows = 303,
          .jobs = 5,
          .call_s = 0.5,
          .bytes_per_s = 305.0,
          .op_per_s = 311.0,
          .weight_bytes = 306,
          .scratch_bytes = 307,
          .connection_bytes = 310,
          .host_bytes = 308,
          .budget_bytes = 309,
          .bounded = true,
          .unheard = "busy"};
}

ExecutorCosts some_costs() {
  return {"host",
          {.call_s = 0.5, .bytes_per_s = 602.0, .call_measured = true, .speed_measured = false}};
}

Prediction some_prediction() {
  return {.measured = true,
          .prefill = {.tokens_per_s = 401.0, .bound = "prefill"},
          .decode = {.tokens_per_s = 402.0, .bound = "decode"},
          .fill_row_s = 403.0,
          .shards = {{.prefill = {.tokens_per_s = 404.0, .bound = "shard"},
                      .token_s = 405.0,
                      .token_bound = "token"}},
          .expert_workers = {{.calls = 406.0, .bytes = 407.0, .token_s = 408.0}}};
}

Plan some_plan() {
  Plan plan;
  plan.model = "a model";
  plan.architecture = "qwen";
  plan.n_layer = 501;
  plan.context = 502;
  plan.parallel = 503;
  plan.prefill_chunk = 504;
  plan.max_rows = 505;
  plan.piece_rows = 506;
  plan.kv_type = KvType::f32;
  plan.f32_weights = true;
  plan.kv_windows = {507, 508};
  plan.process_bytes = 509;
  plan.shards = {some_shard()};
  plan.expert_workers = {some_worker()};
  plan.program = ProgramPlan{
      .program_bytes = 517, .connection_bytes = 518, .gpu_bytes = 520, .budget_bytes = 519};
  plan.expert_costs = {some_costs()};
  plan.drafter = DrafterPlan{
      .name = "a drafter",
      .block_rows = 510,
      .reserve = {.rows = 511, .weights = 512, .kv = 513, .features = 514, .scratch = 515}};
  plan.cut_by = CutBy::times;
  plan.unmeasured = "why";
  plan.decode_bytes_per_token = 516.0;
  plan.predicted = some_prediction();
  plan.warnings = {"a warning"};
  plan.advice = "advice";
  return plan;
}

TEST(PlanJson, HasEveryFieldOfThePlan) {
  const Plan plan = some_plan();
  const ordered_json json = plan_json(plan);
  const auto& [model, architecture, n_layer, context, parallel, prefill_chunk, max_rows, piece_rows,
               kv_type, f32_weights, kv_windows, process_bytes, shards, turns, expert_workers,
               program, expert_costs, drafter, cut_by, unmeasured, decode_bytes_per_token,
               predicted, warnings, advice] = plan;
  EXPECT_EQ(json.at("model"), model);
  EXPECT_EQ(json.at("architecture"), architecture);
  EXPECT_EQ(json.at("layers"), n_layer);
  EXPECT_EQ(json.at("context"), context);
  EXPECT_EQ(json.at("parallel"), parallel);
  EXPECT_EQ(json.at("prefill_chunk"), prefill_chunk);
  EXPECT_EQ(json.at("max_rows"), max_rows);
  EXPECT_EQ(json.at("piece_rows"), piece_rows);
  EXPECT_EQ(json.at("kv_type"), kv_type_name(kv_type));
  EXPECT_EQ(json.at("compute"), f32_weights ? "f32" : "auto");
  EXPECT_EQ(json.at("kv_windows"), kv_windows);
  EXPECT_EQ(json.at("process_bytes"), process_bytes);
  EXPECT_EQ(json.at("shards").size(), shards.size());  // below
  EXPECT_EQ(json.at("turns"), turns);
  EXPECT_EQ(json.at("expert_workers").size(), expert_workers.size());  // below
  EXPECT_EQ(json.at("program").is_null(), !program);                   // below
  EXPECT_EQ(json.at("expert_costs").size(), expert_costs.size());      // below
  EXPECT_EQ(json.at("drafter").is_null(), !drafter);                   // below
  EXPECT_EQ(json.at("cut_by"), cut_by_name(cut_by));
  EXPECT_EQ(json.at("unmeasured"), unmeasured);
  EXPECT_EQ(json.at("decode_bytes_per_token"), decode_bytes_per_token);
  EXPECT_EQ(json.at("predicted").is_null(), !predicted);  // below
  EXPECT_EQ(json.at("warnings"), warnings);
  EXPECT_EQ(json.at("advice"), advice);
  EXPECT_EQ(json.at("total_bytes"), plan.total_bytes());
}

TEST(PlanJson, HasEveryFieldOfAShard) {
  const ShardPlan shard = some_shard();
  const ordered_json json = plan_json(some_plan()).at("shards").at(0);
  const auto& [device, remote, here, kind, number, threads, cpus, layout, weight_bytes, kv_bytes,
               recurrent_bytes, scratch_bytes, handoff_bytes, connection_bytes, host_bytes,
               budget_bytes, bounded, experts, experts_host, experts_worker, cold_share,
               worker_uses, offload_bytes, staging_bytes, drafter_bytes, mapped_bytes, locked_bytes,
               table_bytes, streamed_bytes, file_bytes, file_parts, time, bytes_per_s, op_per_s] =
      shard;
  EXPECT_EQ(json.at("device"), device);
  EXPECT_EQ(json.at("remote"), remote);
  EXPECT_EQ(json.at("here"), here);
  EXPECT_EQ(json.at("kind"), device_kind_name(kind));
  EXPECT_TRUE(json.at("number").is_null());  // below
  EXPECT_EQ(json.at("threads"), threads);
  EXPECT_EQ(json.at("cpus"), cpus);
  EXPECT_EQ(json.at("first_layer"), layout.first_layer);  // the others below
  EXPECT_EQ(json.at("weight_bytes"), weight_bytes);
  EXPECT_EQ(json.at("kv_bytes"), kv_bytes);
  EXPECT_EQ(json.at("recurrent_bytes"), recurrent_bytes);
  EXPECT_EQ(json.at("scratch_bytes"), scratch_bytes);
  EXPECT_EQ(json.at("handoff_bytes"), handoff_bytes);
  EXPECT_EQ(json.at("connection_bytes"), connection_bytes);
  EXPECT_EQ(json.at("host_bytes"), host_bytes);
  EXPECT_EQ(json.at("budget_bytes"), budget_bytes);
  EXPECT_EQ(json.at("bounded"), bounded);
  EXPECT_EQ(json.at("experts_resident"), experts);
  EXPECT_EQ(json.at("experts_host"), experts_host);
  EXPECT_EQ(json.at("experts_worker"), experts_worker);
  EXPECT_EQ(json.at("experts_away_share"), cold_share);
  const auto& [share, calls] = worker_uses.front();
  EXPECT_EQ(json.at("experts_worker_uses").at(0).at("share"), share);
  EXPECT_EQ(json.at("experts_worker_uses").at(0).at("calls_per_row"), calls);
  EXPECT_EQ(json.at("offload_bytes"), offload_bytes);
  EXPECT_EQ(json.at("staging_bytes"), staging_bytes);
  EXPECT_EQ(json.at("drafter_bytes"), drafter_bytes);
  EXPECT_EQ(json.at("experts_mapped_bytes"), mapped_bytes);
  EXPECT_EQ(json.at("experts_locked_bytes"), locked_bytes);
  EXPECT_EQ(json.at("embedding_host_bytes"), table_bytes);
  EXPECT_EQ(json.at("experts_streamed_bytes"), streamed_bytes);
  EXPECT_EQ(json.at("weights_file_bytes"), file_bytes);
  EXPECT_EQ(json.at("weights_file"), file_parts);
  const auto& [prompt_row_s, token_s] = *time;
  EXPECT_EQ(json.at("measured_time").at("prompt_row_s"), prompt_row_s);
  EXPECT_EQ(json.at("measured_time").at("token_s"), token_s);
  EXPECT_EQ(json.at("read_bytes_per_s"), bytes_per_s);
  EXPECT_EQ(json.at("op_per_s"), op_per_s);
  EXPECT_EQ(json.at("total_bytes"), shard.total_bytes());
  EXPECT_EQ(json.at("free_bytes"), shard.free_bytes());
}

TEST(PlanJson, HasEveryFieldOfALayout) {
  const ShardLayout layout = some_layout();
  const ordered_json json = plan_json(some_plan()).at("shards").at(0);
  const auto& [first_layer, end_layer, embedding, head, table_device_rows, max_rows, max_logit_rows,
               slots, context, kept_pieces, rows_abreast, kv_type, f32_weights, file_parts,
               kv_pages, experts] = layout;
  EXPECT_EQ(json.at("first_layer"), first_layer);
  EXPECT_EQ(json.at("end_layer"), end_layer);
  EXPECT_EQ(json.at("embedding"), embedding);
  EXPECT_EQ(json.at("head"), head);
  EXPECT_EQ(json.at("embedding_device_rows"), *table_device_rows);
  EXPECT_EQ(json.at("max_rows"), max_rows);
  EXPECT_EQ(json.at("max_logit_rows"), max_logit_rows);
  EXPECT_EQ(json.at("slots"), slots);
  EXPECT_EQ(json.at("context"), context);
  EXPECT_EQ(json.at("kept_pieces"), kept_pieces);
  EXPECT_EQ(json.at("rows_abreast"), rows_abreast);
  EXPECT_EQ(json.at("kv_type"), kv_type_name(kv_type));
  EXPECT_EQ(json.at("compute"), f32_weights ? "f32" : "auto");
  EXPECT_EQ(json.at("weights_file_parts"), file_parts);
  EXPECT_EQ(json.at("kv_pages"), kv_pages);
  const auto& [home, spare, streamed] = experts.front();
  ASSERT_EQ(home.size(), 4u);
  EXPECT_EQ(json.at("experts_away"), ordered_json::array({{{"layer", first_layer},
                                                           {"resident", "0"},
                                                           {"host", "3"},
                                                           {"worker:0", "1-2"},
                                                           {"spare", spare},
                                                           {"streamed", streamed}}}));
}

// Which of its devices a worker computes on, it does not say.
TEST(PlanJson, HasTheNumberOfADeviceHere) {
  Plan plan = some_plan();
  plan.shards[0].remote = false;
  EXPECT_EQ(plan_json(plan).at("shards").at(0).at("number"), 9);
}

TEST(PlanJson, HasEveryFieldOfAWorkerOfExperts) {
  const ExpertWorkerPlan worker = some_worker();
  const ordered_json json = plan_json(some_plan()).at("expert_workers").at(0);
  const auto& [device, here, kind, threads, experts, job_rows, jobs, call_s, bytes_per_s, op_per_s,
               weight_bytes, scratch_bytes, connection_bytes, host_bytes, budget_bytes, bounded,
               unheard] = worker;
  EXPECT_EQ(json.at("device"), device);
  EXPECT_EQ(json.at("here"), here);
  EXPECT_EQ(json.at("kind"), device_kind_name(kind));
  EXPECT_EQ(json.at("threads"), threads);
  EXPECT_EQ(json.at("experts"), experts);
  EXPECT_EQ(json.at("job_rows"), job_rows);
  EXPECT_EQ(json.at("jobs"), jobs);
  EXPECT_EQ(json.at("round_trip_us"), call_s * 1e6);
  EXPECT_EQ(json.at("read_bytes_per_s"), bytes_per_s);
  EXPECT_EQ(json.at("op_per_s"), op_per_s);
  EXPECT_EQ(json.at("weight_bytes"), weight_bytes);
  EXPECT_EQ(json.at("scratch_bytes"), scratch_bytes);
  EXPECT_EQ(json.at("connection_bytes"), connection_bytes);
  EXPECT_EQ(json.at("host_bytes"), host_bytes);
  EXPECT_EQ(json.at("budget_bytes"), budget_bytes);
  EXPECT_EQ(json.at("bounded"), bounded);
  EXPECT_EQ(json.at("assumed"), true);
  EXPECT_EQ(json.at("unheard"), unheard);
  EXPECT_EQ(json.at("total_bytes"), worker.total_bytes());
  EXPECT_EQ(json.at("free_bytes"), worker.free_bytes());
}

TEST(PlanJson, HasEveryFieldOfTheProgram) {
  Plan plan = some_plan();
  const ordered_json json = plan_json(plan).at("program");
  const auto& [program_bytes, connection_bytes, gpu_bytes, budget_bytes] = *plan.program;
  EXPECT_EQ(json.at("program_bytes"), program_bytes);
  EXPECT_EQ(json.at("connection_bytes"), connection_bytes);
  EXPECT_EQ(json.at("gpu_bytes"), gpu_bytes);
  EXPECT_EQ(json.at("total_bytes"), plan.program->total_bytes());
  EXPECT_EQ(json.at("budget_bytes"), *budget_bytes);
  plan.program->budget_bytes.reset();
  EXPECT_TRUE(plan_json(plan).at("program").at("budget_bytes").is_null());
}

TEST(PlanJson, SaysWhatOfTheCostsWasMeasured) {
  const ordered_json json = plan_json(some_plan()).at("expert_costs").at(0);
  const auto& [executor, costs] = some_costs();
  const auto& [call_s, bytes_per_s, call_measured, speed_measured] = costs;
  EXPECT_EQ(json.at("executor"), executor);
  EXPECT_EQ(json.at("call_us"), call_s * 1e6);
  EXPECT_EQ(json.at("call_measured"), call_measured);
  EXPECT_EQ(json.at("bytes_per_s"), bytes_per_s);
  EXPECT_EQ(json.at("speed_measured"), speed_measured);
  EXPECT_NE(
      plan_table(some_plan())
          .find("Experts away are placed by: host 500000.0 us a call and 0.0 GB/s (assumed)."),
      std::string::npos);
}

TEST(PlanJson, HasEveryFieldOfADrafter) {
  const Plan plan = some_plan();
  const ordered_json json = plan_json(plan).at("drafter");
  const auto& [name, block_rows, reserve] = *plan.drafter;
  const auto& [rows, weights, kv, features, scratch] = reserve;
  EXPECT_EQ(json.at("name"), name);
  EXPECT_EQ(json.at("block_rows"), block_rows);
  EXPECT_EQ(json.at("rows"), rows);
  EXPECT_EQ(json.at("weight_bytes"), weights);
  EXPECT_EQ(json.at("kv_bytes"), kv);
  EXPECT_EQ(json.at("feature_bytes"), features);
  EXPECT_EQ(json.at("scratch_bytes"), scratch);
  EXPECT_EQ(json.at("total_bytes"), reserve.total());
}

TEST(PlanJson, HasEveryFieldOfThePrediction) {
  const Prediction prediction = some_prediction();
  const ordered_json json = plan_json(some_plan()).at("predicted");
  const auto expect_speed = [](const ordered_json& got, const SpeedBound& speed) {
    const auto& [tokens_per_s, bound] = speed;
    EXPECT_EQ(got.at("tokens_per_s"), tokens_per_s);
    EXPECT_EQ(got.at("bound"), bound);
  };
  const auto& [measured, prefill, decode, fill_row_s, shards, expert_workers] = prediction;
  EXPECT_EQ(json.at("measured"), measured);
  expect_speed(json.at("prefill"), prefill);
  expect_speed(json.at("decode"), decode);
  EXPECT_EQ(json.at("fill_s_per_row"), fill_row_s);
  const auto& [shard_prefill, shard_token_s, token_bound] = shards.front();
  expect_speed(json.at("shards").at(0).at("prefill"), shard_prefill);
  EXPECT_EQ(json.at("shards").at(0).at("decode").at("s_per_token"), shard_token_s);
  EXPECT_EQ(json.at("shards").at(0).at("decode").at("bound"), token_bound);
  const auto& [calls, bytes, worker_token_s] = expert_workers.front();
  EXPECT_EQ(json.at("expert_workers").at(0).at("calls_per_token"), calls);
  EXPECT_EQ(json.at("expert_workers").at(0).at("bytes_per_token"), bytes);
  EXPECT_EQ(json.at("expert_workers").at(0).at("s_per_token"), worker_token_s);
}

}  // namespace
}  // namespace tessera
