// GpuDevice: residual rows from one GPU to another.
#include "base/check.h"
#include "device/gpu/plugin/gpu_device.h"

namespace tessera::gpu {
namespace {

// "cuda" of "cuda:1".
std::string_view vendor_of(std::string_view name) {
  return name.substr(0, name.find(':'));
}

}  // namespace

// By name first: a device of another plug-in has a type of the same name.
bool GpuDevice::takes_from(Device& other) {
  if (vendor_of(other.name()) != vendor_of(name_)) return false;
  auto& from = static_cast<GpuDevice&>(other);
  if (from.layout_.kept_pieces == 0 || from.options_.index == options_.index) return false;
  use();
  int can = 0;
  if (GPU(DeviceCanAccessPeer)(&can, options_.index, from.options_.index) != 0 || can == 0)
    return false;
  // Said before is no error; whatever else is wrong shows at the first copy.
  static_cast<void>(GPU(DeviceEnablePeerAccess)(from.options_.index, 0));
  static_cast<void>(GPU(GetLastError)());
  for (int i = 0; i < from.layout_.kept_pieces; ++i) {
    Result<Event> taken = Event::create();
    if (!taken) return false;
    taken_.push_back(*std::move(taken));
  }
  from.next_ = this;
  return true;
}

void GpuDevice::keep_hidden(int place) {
  CHECK(place >= 0 && place < layout_.kept_pieces);
  flush();
  use();
  if (lost()) return;
  // The piece that was there before is done when its last shard has enqueued it, which may be
  // before the copy.
  if (next_ != nullptr)
    check(status_of(GPU(StreamWaitEvent)(stream_.get(),
                                         next_->taken_[static_cast<std::size_t>(place)].get(), 0),
                    "residual rows"));
  check(status_of(GPU(MemcpyAsync)(kept(place), scratch_.hidden, hidden_bytes(),
                                   GPU(MemcpyDeviceToDevice), stream_.get()),
                  "residual rows"));
  if (!lost()) check(wait());
}

void GpuDevice::take_hidden(const Device& from, int place) {
  const auto& other = static_cast<const GpuDevice&>(from);
  // What begin() noted does not touch the rows and may follow them.
  if (program_.size() > 1) flush();
  use();
  if (lost()) return;
  check(status_of(GPU(MemcpyPeerAsync)(scratch_.hidden, options_.index, other.kept(place),
                                       other.options_.index, hidden_bytes(), stream_.get()),
                  "residual rows of another GPU"));
  check(status_of(GPU(EventRecord)(taken_[static_cast<std::size_t>(place)].get(), stream_.get()),
                  "residual rows of another GPU"));
}

}  // namespace tessera::gpu
