// GpuDevice: residual rows from one GPU to another, and where tokens are.
//
// Rows of few-row steps that go ahead are handed over by kernels (kernels/handover.h). Else, whose
// result is wanted records an event, and the queue of who wants it waits for that. The host waits
// for nothing here but in await_kept().
#include "base/check.h"
#include "device/gpu/plugin/gpu_device.h"

namespace tessera::gpu {
namespace {

// "cuda" of "cuda:1".
std::string_view vendor_of(std::string_view name) {
  return name.substr(0, name.find(':'));
}

// Whether the driver copies from the peer's memory to the current device's, which is `index`.
bool copies_from(int index, int peer) {
  int can = 0;
  return GPU(DeviceCanAccessPeer)(&can, index, peer) == 0 && can != 0;
}

// Whether kernels of the current device read and write the peer's memory from now on.
bool reaches(int peer) {
  const auto error = GPU(DeviceEnablePeerAccess)(peer, 0);
  static_cast<void>(GPU(GetLastError)());
  return error == GPU(Success) || error == GPU(ErrorPeerAccessAlreadyEnabled);
}

}  // namespace

// By name first: a device of another plug-in has a type of the same name.
bool GpuDevice::takes_from(Device& other) {
  if (vendor_of(other.name()) != vendor_of(name_)) return false;
  auto& from = static_cast<GpuDevice&>(other);
  if (&from == this) return true;
  const int peer = from.options_.index;
  use();
  const bool same = peer == options_.index;
  if (!same && !copies_from(options_.index, peer)) return false;
  reads_peer_ = same || reaches(peer);
  if (!from.layout_.head) return takes_rows_from(from);
  if (reads_peer_) scratch_.chosen = from.scratch_.chosen;
  return reads_peer_;
}

bool GpuDevice::takes_rows_from(GpuDevice& other) {
  if (other.layout_.kept_pieces == 0) return false;
  for (int i = 0; i < other.layout_.kept_pieces; ++i) {
    Result<Event> taken = Event::create();
    if (!taken) return false;
    taken_.push_back(*std::move(taken));
  }
  other.next_ = this;
  other.use();
  // Unchained kernels may be those of a second process (docs/gpu-runs.md, "How values pass"), whose
  // waits no other's may depend on.
  other.hands_to_next_ = hands_over() && options_.chained &&
                         (other.options_.index == options_.index || reaches(options_.index));
  other.step_->hand_rows_to(scratch_.handed);
  use();
  return true;
}

// By a kernel where they are few, since that begins sooner than a copy. Not chained: it reads
// before it waits for the kernels before it.
Status GpuDevice::copy_rows(float* to, const float* from) const {
  Launch launch = step_->launch();
  launch.chained = false;
  return status_of(
      copy_words(launch, reinterpret_cast<const std::int32_t*>(from),
                 reinterpret_cast<std::int32_t*>(to), std::int64_t{shape_.rows} * spec_.n_embd),
      "residual rows");
}

void GpuDevice::keep_hidden(int place) {
  CHECK(place >= unmoved(kMostUnderWay - 1) && place < layout_.kept_pieces);
  hands_rows_ = place < 0 && hands_to_next_ && goes_ahead_;
  if (hands_rows_) {
    shape_.handed = true;
    note({Block::hand_rows});
  }
  flush();
  use();
  if (lost()) {
    hands_rows_ = false;  // nobody should wait for them
    return;
  }
  // The piece that was there before is done when its last shard has enqueued it, which may be
  // before the copy.
  if (place >= 0 && next_ != nullptr)
    check(status_of(GPU(StreamWaitEvent)(stream_.get(), next_->taken_event(place).get(), 0),
                    "residual rows"));
  if (place >= 0 && shape_.rows <= kDecodeRows)
    check(copy_rows(kept(place), scratch_.hidden));
  else if (place >= 0)
    check(status_of(GPU(MemcpyAsync)(kept(place), scratch_.hidden, hidden_bytes(),
                                     GPU(MemcpyDeviceToDevice), stream_.get()),
                    "residual rows"));
  check(status_of(GPU(EventRecord)(kept_event(place).get(), stream_.get()), "residual rows"));
}

void GpuDevice::await_kept(int place) {
  use();
  if (!lost()) check(wait_for(kept_event(place), options_.wait_seconds, "a step"));
}

// What begin() noted does not touch the rows and goes before.
void GpuDevice::take_hidden(const Device& from, int place) {
  const auto& other = static_cast<const GpuDevice&>(from);
  if (place < 0 && other.hands_rows_ && other.inputs_->step() == inputs_->step()) {
    shape_.handed = true;
    note({Block::take_rows});
    return;
  }
  flush();
  use();
  if (lost()) return;
  const char* what = "residual rows of another GPU";
  check(status_of(GPU(StreamWaitEvent)(stream_.get(), other.kept_event(place).get(), 0), what));
  if (shape_.rows <= kDecodeRows && reads_peer_)
    check(copy_rows(scratch_.hidden, other.kept(place)));
  else
    check(status_of(GPU(MemcpyPeerAsync)(scratch_.hidden, options_.index, other.kept(place),
                                         other.options_.index, hidden_bytes(), stream_.get()),
                    what));
  if (place >= 0) check(status_of(GPU(EventRecord)(taken_event(place).get(), stream_.get()), what));
}

void GpuDevice::abandon(const Error& why) {
  n_under_way_ = 0;
  if (!lost()) fault_ = why;
}

}  // namespace tessera::gpu
