#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "plan/plan.h"
#include "plan/prediction.h"

namespace tessera {
namespace {

// Three digits, so that a row is narrow; nothing for no bytes.
std::string bytes_cell(std::int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes == 0) return {};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; std::abs(value) >= 999.5; ++unit) value /= 1024.0;
  const int decimals = unit == 0 || std::abs(value) >= 99.95 ? 0 : 1;
  return fmt::format("{:.{}f} {}", value, decimals, kUnits[unit]);
}

std::string count_cell(int count) {
  return count == 0 ? std::string() : std::to_string(count);
}

using Row = std::vector<std::string>;

struct Column {
  const char* head;
  bool left = false;
};
constexpr Column kColumns[] = {{"device", true}, {"threads"}, {"layers", true}, {"experts"},
                               {"host"},         {"worker"},  {"weights"},      {"KV"},
                               {"recurrent"},    {"scratch"}, {"total"},        {"budget"},
                               {"free"}};
constexpr std::size_t kFirstOfBytes = 6;
constexpr std::size_t kTableWidth = 80, kGap = 2;

// What stands in a column makes it as wide; 0 where nothing does.
std::size_t column_width(std::size_t column, const std::vector<Row>& rows) {
  std::size_t width = 0;
  for (const Row& row : rows) width = std::max(width, row[column].size());
  return width == 0 ? 0 : std::max(width, std::strlen(kColumns[column].head));
}

std::string table_cell(std::string_view text, std::size_t width, bool left) {
  return fmt::format(fmt::runtime(left ? "{:<{}}" : "{:>{}}"), text, width);
}

// These columns behind the device's. An empty cell is a dash, and a name that leaves them no room
// has a line of its own.
std::string table_text(const std::vector<std::size_t>& columns, const std::vector<Row>& rows) {
  std::size_t left = kTableWidth;
  for (const std::size_t c : columns) left -= std::min(left, column_width(c, rows) + kGap);
  std::size_t name = std::strlen(kColumns[0].head);
  for (const Row& row : rows)
    if (row[0].size() <= left) name = std::max(name, row[0].size());
  const auto line = [&](const auto& cell_of) {
    std::string text;
    for (const std::size_t c : columns)
      text +=
          std::string(kGap, ' ') + table_cell(cell_of(c), column_width(c, rows), kColumns[c].left);
    return text + "\n";
  };
  std::string text = table_cell(kColumns[0].head, name, true) +
                     line([](std::size_t c) { return std::string(kColumns[c].head); });
  for (const Row& row : rows) {
    text += table_cell(row[0], name, true);
    if (row[0].size() > name) text += "\n" + std::string(name, ' ');
    text += line([&](std::size_t c) { return row[c].empty() ? "-" : row[c]; });
  }
  return text;
}

// One table or, where that is too wide, what is computed and below it the bytes. A column in which
// nothing stands is left out.
std::string tables_text(const std::vector<Row>& rows) {
  std::vector<std::size_t> work, bytes;
  std::size_t width = column_width(0, rows);
  for (std::size_t c = 1; c < std::size(kColumns); ++c) {
    const std::size_t wide = column_width(c, rows);
    if (wide == 0) continue;
    width += wide + kGap;
    (c < kFirstOfBytes ? work : bytes).push_back(c);
  }
  if (width > kTableWidth) return table_text(work, rows) + "\n" + table_text(bytes, rows);
  work.insert(work.end(), bytes.begin(), bytes.end());
  return table_text(work, rows);
}

// A device's shards: one for each turn.
std::vector<const ShardPlan*> shards_of(const Plan& plan, std::size_t device) {
  std::vector<const ShardPlan*> shards;
  for (std::size_t i = device; i < plan.shards.size(); i += plan.devices())
    shards.push_back(&plan.shards[i]);
  return shards;
}

std::int64_t sum_of(const Plan& plan, std::size_t device, std::int64_t ShardPlan::*of) {
  std::int64_t bytes = 0;
  for (const ShardPlan* shard : shards_of(plan, device)) bytes = saturated_add(bytes, shard->*of);
  return bytes;
}

// One device has the embedding and the head in any case.
std::string layers_text(const std::vector<const ShardPlan*>& shards, bool several) {
  std::string text;
  for (const ShardPlan* shard : shards) {
    const ShardLayout& layout = shard->layout;
    if (!text.empty()) text += ", ";
    text += fmt::format("{}-{}", layout.first_layer, layout.end_layer - 1);
    if (several && layout.embedding) text += " +embedding";
    if (several && layout.head) text += " +head";
  }
  return text;
}

const char* worker_task(const Plan& plan, const ExpertWorkerPlan& worker) {
  if (worker.experts > 0) return worker.unheard.empty() ? "experts" : "experts (assumed)";
  return plan.experts_host() > 0 ? "no room" : "not needed";
}

// Of the memory that the row is about: a GPU's shard has buffers in its process's.
struct RowBytes {
  explicit RowBytes(const ShardPlan& shard)
      : locked(shard.kind == DeviceKind::cpu ? shard.locked_bytes : 0),
        buffers(shard.kind == DeviceKind::cpu ? shard.buffer_bytes() : 0) {}
  std::int64_t locked, buffers;
};

// What several ranges share: each may use what the others leave.
std::string budget_cell(const std::vector<const ShardPlan*>& shards) {
  std::int64_t bytes = shards.front()->budget_bytes;
  for (const ShardPlan* shard : shards)
    if (shard != shards.front()) bytes = saturated_add(bytes, shard->charged_bytes());
  return bytes_cell(bytes);
}

Row device_row(const std::vector<const ShardPlan*>& shards, bool several) {
  const auto count = [&](int ShardPlan::*of) {
    int sum = 0;
    for (const ShardPlan* shard : shards) sum += shard->*of;
    return count_cell(sum);
  };
  const auto sum = [&](const auto& of) {
    std::int64_t bytes = 0;
    for (const ShardPlan* shard : shards) bytes = saturated_add(bytes, of(*shard));
    return bytes_cell(bytes);
  };
  const ShardPlan& first = *shards.front();
  return {
      first.device,
      std::to_string(first.threads),
      layers_text(shards, several),
      count(&ShardPlan::experts),
      count(&ShardPlan::experts_host),
      count(&ShardPlan::experts_worker),
      sum([](const ShardPlan& s) { return saturated_add(s.weight_bytes, RowBytes(s).locked); }),
      sum([](const ShardPlan& s) { return s.kv_bytes; }),
      sum([](const ShardPlan& s) { return s.recurrent_bytes; }),
      sum([](const ShardPlan& s) { return saturated_add(s.scratch_bytes, RowBytes(s).buffers); }),
      sum([](const ShardPlan& s) { return s.total_bytes(); }),
      first.bounded ? budget_cell(shards) : "",
      bytes_cell(first.free_bytes())};
}

// One that has nothing to do is not started: it has no threads and takes no memory.
Row worker_row(const Plan& plan, const ExpertWorkerPlan& worker) {
  return {worker.device,
          count_cell(worker.threads),
          worker_task(plan, worker),
          count_cell(worker.experts),
          "",
          "",
          bytes_cell(worker.weight_bytes),
          "",
          "",
          bytes_cell(saturated_rest(worker.total_bytes(), {worker.weight_bytes})),
          bytes_cell(worker.total_bytes()),
          worker.bounded ? bytes_cell(worker.budget_bytes) : "",
          worker.experts > 0 ? bytes_cell(worker.free_bytes()) : ""};
}

std::string devices_text(const Plan& plan) {
  std::vector<Row> rows;
  for (std::size_t i = 0; i < plan.devices(); ++i)
    rows.push_back(device_row(shards_of(plan, i), plan.shards.size() > 1));
  for (const ExpertWorkerPlan& worker : plan.expert_workers)
    rows.push_back(worker_row(plan, worker));
  return tables_text(rows);
}

// What each device's part takes, where there are several.
std::string shard_speeds(const Plan& plan) {
  std::string text;
  const auto bound = [](const std::string& by) { return by.empty() ? "" : ", bound by " + by; };
  if (plan.shards.size() > 1)
    for (std::size_t i = 0; i < plan.devices(); ++i) {
      const ShardPrediction& first = plan.predicted->shards[i];
      double row_s = 0.0, token_s = 0.0;
      for (std::size_t j = i; j < plan.shards.size(); j += plan.devices()) {
        row_s += 1.0 / plan.predicted->shards[j].prefill.tokens_per_s;
        token_s += plan.predicted->shards[j].token_s;
      }
      text += fmt::format("  {}: prompts {:.1f} tokens/s{}; {:.2f} ms of each token{}\n",
                          plan.shards[i].device, 1.0 / row_s, bound(first.prefill.bound),
                          1e3 * token_s, bound(first.token_bound));
    }
  for (std::size_t w = 0; w < plan.predicted->expert_workers.size(); ++w) {
    const ExpertWorkerPrediction& part = plan.predicted->expert_workers[w];
    const ExpertWorkerPlan& worker = plan.expert_workers[w];
    if (part.token_s <= 0.0) continue;
    text += fmt::format(
        "  {}: {:.2f} ms of each token, beside the others: reads {} at {:.1f} GB/s; {:.1f} "
        "calls{}\n",
        worker.device, 1e3 * part.token_s, format_bytes(static_cast<std::int64_t>(part.bytes)),
        worker.bytes_per_s / 1e9, part.calls,
        worker.call_s > 0.0 ? fmt::format(" of {:.0f} us", 1e6 * worker.call_s)
                            : ", whose time is not known");
  }
  return text;
}

// Why there is no prediction, and what would bring one.
std::string no_prediction(const Plan& plan) {
  bool away = false, elsewhere = false;
  for (const ShardPlan& shard : plan.shards) {
    away |= !shard.layout.experts.empty() || shard.layout.file_parts != 0;
    elsewhere |= shard.remote || shard.kind != DeviceKind::cpu;
  }
  if (elsewhere && !away)
    return fmt::format("Speed: not measured; {}.\n",
                       plan.unmeasured.empty() ? "--layer-times measure does it" : plan.unmeasured);
  if (const std::string unknown = unknown_speed(plan); !unknown.empty())
    return fmt::format("Speed: not predicted; {}.\n", unknown);
  return "Speed: not measured; tessera bench measures this machine.\n";
}

std::string drafter_text(const Plan& plan) {
  if (!plan.drafter) return {};
  const DrafterReserve& reserve = plan.drafter->reserve;
  return fmt::format(
      "{} keeps {} free for a drafter{}: weights {}, KV {}, features {}, scratch {}.\n",
      plan.shards.back().device, format_bytes(reserve.total()),
      plan.drafter->name.empty() ? "" : fmt::format(" ({})", plan.drafter->name),
      format_bytes(reserve.weights), format_bytes(reserve.kv), format_bytes(reserve.features),
      format_bytes(reserve.scratch));
}

// What experts away were placed by.
std::string costs_text(const Plan& plan) {
  std::string text;
  const auto mark = [](bool measured) { return measured ? "" : " (assumed)"; };
  for (const auto& [executor, costs] : plan.expert_costs)
    text += fmt::format("{} {} {:.1f} us{} a call and {:.1f} GB/s{}",
                        text.empty() ? "Experts away are placed by:" : ";", executor,
                        1e6 * costs.call_s, mark(costs.call_measured), costs.bytes_per_s / 1e9,
                        mark(costs.speed_measured));
  return text.empty() ? text : text + ".\n";
}

// What no row of the table is charged with.
std::string program_text(const Plan& plan) {
  if (!plan.program) return {};
  const auto part = [](const char* name, std::int64_t bytes) {
    return bytes > 0 ? fmt::format(", {} {}", name, format_bytes(bytes)) : "";
  };
  const ProgramPlan& own = *plan.program;
  return fmt::format(
      "This process takes {} of the machine's memory beside these: program {}{}{}.\n",
      format_bytes(own.total_bytes()), format_bytes(own.program_bytes),
      part("connections", own.connection_bytes), part("for GPUs", own.gpu_bytes));
}

// The memory of a GPU's process has no column.
std::string buffers_text(const Plan& plan) {
  std::string text;
  for (std::size_t i = 0; i < plan.devices(); ++i) {
    std::int64_t bytes = 0;
    for (const ShardPlan* shard : shards_of(plan, i))
      if (shard->kind != DeviceKind::cpu) bytes = saturated_add(bytes, shard->buffer_bytes());
    if (bytes > 0)
      text += fmt::format("{} takes {} of its host's memory for buffers.\n", plan.shards[i].device,
                          format_bytes(bytes));
  }
  return text;
}

// Of a GPU whose embedding table is not all its own.
std::string table_text(const ShardPlan& shard) {
  const int border = shard.layout.table_device_rows.value_or(0);
  const std::string bytes = format_bytes(shard.table_bytes);
  if (border == 0)
    return fmt::format(
        "The embedding table of {} lies in pinned memory of this process, {}: it reads the rows of "
        "a step's tokens from there.\n",
        shard.device, bytes);
  return fmt::format(
      "Rows 0 to {} of the embedding table are on {}, the others in pinned memory of this process, "
      "{}: it reads those of a step's tokens from there.\n",
      border - 1, shard.device, bytes);
}

// What of the plan is worth a sentence.
std::string remarks(const Plan& plan) {
  std::string text = program_text(plan) + buffers_text(plan) + drafter_text(plan);
  for (const ExpertWorkerPlan& worker : plan.expert_workers)
    if (!worker.unheard.empty())
      text += fmt::format("{}: what it has and takes is assumed.\n", worker.unheard);
  for (const std::string& warning : plan.warnings) text += warning + "\n";
  if (!plan.advice.empty()) text += plan.advice + "\n";
  std::int64_t mapped = 0;
  for (const ShardPlan& shard : plan.shards) mapped += shard.mapped_bytes;
  if (mapped > 0)
    text += fmt::format(
        "Experts of the host are read from the file: {} of page cache beside the budgets.\n",
        format_bytes(mapped));
  for (std::size_t i = 0; i < plan.devices(); ++i) {
    const ShardPlan& shard = plan.shards[i];
    if (const std::int64_t bytes = sum_of(plan, i, &ShardPlan::locked_bytes); bytes > 0)
      text += fmt::format("Experts away from {} are locked in memory: {}{}.\n", shard.device,
                          format_bytes(bytes),
                          RowBytes(shard).locked > 0 ? ", counted as weights" : " of this process");
  }
  for (std::size_t i = 0; i < plan.devices(); ++i)
    if (const std::int64_t bytes = sum_of(plan, i, &ShardPlan::streamed_bytes); bytes > 0)
      text += fmt::format(
          "Experts away from {} are kept packed for it too, {} of pinned memory of this process: "
          "it fetches them from there.\n",
          plan.shards[i].device, format_bytes(bytes));
  for (const ShardPlan& shard : plan.shards)
    if (shard.table_bytes > 0) text += table_text(shard);
  text += costs_text(plan);
  for (const ShardPlan& shard : plan.shards)
    if (shard.file_bytes > 0)
      text += fmt::format(
          "{} leaves {} of weights in the file ({}): page cache beside the budget, read anew for "
          "each use.\n",
          shard.device, format_bytes(shard.file_bytes), shard.file_parts);
  if (plan.turns > 1)
    text += fmt::format(
        "Layers go round the GPUs in {} turns; --target-turns 1 gives each one range.\n",
        plan.turns);
  if (plan.cut_by == CutBy::times) text += "Layers are cut by their measured times.\n";
  if (plan.cut_by == CutBy::bytes)
    text += fmt::format(
        "Layers are cut by their bytes; {}.\n",
        plan.unmeasured.empty() ? "--layer-times measure cuts them by time" : plan.unmeasured);
  if (!plan.predicted) return text + no_prediction(plan);
  return text +
         fmt::format("Prompts: {}.\nGeneration: {}.\n",
                     prediction_text(*plan.predicted, plan.predicted->prefill),
                     prediction_text(*plan.predicted, plan.predicted->decode)) +
         shard_speeds(plan);
}

}  // namespace

const char* cut_by_name(CutBy by) {
  switch (by) {
    case CutBy::nothing:
      return "nothing";
    case CutBy::weights:
      return "weights";
    case CutBy::bytes:
      return "bytes";
    case CutBy::times:
      return "times";
  }
  return "";
}

std::string format_bytes(std::int64_t bytes) {
  constexpr double kUnit = 1024.0;
  const double value = static_cast<double>(bytes);
  if (value >= kUnit * kUnit * kUnit)
    return fmt::format("{:.2f} GiB", value / (kUnit * kUnit * kUnit));
  if (value >= kUnit * kUnit) return fmt::format("{:.1f} MiB", value / (kUnit * kUnit));
  if (value >= kUnit) return fmt::format("{:.1f} KiB", value / kUnit);
  return fmt::format("{} B", bytes);
}

std::string plan_table(const Plan& plan) {
  std::string text = fmt::format(
      "{} ({}), {} layers; {} sequence{} of {} tokens, KV in {}, prefill chunks of {}{}\n\n",
      plan.model.empty() ? "model" : plan.model, plan.architecture, plan.n_layer, plan.parallel,
      plan.parallel == 1 ? "" : "s", plan.context, kv_type_name(plan.kv_type), plan.prefill_chunk,
      plan.f32_weights ? ", weights as f32" : "");
  text += devices_text(plan);
  text += fmt::format("\nOne token reads {}; the process peaks at about {}.\n",
                      format_bytes(static_cast<std::int64_t>(plan.decode_bytes_per_token)),
                      format_bytes(plan.total_bytes()));
  return text + remarks(plan);
}

}  // namespace tessera
