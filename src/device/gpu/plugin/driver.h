// The driver, as the plug-in's host code uses it: errors as Status, memory and queues that free
// themselves. GPU(name) is cudaName or hipName; what the two spell differently has a function here.
//
//   TESSERA_ASSIGN(DeviceBuffer arena, DeviceBuffer::allocate(bytes, "weights"));
//   TESSERA_TRY(status_of(GPU(MemsetAsync)(arena.data(), 0, bytes, stream.get()), "clearing"));
//
// The calling thread's current device is the one that everything here belongs to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/buffer.h"
#include "base/result.h"
#include "device/gpu/kernels/portable.h"

#define GPU(name) TESSERA_GPU_API(name)

namespace tessera::gpu {

// `what` names what was tried: "cannot allocate 3.0 GB for weights: out of memory".
Status status_of(int error, const char* what);

// What is counted in bytes or rows, as the driver and containers take it.
inline std::size_t as_size(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

// For tests: the n-th allocation from now on fails, of whatever thread; negative: none.
void fail_allocation(int n);

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // ErrorCode::exhausted where the device lacks the memory. Not cleared.
  static Result<DeviceBuffer> allocate(std::int64_t bytes, const char* what);
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceBuffer();

  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

// Host memory that the device copies from and to without a detour. Kernels see what the host writes
// while they run only where that was asked for.
enum class Seen : std::uint8_t { between_kernels, at_once };
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  static Result<PinnedBuffer> allocate(std::int64_t bytes, const char* what,
                                       Seen seen = Seen::between_kernels);
  PinnedBuffer(PinnedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), pages_(std::move(other.pages_)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(pages_, other.pages_);
    return *this;
  }
  ~PinnedBuffer();

  template <typename T = std::byte>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  bool register_pages(std::size_t bytes);

  std::byte* data_ = nullptr;
  std::unique_ptr<AlignedBuffer> pages_;  // where they are not the driver's own
};

class Stream {
 public:
  Stream() = default;
  static Result<Stream> create();
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~Stream();
  GpuStream get() const { return stream_; }

 private:
  GpuStream stream_ = nullptr;
};

#if defined(TESSERA_HIP)
using EventHandle = hipEvent_t;
using GraphHandle = hipGraphExec_t;
#else
using EventHandle = cudaEvent_t;
using GraphHandle = cudaGraphExec_t;
#endif

enum class Timed : bool { no, yes };
class Event {
 public:
  Event() = default;
  static Result<Event> create(Timed timed = Timed::no);
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event();
  EventHandle get() const { return event_; }

 private:
  EventHandle event_ = nullptr;
};

// Until everything that was on the queue when the event was recorded is done, or that is on it now;
// at most `seconds`. `late` says what was not.
Status wait_for(const Event& event, double seconds, const char* late);
Status wait_for(GpuStream stream, const Event& event, double seconds, const char* late);
// The same where nobody is there to lose the device, as in a load or a teardown: where that is late
// nothing of the device is freed any more, since what hangs there may use it still.
Status wait_or_leave(const Event& event, double seconds, const char* late);
Status wait_or_leave(GpuStream stream, const Event& event, double seconds, const char* late);
// Whether that came about on the current device. What is loaded there would never be freed.
bool device_left();
Status check_not_left(const std::string& name);
// Whether everything before the event is done.
Result<bool> passed(const Event& event);

// What a load puts on a queue, which it waits for no longer than `seconds`. `what` names it.
struct LoadQueue {
  GpuStream stream;
  const Event& event;
  double seconds = 0;

  Status fill(void* to, int byte, std::int64_t bytes, const char* what) const;
  // By pinned memory; it is there on return.
  Status send(void* to, const void* from, std::size_t bytes, const char* what) const;
  Status wait(const char* what) const { return wait_or_leave(stream, event, seconds, what); }
};

// What kernels may count on.
struct GpuTraits {
  int multiprocessors = 0;
  bool chained = false;  // programmatic dependent launch
  bool gemm = false;     // has_gemm() of kernels/kernels.h
};

// A captured run of a stream's work, to be launched again and again.
class Graph {
 public:
  Graph() = default;
  static Status begin(GpuStream stream);
  static Result<Graph> end(GpuStream stream);
  Graph(Graph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(graph_, other.graph_);
    return *this;
  }
  ~Graph();
  Status launch(GpuStream stream) const;

 private:
  GraphHandle graph_ = nullptr;
};

// While one lives, what is destroyed on its thread is left to the driver: to free it would wait for
// a queue that may never end.
class LeftBehind {
 public:
  LeftBehind();
  ~LeftBehind();
  LeftBehind(const LeftBehind&) = delete;
  LeftBehind& operator=(const LeftBehind&) = delete;
};

}  // namespace tessera::gpu
