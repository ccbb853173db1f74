// GpuDevice: experts that come and go while steps run. What a step sees of a layer's experts is in
// a table that its kernels read, and the table changes on the step's queue: a step that is enqueued
// ahead of a change sees what was before, one behind it what is then. Copies run on another queue.
// Experts in pinned memory are copied from there, others are packed by a thread.
#include <sys/resource.h>

#include "base/within_memory.h"
#include "device/gpu/plugin/gpu_device.h"

namespace tessera::gpu {

void GpuDevice::begin_replace_expert(const ExpertMove& move) {
  moving_.move = move;
  moving_.begun = begin_move();
}

Status GpuDevice::begin_move() {
  const ExpertMove& move = moving_.move;
  end_step();
  flush();
  use();
  TESSERA_TRY(fault());
  const int layer = move.layer - layout_.first_layer;
  if (move.evicted >= 0)
    here_[static_cast<std::size_t>(layer)][static_cast<std::size_t>(move.evicted)] = false;
  TESSERA_ASSIGN(moving_.place, weights_.vacate(move, stream_.get()));
  TESSERA_TRY(side_.join_all(stream_.get()));
  TESSERA_TRY(status_of(GPU(EventRecord)(vacated_.get(), stream_.get()), "moving an expert"));
  moving_.since = Clock::now();
  const std::span<const std::uint8_t> pinned = streams_.experts(layer);
  moving_.pinned = !pinned.empty() && pinned[static_cast<std::size_t>(move.expert)] != 0;
  if (moving_.pinned) return streams_.bring(layer, move.expert, moving_.place, vacated_);
  return within_memory([this] { return begin_reading(); }, "an expert that moves");
}

Status GpuDevice::begin_reading() {
  const auto read = [this]() -> Status {
    constexpr int kNice = 10;
    (void)::setpriority(PRIO_PROCESS, 0, kNice);  // of this thread: steps come first
    use();
    return weights_.read_expert(*model_, load_options(), moving_.move, moving_.place, vacated_);
  };
  moving_.read = std::async(std::launch::async,
                            [read] { return within_memory(read, "an expert that moves"); });
  return {};
}

Result<bool> GpuDevice::moved() {
  use();
  TESSERA_TRY(fault());
  TESSERA_TRY(moving_.begun);
  if (moving_.pinned) {
    TESSERA_ASSIGN(const bool there, streams_.brought());
    if (!there) return false;
  } else {
    if (moving_.read.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return false;
    TESSERA_TRY(moving_.read.get());
  }
  TESSERA_TRY(weights_.publish(moving_.move, moving_.place, stream_.get()));
  return true;
}

// A copy is the device's own. Who reads the file waits no longer than that for the device, so the
// file is what is slow there.
Error GpuDevice::late_move() const {
  const ExpertMove& move = moving_.move;
  const double longest = options_.longest_wait();
  if (moving_.pinned)
    return Error::make(ErrorCode::internal, "expert {} of layer {} did not come within {:g} s",
                       move.expert, move.layer, longest);
  return Error::make(ErrorCode::io,
                     "expert {} of layer {} was not read from the model's file within {:g} s",
                     move.expert, move.layer, longest);
}

// Until then its pairs are computed elsewhere.
Result<bool> GpuDevice::expert_replaced() {
  const ExpertMove& move = moving_.move;
  Result<bool> there = moved();
  const std::chrono::duration<double> longest(options_.longest_wait());
  if (there && !*there && Clock::now() - moving_.since > longest) there = late_move();
  if (there) {
    if (*there)
      here_[static_cast<std::size_t>(move.layer - layout_.first_layer)]
           [static_cast<std::size_t>(move.expert)] = true;
    return there;
  }
  // A device that cannot copy is lost. Where memory lacks, or the file cannot be read, it is not.
  moving_.begun = there.error();
  if (there.error().code == ErrorCode::internal) check(there.error());
  return there;
}

}  // namespace tessera::gpu
