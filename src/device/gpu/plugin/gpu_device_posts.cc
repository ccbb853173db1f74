// GpuDevice: steps of few rows, which run on while the host computes the experts they lack.
#include <algorithm>
#include <thread>
#include <utility>

#include "base/pause.h"
#include "base/within_memory.h"
#include "device/gpu/plugin/gpu_device.h"

namespace tessera::gpu {

void GpuDevice::post(int layer) {
  // By the one that posted before.
  const bool foreseen = std::exchange(coming_, -1) == layer;
  note({foreseen && step_->brings(layer) ? Block::post_brought : Block::post, layer});
  int next = layer + 1;
  while (next < layout_.end_layer && !posts_experts(next)) ++next;
  if (foresees_ && next < layout_.end_layer) {
    coming_ = next;
    note({Block::foresee, next});
    if (step_->brings(next)) note({Block::bring, next});
  }
  note({Block::ffn_branches, layer});
  note({Block::answered, layer});
  posting_.push_back(layer);
}

int GpuDevice::next_post() {
  if (answered_ == posting_.size()) return -1;
  use();
  const int layer = posting_[answered_];
  if (!lost()) check(within_memory([&] { return enqueue_to_post(layer); }, "a step"));
  if (!lost()) check(await_post(layer));
  if (lost()) {
    drop_posts();
    return -1;
  }
  const int at = layer - layout_.first_layer;
  routing_ = {.layer = layer, .enqueued = true};
  sums_given_ = false;
  answering_ = true;
  take_pairs(posts_.ids(at), posts_.weights(at));
  return layer;
}

// A graph is launched whole. Otherwise, as the first time, a kernel that waits for the host must
// not stand on the queue ahead of one that the driver has yet to load: what waits for this layer's
// sums follows when they are there.
Status GpuDevice::enqueue_to_post(int layer) {
  if (program_.empty()) return {};
  if (answered_ == 0 && options_.graphs && joins_what_it_begins()) {
    TESSERA_ASSIGN(Replay * replay, this->replay());
    if (replay->ran) capture(*replay);
    if (replay->captured) {
      TESSERA_TRY(launch(*replay));
      program_.clear();
      return {};
    }
    first_ = replay;
  }
  const auto waits = std::find(program_.begin(), program_.end(), BlockCall{Block::answered, layer});
  TESSERA_TRY(run_program(static_cast<std::size_t>(waits - program_.begin())));
  program_.erase(program_.begin(), waits);
  return {};
}

// Where routing is counted a step is several programs, and what one begins beside its kernels
// another may join. A graph cannot: it has both, or neither. A layer's experts are joined before
// the next one's begin (post()).
bool GpuDevice::joins_what_it_begins() const {
  int begun = -1;
  for (const BlockCall& call : program_) {
    if (call.block == Block::bring) begun = call.layer;
    if (call.block == Block::post_brought && std::exchange(begun, -1) != call.layer) return false;
  }
  return begun < 0;
}

Status GpuDevice::await_post(int layer) {
  const int at = layer - layout_.first_layer;
  const Clock::time_point begin = Clock::now();
  for (int round = 1; !posts_.posted(at, shape_.rows, inputs_->step()); ++round) {
    pause();
    if (round % 4096 != 0) continue;
    const int state = GPU(StreamQuery)(stream_.get());
    if (state != 0 && state != static_cast<int>(GPU(ErrorNotReady)))
      return status_of(state, "computing");
    if (Clock::now() - begin > std::chrono::duration<double>(options_.wait_seconds))
      return too_late();
    std::this_thread::yield();
  }
  return {};
}

void GpuDevice::answer_post(int layer) {
  if (!answering_) return;
  posts_.answer(layer - layout_.first_layer, shape_.rows, inputs_->step());
  answering_ = false;
  if (++answered_ < posting_.size() || lost()) return;
  // What a run that is not a graph has left.
  check(within_memory([this] { return run_program(program_.size()); }, "a step"));
  program_.clear();
  if (first_ != nullptr) first_->ran = true;
  first_ = nullptr;
}

ForeseenExperts GpuDevice::foreseen() {
  if (!foresees_ || answered_ == 0 || answered_ == posting_.size()) return {};
  const int layer = posting_[answered_], at = layer - layout_.first_layer;
  if (!posts_.foreseen(at, shape_.rows, inputs_->step())) return {};
  const MoeSpec& moe = *spec_.layers[static_cast<std::size_t>(layer)].moe;
  const std::vector<bool>& here = here_[static_cast<std::size_t>(at)];
  const std::int32_t* ids = posts_.foreseen_ids(at);
  foreseen_.clear();
  for (int i = 0; i < shape_.rows * moe.n_used; ++i)
    if (ids[i] < moe.n_expert && !here[static_cast<std::size_t>(ids[i])])
      foreseen_.push_back(ids[i]);
  return {.layer = layer, .experts = foreseen_};
}

// Nobody else gives up a step whose results are taken.
Status GpuDevice::posts_answered() {
  if (posting_.empty() || !posts_.given_up(inputs_->step())) return {};
  return Error::make(ErrorCode::unavailable,
                     "{}: experts away from it took longer than {:g} s, which it waits for them",
                     name_, options_.wait_seconds);
}

void GpuDevice::drop_posts() {
  if (answered_ < posting_.size()) {
    posts_.give_up(inputs_->step());
    program_.clear();
  }
  if (!posting_.empty() && !lost()) {
    use();
    check(step_->join_side());
  }
  posting_.clear();
  coming_ = -1;
  answered_ = 0;
  answering_ = false;
  first_ = nullptr;
}

}  // namespace tessera::gpu
