#include "device/gpu/plugin/gpu_device.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/within_memory.h"

namespace tessera::gpu {

GpuDevice::GpuDevice(std::string name, const GpuDeviceOptions& options, const GpuHost& host,
                     const GpuTraits& traits)
    : name_(std::move(name)), options_(options), host_(host), traits_(traits) {}

GpuDevice::~GpuDevice() {
  use();
  drop_posts();
  close();
  if (lost() || device_left()) order_.spoil();
}

// A queue that does not answer is left to the driver with all that it uses: freeing that would wait
// for it. Of a load that failed before there was an event nothing is on a queue.
void GpuDevice::close() {
  const bool answered = !lost() && !device_left() && finished_.get() != nullptr;
  for (const GpuStream queue : {streams_.queue(), side_.queue(), stream_.get()}) {
    if (queue == nullptr) continue;
    if (answered && !lost())
      check(wait_or_leave(queue, finished_, options_.longest_wait(), "what was under way"));
    if (lost() && !left_behind_ && GPU(StreamQuery)(queue) != GPU(Success)) left_behind_.emplace();
  }
  if (answered && lost())
    host_.tell(LogLevel::warn, fault_.error().message + "; its memory is left to the driver");
}

void GpuDevice::use() {
  static_cast<void>(GPU(SetDevice)(options_.index));
}

// --- A step ---

void GpuDevice::begin(const BatchView& batch) {
  CHECK(batch.rows() <= layout_.max_rows);
  CHECK(static_cast<int>(batch.logit_rows.size()) <= layout_.max_logit_rows);
  CHECK(static_cast<int>(batch.sequences.size()) <= layout_.slots);
  const int known = goes_ahead_ ? shape_.logit_rows : 0;
  for (const TokenId token : batch.tokens)
    CHECK(token >= token_of_choice(known - 1) && token < spec_.n_vocab);
  drop_posts();
  flush();
  use();
  shape_ = shape_of(batch, scratch_.table_stride * kPageTokens);
  row_ = {};
  if (shape_.rows == 1)
    row_ = {batch.sequences[0].slot, static_cast<std::int32_t>(batch.sequences[0].first_position)};
  // Every shard sees the batch's choices; only one with the head has room for them.
  if (!layout_.head) shape_.choosing = Choosing::host;
  choices_ = batch.choices.rows;
  goes_ahead_ = goes_ahead(batch);
  routing_ = {};
  hands_rows_ = false;
  logits_here_ = false;
  if (!lost()) check(inputs_->send(batch, shape_, scratch_, step_->launch()));
  row_.step = inputs_->step();
  note({Block::begin});
}

void GpuDevice::route(int layer) {
  routing_ = {.layer = layer};
  sums_given_ = false;
  streamed_.clear();
}

void GpuDevice::finish_ffn(int layer) {
  if (posts_experts(layer) && !routing_.enqueued) return post(layer);
  if (lacks_experts(layer)) return finish_with_sums(layer);
  note({Block::ffn, layer});
  routing_ = {.layer = layer, .enqueued = true};
}

void GpuDevice::head() {
  note({Block::head});
  if (answered_ == posting_.size()) flush();
  if (!goes_ahead_) return;
  CHECK(n_under_way_ < kMostUnderWay, "{} steps are under way", n_under_way_);
  const UnderWay& step = under_way_[n_under_way_++] = {choices_.size(), inputs_->step()};
  if (!lost()) check(status_of(GPU(EventRecord)(done_event(step).get(), stream_.get()), "a step"));
}

// Everything noted goes to the queue.
void GpuDevice::flush() {
  if (program_.empty()) return;
  CHECK(answered_ == posting_.size(), "experts that were asked for come first");
  if (!lost()) {
    use();
    check(within_memory([this] { return launch_program(); }, "a step"));
  }
  program_.clear();
}

// The first of what was noted.
Status GpuDevice::run_program(std::size_t calls, std::int32_t number) {
  const std::span<const BlockCall> first{program_.data(), calls};
  return order_.follow(stream_.get(), [&]() -> Status {
    TESSERA_TRY(step_->before(first, shape_, number != 0 ? row_ : StepRow{}));
    return step_->run(first, shape_, number);
  });
}

Status GpuDevice::launch_program() {
  if (!options_.graphs || shape_.rows > kDecodeRows) return run_program(program_.size());
  // Then there are fewer launches, each of which begins while the one before ends, the step's
  // inputs among them; a graph's first would wait for those.
  if (step_->all_in_runs(program_, shape_)) return run_program(program_.size(), inputs_->step());
  TESSERA_ASSIGN(Replay * replay, this->replay());
  if (!std::exchange(replay->ran, true)) return run_program(program_.size());
  capture(*replay);
  return replay->captured ? launch(*replay) : run_program(program_.size());
}

Status GpuDevice::launch(const Replay& replay) {
  return order_.follow(stream_.get(), [&]() -> Status {
    TESSERA_TRY(step_->before(program_, shape_, {}));
    return replay.graph.launch(stream_.get());
  });
}

// That of the shape and of what was noted. What was not used for longest makes room, when nothing
// of it runs.
Result<GpuDevice::Replay*> GpuDevice::replay() {
  constexpr std::size_t kMost = 64;
  auto at = replays_.find(ReplayView{shape_, program_});
  if (at == replays_.end()) {
    if (replays_.size() == kMost) {
      TESSERA_TRY(wait());
      replays_.erase(std::min_element(
          replays_.begin(), replays_.end(),
          [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
    }
    at = replays_.emplace(ReplayKey{shape_, program_}, Replay{}).first;
  }
  at->second.used = ++uses_;
  return &at->second;
}

Result<Graph> GpuDevice::captured_graph() {
  TESSERA_TRY(Graph::begin(stream_.get()));
  Status run = step_->run(program_, shape_, 0);
  Result<Graph> graph = Graph::end(stream_.get());  // whatever came of the run
  TESSERA_TRY(std::move(run));
  return graph;
}

// Makes the graph of what was noted, once. Where that fails, as for want of memory, steps go
// without, and after a while it is tried again, a few times: each try takes the time of some steps.
void GpuDevice::capture(Replay& replay) {
  constexpr int kMostFailures = 4;
  constexpr std::uint64_t kPause = 64;  // steps, four times as many after each failure
  if (replay.captured || replay.failures == kMostFailures || uses_ < replay.again) return;
  Result<Graph> graph = captured_graph();
  if (graph) {
    replay.graph = *std::move(graph);
    replay.captured = true;
    if (replay.failures > 0)
      host_.tell(LogLevel::info, fmt::format("{}: a step's graph was made at last", name_));
    return;
  }
  static_cast<void>(GPU(GetLastError)());  // the next call's must be its own
  side_.forget();
  replay.again = uses_ + (kPause << (2 * replay.failures++));
  if (!std::exchange(told_of_graphs_, true))
    host_.tell(LogLevel::warn, fmt::format("{}: {}; such steps are slower, and it is tried again",
                                           name_, graph.error().message));
}

void GpuDevice::check(Status status) {
  if (status || lost()) return;
  fault_ = std::move(status.error()).in(name_);
}

Status GpuDevice::wait() {
  return wait_for(stream_.get(), finished_, options_.wait_seconds, "a step");
}

Status GpuDevice::too_late() const {
  return Error::make(ErrorCode::internal, "did not finish a step within {:g} s",
                     options_.wait_seconds);
}

Status GpuDevice::fetch(void* to, const void* from, std::size_t bytes) {
  TESSERA_TRY(status_of(GPU(MemcpyAsync)(to, from, bytes, GPU(MemcpyDeviceToHost), stream_.get()),
                        "copying back"));
  return wait();
}

std::span<const float> GpuDevice::logits() {
  n_under_way_ = 0;  // nobody takes its tokens
  const std::size_t count = as_size(shape_.logit_rows) * as_size(spec_.n_vocab);
  if (count == 0) return {};
  auto* host = host_logits_.as<float>();
  if (!logits_here_) {
    flush();
    use();
    if (!lost()) check(fetch(host, scratch_.logits, count * sizeof(float)));
    if (lost()) std::fill_n(host, count, 0.0f);
    logits_here_ = true;
  }
  return {host, count};
}

void GpuDevice::read_hidden(std::span<float> out) {
  CHECK(out.size() == as_size(shape_.rows) * as_size(spec_.n_embd));
  flush();
  use();
  auto* host = host_hidden_.as<float>();
  if (!lost()) check(fetch(host, scratch_.hidden, out.size_bytes()));
  if (lost()) std::fill_n(host, out.size(), 0.0f);
  std::copy_n(host, out.size(), out.data());
}

void GpuDevice::write_hidden(std::span<const float> rows) {
  CHECK(rows.size() == as_size(shape_.rows) * as_size(spec_.n_embd));
  // What begin() noted does not touch the rows and may follow them.
  if (program_.size() > 1) flush();
  use();
  if (lost()) return;
  check(wait_for(hidden_sent_, options_.wait_seconds, "a step"));
  if (lost()) return;
  std::copy_n(rows.data(), rows.size(), host_hidden_.as<float>());
  check(status_of(GPU(MemcpyAsync)(scratch_.hidden, host_hidden_.as<float>(), rows.size_bytes(),
                                   GPU(MemcpyHostToDevice), stream_.get()),
                  "residual rows"));
  check(status_of(GPU(EventRecord)(hidden_sent_.get(), stream_.get()), "residual rows"));
}

// --- State ---

void GpuDevice::enqueue_copy(std::byte* to, const std::byte* from, std::int64_t bytes) {
  if (bytes == 0) return;
  end_step();
  flush();
  use();
  if (lost()) return;
  check(status_of(
      GPU(MemcpyAsync)(to, from, as_size(bytes), GPU(MemcpyDeviceToDevice), stream_.get()),
      "copying state"));
}

void GpuDevice::reset_slot(int slot) {
  const std::int64_t bytes = state_.slot_floats * std::int64_t{sizeof(float)};
  if (bytes == 0) return;
  end_step();
  flush();
  use();
  if (lost()) return;
  check(settle_states());
  check(status_of(GPU(MemsetAsync)(slots_.data() + slot * bytes, 0, as_size(bytes), stream_.get()),
                  "clearing state"));
}

// Behind everything noted.
Status GpuDevice::settle_states() {
  if (!step_->log_open()) return step_->settle_states();
  return order_.follow(stream_.get(), [this] { return step_->settle_states(); });
}

void GpuDevice::copy_slot(const StateCopy& slots) {
  const std::int64_t bytes = state_.slot_floats * std::int64_t{sizeof(float)};
  if (bytes == 0) return;
  end_step();
  flush();
  use();
  if (!lost()) check(settle_states());
  enqueue_copy(slots_.data() + slots.to * bytes, slots_.data() + slots.from * bytes, bytes);
}

void GpuDevice::copy_page(int kv_group, const StateCopy& pages) {
  const auto group = as_size(kv_group);
  const std::int64_t bytes = state_.page_bytes[group];
  std::byte* pool = pools_[group].data();
  enqueue_copy(pool + pages.to * bytes, pool + pages.from * bytes, bytes);
}

}  // namespace tessera::gpu
