#include "device/gpu/plugin/gpu_device.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/within_memory.h"

namespace tessera::gpu {
namespace {

// Of the host's longest wait twice as much, and a second: it gives up the GPU that is late first,
// and the one that waits for that has not ended with an error, which a process does not survive.
std::int64_t most_ns(double wait_seconds) {
  constexpr double kLongest = 1e9;  // a year is less
  return static_cast<std::int64_t>(1e9 + 2e9 * std::clamp(wait_seconds, 0.0, kLongest));
}

}  // namespace

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

// --- Loading ---

Status GpuDevice::load(const Model& model, const ShardLayout& layout,
                       const LoadProgress& progress) {
  CHECK(step_ == nullptr, "a device loads once");
  use();
  return within_memory(
      [&] {
        spec_ = model.spec();
        layout_ = layout;
        return load_all(model, progress);
      },
      name_.c_str());
}

Status GpuDevice::load_all(const Model& model, const LoadProgress& progress) {
  TESSERA_TRY(gpu_supports(spec_));
  const WeightLayout weights = weight_layout(model.tensors(), spec_, layout_);
  fail_allocation(options_.fail_allocation);
  TESSERA_TRY(allocate(weights));
  TESSERA_TRY(load_weights(model, weights, progress));
  TESSERA_TRY(upload_constants());
  TESSERA_TRY(prepare_experts(model));
  reserve();
  std::vector<std::byte*> pools;
  for (const DeviceBuffer& pool : pools_) pools.push_back(pool.data());
  step_ = std::make_unique<GpuStep>(StepMemory{.spec = spec_,
                                               .shard = layout_,
                                               .weights = weights_,
                                               .state = state_,
                                               .scratch = scratch_,
                                               .posts = posts_,
                                               .side = side_,
                                               .pools = std::move(pools),
                                               .slots = reinterpret_cast<float*>(slots_.data()),
                                               .most_ns = most_ns(options_.wait_seconds),
                                               .chosen = host_chosen_.as<ChosenRow>()},
                                    Launch{.stream = stream_.get(),
                                           .chained = traits_.chained && options_.chained,
                                           .workspace = scratch_.workspace,
                                           .workspace_bytes = as_size(scratch_.workspace_bytes),
                                           .multiprocessors = traits_.multiprocessors,
                                           .gemm = traits_.gemm});
  if (step_->may_run()) TESSERA_TRY(begin_runs());
  return load_queue().wait("loading");
}

// What a step notes.
void GpuDevice::reserve() {
  constexpr std::size_t kMostCalls = 8;  // of a layer, and of what is around the layers
  const std::size_t layers = as_size(layout_.end_layer - layout_.first_layer);
  program_.reserve((layers + 1) * kMostCalls);
  posting_.reserve(layers);
  std::size_t experts = 0;
  for (int l = 0; l < static_cast<int>(layers); ++l)
    experts = std::max(experts, streams_.experts(l).size());
  streamed_.reserve(experts);
}

Status GpuDevice::begin_runs() {
  if (!order_.sound()) {
    host_.tell(
        LogLevel::warn,
        fmt::format("{}: a step of this process never ended on this GPU; layers go one by one",
                    name_));
    return {};
  }
  TESSERA_TRY(step_->prepare_runs(load_queue()));
  const int layers = layout_.end_layer - layout_.first_layer, dense = step_->dense_layers();
  const int run = dense > 0 ? dense : step_->run_layers();
  if (run == 0) return {};
  const int rows = std::min(kDecodeRows, kMostRunRows * layout_.rows_abreast);
  // Of parts of the model, which are timed or take turns, only what falls short is news.
  const bool part = layers < static_cast<int>(spec_.layers.size());
  host_.tell(part && run == layers ? LogLevel::debug : LogLevel::info,
             fmt::format("{}: {} of {} layers run as one kernel where a step has {}", name_, run,
                         layers, dense > 0 ? "one row" : fmt::format("up to {} rows", rows)));
  return {};
}

// First what lies here, then what is to cross.
Status GpuDevice::load_weights(const Model& model, const WeightLayout& layout,
                               const LoadProgress& progress) {
  const LoadOptions options = load_options();
  const std::int64_t later = layout.stream.host_bytes;
  std::int64_t here = 0;
  LoadProgress first, second;
  if (progress) {
    first = [&](std::int64_t done, std::int64_t total) {
      here = total;
      return progress(done, total + later);
    };
    second = [&](std::int64_t done, std::int64_t) { return progress(here + done, here + later); };
  }
  TESSERA_ASSIGN(weights_, GpuWeights::load(model, layout_, layout, options, first));
  TESSERA_ASSIGN(streams_,
                 ExpertStream::load(model, layout_, layout, weights_.arena(), options, second));
  for (int l = layout_.first_layer; l < layout_.end_layer; ++l) TESSERA_TRY(link_experts(l));
  return {};
}

Status GpuDevice::allocate(const WeightLayout& weights) {
  TESSERA_ASSIGN(stream_, Stream::create());
  TESSERA_ASSIGN(order_, StepOrder::join(options_.index));
  TESSERA_ASSIGN(finished_, Event::create());
  TESSERA_ASSIGN(hidden_sent_, Event::create());
  for (Event& event : chosen_) {
    TESSERA_ASSIGN(event, Event::create());
  }
  kept_.resize(as_size(layout_.kept_pieces + kMostUnderWay));
  for (Event& event : kept_) {
    TESSERA_ASSIGN(event, Event::create());
  }
  state_ = state_layout(spec_, layout_);
  const std::int64_t bytes = carve_scratch(spec_, layout_, weights, nullptr, scratch_);
  TESSERA_ASSIGN(scratch_memory_, DeviceBuffer::allocate(bytes, "scratch"));
  carve_scratch(spec_, layout_, weights, scratch_memory_.data(), scratch_);
  for (std::size_t g = 0; g < state_.page_bytes.size(); ++g) {
    TESSERA_ASSIGN(DeviceBuffer pool,
                   DeviceBuffer::allocate(state_.page_bytes[g] * layout_.kv_pages[g], "KV pages"));
    pools_.push_back(std::move(pool));
  }
  TESSERA_ASSIGN(slots_, DeviceBuffer::allocate(state_.slot_bytes(layout_), "recurrent state"));
  const auto fill = [&](const DeviceBuffer& buffer, int byte) {
    return load_queue().fill(buffer.data(), byte, buffer.bytes(), "clearing");
  };
  // NaN in every float: what reads memory that nothing has written shows.
  constexpr int kPoison = 0xff;
  TESSERA_TRY(fill(scratch_memory_, kPoison));
  TESSERA_TRY(fill(slots_, 0));
  for (const DeviceBuffer& pool : pools_) TESSERA_TRY(fill(pool, kPoison));

  const GpuStaging staging = gpu_staging(spec_, layout_);
  TESSERA_ASSIGN(host_logits_, PinnedBuffer::allocate(staging.logits, "logits"));
  TESSERA_ASSIGN(host_chosen_, PinnedBuffer::allocate(staging.chosen, "tokens"));
  TESSERA_ASSIGN(host_hidden_, PinnedBuffer::allocate(staging.hidden, "residual rows"));
  TESSERA_ASSIGN(host_routing_, PinnedBuffer::allocate(staging.routing, "routing"));
  pairs_.reserve(as_size(staging.routing) / (2 * sizeof(float)));
  TESSERA_ASSIGN(StepInputs inputs, StepInputs::create(staging.inputs, options_.wait_seconds));
  inputs_ = std::make_unique<StepInputs>(std::move(inputs));
  return {};
}

Status GpuDevice::upload_constants() {
  const auto send = [&](void* to, const void* from, std::size_t bytes) {
    if (to == nullptr) return Status{};
    return load_queue().send(to, from, bytes, "constants");
  };
  for (std::size_t i = 0; i < scratch_.ropes.size(); ++i) {
    const std::vector<float>& from = scratch_.ropes[i]->inv_freq;
    TESSERA_TRY(send(scratch_.inv_freq[i], from.data(), from.size() * sizeof(float)));
  }
  return send(scratch_.banned, spec_.suppressed_tokens.data(),
              spec_.suppressed_tokens.size() * sizeof(TokenId));
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
