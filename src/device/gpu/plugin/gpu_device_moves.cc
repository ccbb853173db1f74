// GpuDevice: experts that come and go while steps run. What a step sees of a layer's experts is in
// tables that its kernels read, and the tables change on the step's queue: a step that is enqueued
// ahead of a change sees what was before, one behind it what is then. Copies run on another queue,
// or by a thread where the expert is not in pinned memory.
#include <system_error>

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
  const std::span<const std::uint8_t> pinned = streams_.experts(layer);
  moving_.pinned = !pinned.empty() && pinned[static_cast<std::size_t>(move.expert)] != 0;
  if (move.evicted >= 0)
    here_[static_cast<std::size_t>(layer)][static_cast<std::size_t>(move.evicted)] = false;
  TESSERA_ASSIGN(moving_.place, weights_.vacate(move, stream_.get()));
  if (moving_.pinned && streams_.takes_place(layer, move))
    TESSERA_TRY(weights_.unlink(move.layer, move.expert, stream_.get()));
  TESSERA_TRY(side_.join_all(stream_.get()));
  TESSERA_TRY(status_of(GPU(EventRecord)(vacated_.get(), stream_.get()), "moving an expert"));
  moving_.since = Clock::now();
  return moving_.pinned ? streams_.begin_exchange(layer, move, moving_.place, vacated_)
                        : begin_reading();
}

// By a thread: it packs the expert's weights, which takes milliseconds.
Status GpuDevice::begin_reading() try {
  moving_.read = std::async(std::launch::async, [this]() -> Status {
    use();
    const LoadOptions options = load_options();
    TESSERA_TRY(wait_for(vacated_, options.wait_seconds, "moving an expert"));
    return weights_.read_expert(*model_, options, moving_.move, moving_.place);
  });
  return {};
} catch (const std::system_error& error) {
  return Error::make(ErrorCode::exhausted, "cannot start a thread for an expert that moves: {}",
                     error.what());
}

Result<bool> GpuDevice::moved() {
  if (moving_.pinned) return streams_.exchanged();
  if (moving_.read.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return false;
  TESSERA_TRY(moving_.read.get());
  return true;
}

// Until then its pairs are computed elsewhere.
Result<bool> GpuDevice::expert_replaced() {
  TESSERA_TRY(moving_.begun);
  use();
  TESSERA_TRY(fault());
  TESSERA_ASSIGN(const bool there, moved());
  const ExpertMove& move = moving_.move;
  if (!there) {
    const double longest = load_options().wait_seconds;
    if (Clock::now() - moving_.since < std::chrono::duration<double>(longest)) return false;
    return Error::make(ErrorCode::internal, "{}: expert {} of layer {} did not come within {:g} s",
                       name_, move.expert, move.layer, longest);
  }
  TESSERA_TRY(weights_.publish(move, moving_.place, moving_.pinned ? streams_.left_at() : nullptr,
                               stream_.get()));
  here_[static_cast<std::size_t>(move.layer - layout_.first_layer)]
       [static_cast<std::size_t>(move.expert)] = true;
  return true;
}

}  // namespace tessera::gpu
