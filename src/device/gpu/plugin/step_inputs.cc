#include "device/gpu/plugin/step_inputs.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "device/gpu/kernels/sizes.h"

namespace tessera::gpu {
namespace {

constexpr int kLeastContext = kFewSpans * kPageTokens;  // its attention is a kernel less
constexpr std::int64_t kFewInts = 1 << 14;  // that a kernel reads sooner than a copy begins

Choosing choosing_of(const TokenChoices& choices) {
  Choosing choosing = Choosing::host;
  for (const TokenChoice& choice : choices.rows) {
    if (host_chooses(choice)) continue;
    if (choice.temperature != 0.0f) return Choosing::drawn;
    choosing = Choosing::largest;
  }
  return choosing;
}

// A row that is the host's takes the largest logit here, which nobody asks for.
void fill_choices(std::span<const TokenChoice> choices, RowChoice* rows) {
  std::int32_t change = 0;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const TokenChoice& choice = choices[i];
    rows[i] = {};
    if (host_chooses(choice)) continue;
    rows[i] = {.uniform = choice.uniform,
               .temperature = choice.temperature,
               .top_p = choice.top_p,
               .min_p = choice.min_p,
               .top_k = choice.top_k,
               .first_change = change,
               .n_changes = choice.n_changes};
    change += choice.n_changes;
  }
}

// Fills `block` like the scratch's inputs and returns how many integers of it are in use. `at` maps
// a place in device memory to the same place in the block.
template <typename At>
std::int64_t fill(const BatchView& batch, const Scratch& scratch, std::int32_t* block, At at) {
  std::copy(batch.tokens.begin(), batch.tokens.end(), at(scratch.tokens));
  std::int32_t* positions = at(scratch.positions);
  std::int32_t* sequence_of = at(scratch.sequence);
  auto* sequences =
      reinterpret_cast<Sequence*>(at(reinterpret_cast<const std::int32_t*>(scratch.sequences)));
  int row = 0;
  std::int64_t used = at(scratch.logit_rows) - block;
  used += static_cast<std::int64_t>(batch.logit_rows.size());
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    const SequenceRows& sequence = batch.sequences[i];
    CHECK(sequence.first_row == row, "the rows of a sequence stand together");
    sequences[i] = {sequence.first_row, sequence.n_rows, sequence.first_position, sequence.slot};
    for (int r = 0; r < sequence.n_rows; ++r, ++row) {
      positions[row] = sequence.first_position + r;
      sequence_of[row] = static_cast<std::int32_t>(i);
    }
    for (std::size_t group = 0; group < scratch.tables.size(); ++group) {
      const std::span<const std::int32_t> pages = sequence.pages[group];
      CHECK(static_cast<std::int64_t>(pages.size()) <= scratch.table_stride);
      std::int32_t* table =
          at(scratch.tables[group]) + static_cast<std::int64_t>(i) * scratch.table_stride;
      std::copy(pages.begin(), pages.end(), table);
      used = std::max(used, table - block + static_cast<std::int64_t>(pages.size()));
    }
  }
  CHECK(row == batch.rows());
  std::copy(batch.logit_rows.begin(), batch.logit_rows.end(), at(scratch.logit_rows));
  return used;
}

}  // namespace

Result<StepInputs> StepInputs::create(std::int64_t block_bytes, double wait_seconds) {
  StepInputs inputs;
  inputs.wait_seconds_ = wait_seconds;
  for (Block& block : inputs.blocks_) {
    TESSERA_ASSIGN(block.memory, PinnedBuffer::allocate(block_bytes, "step inputs"));
    std::memset(block.memory.as<>(), 0, static_cast<std::size_t>(block_bytes));
    TESSERA_ASSIGN(block.done, Event::create());
  }
  return inputs;
}

Status StepInputs::send(const BatchView& batch, const StepShape& shape, const Scratch& scratch,
                        const Launch& launch) {
  // Behind all of the step before: between a step's own kernels an event would keep each from
  // beginning while the one before ends.
  if (step_ != 0)
    TESSERA_TRY(status_of(GPU(EventRecord)(blocks_[last_].done.get(), launch.stream), "a step"));
  last_ = (last_ + 1) % blocks_.size();
  Block& block = blocks_[last_];
  TESSERA_TRY(wait_for(block.done, wait_seconds_, "a step"));
  auto* memory = block.memory.as<std::int32_t>();
  const auto at = [&](const std::int32_t* place) { return memory + (place - scratch.tokens); };
  constexpr std::int32_t kLast = std::numeric_limits<std::int32_t>::max() - 1;
  static_assert(kLast % kMostUnderWay == 0 && kInputBlocks > kMostUnderWay);
  step_ = step_ == kLast ? 1 : step_ + 1;
  *at(scratch.step) = step_;
  std::int64_t ints = fill(batch, scratch, memory, at);
  if (shape.choosing != Choosing::host) {
    CHECK(scratch.choices != nullptr && batch.choices.rows.size() == batch.logit_rows.size());
    auto* rows =
        reinterpret_cast<RowChoice*>(at(reinterpret_cast<const std::int32_t*>(scratch.choices)));
    fill_choices(batch.choices.rows, rows);
    const auto* end = reinterpret_cast<const std::int32_t*>(rows + batch.choices.rows.size());
    ints = std::max<std::int64_t>(ints, end - memory);
    TESSERA_TRY(send_changes(batch.choices, scratch, launch.stream,
                             reinterpret_cast<LogitChange*>(memory + scratch.input_ints)));
  }
  if (batch.rows() <= kDecodeRows && ints <= kFewInts)
    return status_of(copy_words(launch, memory, scratch.tokens, ints), "step inputs");
  return status_of(
      GPU(MemcpyAsync)(scratch.tokens, memory, static_cast<std::size_t>(ints) * sizeof(*memory),
                       GPU(MemcpyHostToDevice), launch.stream),
      "step inputs");
}

// Rising by id within a row, those of one id in their order.
Status StepInputs::send_changes(const TokenChoices& choices, const Scratch& scratch,
                                GpuStream stream, LogitChange* staged) {
  const LogitChange* from = choices.changes.data();
  LogitChange* end = staged;
  for (const TokenChoice& choice : choices.rows) {
    if (!host_chooses(choice)) {
      LogitChange* row = end;
      end = std::copy_n(from, choice.n_changes, row);
      std::stable_sort(row, end,
                       [](const LogitChange& a, const LogitChange& b) { return a.id < b.id; });
    }
    from += choice.n_changes;
  }
  if (end == staged) return {};
  const auto bytes = static_cast<std::size_t>(end - staged) * sizeof(LogitChange);
  return status_of(
      GPU(MemcpyAsync)(scratch.changes, staged, bytes, GPU(MemcpyHostToDevice), stream),
      "changes of logits");
}

bool host_chooses(const TokenChoice& choice) {
  return choice.given != kNoToken || choice.n_top >= 0 || choice.n_changes > kMostChanges;
}

StepShape shape_of(const BatchView& batch, std::int64_t longest_context) {
  StepShape shape{.rows = batch.rows(),
                  .sequences = static_cast<int>(batch.sequences.size()),
                  .logit_rows = static_cast<int>(batch.logit_rows.size()),
                  .choosing = choosing_of(batch.choices)};
  int context = kLeastContext;
  for (const SequenceRows& sequence : batch.sequences) {
    shape.max_sequence_rows = std::max(shape.max_sequence_rows, sequence.n_rows);
    context = std::max(context, sequence.first_position + sequence.n_rows);
  }
  const auto rounded = static_cast<std::int64_t>(std::bit_ceil(static_cast<unsigned>(context)));
  shape.max_context = static_cast<int>(std::min(rounded, longest_context));
  return shape;
}

}  // namespace tessera::gpu
