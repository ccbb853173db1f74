#include "device/gpu/plugin/driver.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

namespace tessera::gpu {
namespace {

#if defined(TESSERA_HIP)
constexpr auto kOutOfMemory = hipErrorOutOfMemory;
#else
constexpr auto kOutOfMemory = cudaErrorMemoryAllocation;
#endif

std::atomic<int> allocations_left{-1};
thread_local bool left_behind = false;
std::atomic<std::uint64_t> left_devices{0};  // by number

std::uint64_t device_bit() {
  int index = 0;
  if (GPU(GetDevice)(&index) != GPU(Success) || index < 0 || index > 63) return 0;
  return std::uint64_t{1} << index;
}

// Whether what is destroyed on this thread is left to the driver.
bool stays() {
  return left_behind || device_left();
}

Result<bool> passes(const Event& event, double seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kSpin = std::chrono::milliseconds(20);
  const Clock::time_point begin = Clock::now();
  for (int round = 0;; ++round) {
    TESSERA_ASSIGN(const bool done, passed(event));
    if (done) return true;
    if (round % 64 != 63) continue;
    const Clock::duration waited = Clock::now() - begin;
    if (waited > std::chrono::duration<double>(seconds)) return false;
    if (waited > kSpin) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

Error late_error(const char* late, double seconds) {
  return Error::make(ErrorCode::internal, "did not finish {} within {:g} s", late, seconds);
}

// Whether a test wants this allocation to fail.
bool must_fail() {
  return allocations_left.load(std::memory_order_relaxed) >= 0 &&
         allocations_left.fetch_sub(1) == 0;
}

Error allocation_error(std::int64_t bytes, const char* where, const char* what, int error) {
  // The error is not sticky, but stays the last one until it is read.
  static_cast<void>(GPU(GetLastError)());
  return Error::make(ErrorCode::exhausted, "cannot allocate {:.1f} MB {} for {}: {}",
                     static_cast<double>(bytes) / 1e6, where, what,
                     GPU(GetErrorString)(static_cast<GPU(Error_t)>(error)));
}

}  // namespace

LeftBehind::LeftBehind() {
  left_behind = true;
}
LeftBehind::~LeftBehind() {
  left_behind = false;
}

void fail_allocation(int n) {
  allocations_left = n;
}

Status status_of(int error, const char* what) {
  if (error == 0) return {};
  const auto code = static_cast<GPU(Error_t)>(error);
  return Error::make(ErrorCode::internal, "{}: {} ({})", what, GPU(GetErrorString)(code),
                     GPU(GetErrorName)(code));
}

Result<DeviceBuffer> DeviceBuffer::allocate(std::int64_t bytes, const char* what) {
  DeviceBuffer buffer;
  if (bytes == 0) return buffer;
  void* data = nullptr;
  const int error = must_fail() ? static_cast<int>(kOutOfMemory)
                                : GPU(Malloc)(&data, static_cast<std::size_t>(bytes));
  if (error != 0) return allocation_error(bytes, "on the device", what, error);
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.bytes_ = bytes;
  return buffer;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr && !stays()) static_cast<void>(GPU(Free)(data_));
}

Result<PinnedBuffer> PinnedBuffer::allocate(std::int64_t bytes, const char* what, Seen seen) {
  PinnedBuffer buffer;
  if (bytes == 0) return buffer;
  void* data = nullptr;
  const auto size = static_cast<std::size_t>(bytes);
#if defined(TESSERA_HIP)
  const unsigned flags = seen == Seen::at_once ? hipHostMallocCoherent : hipHostMallocDefault;
  const int error = must_fail() ? hipErrorOutOfMemory : hipHostMalloc(&data, size, flags);
#else
  static_cast<void>(seen);  // always
  const bool fails = must_fail();
  if (!fails && buffer.register_pages(size)) return buffer;
  const int error = fails ? cudaErrorMemoryAllocation : cudaHostAlloc(&data, size, 0);
#endif
  if (error != 0) return allocation_error(bytes, "of pinned host memory", what, error);
  buffer.data_ = static_cast<std::byte*>(data);
  return buffer;
}

// Large buffers are huge pages that the driver is told of: its own it takes one by one. 19 GB took
// 14 s, and 1 s so. False: the driver will not have them.
bool PinnedBuffer::register_pages(std::size_t bytes) {
#if defined(TESSERA_HIP)
  static_cast<void>(bytes);
  return false;
#else
  constexpr std::size_t kLeast = std::size_t{2} << 20;  // a huge page
  if (bytes < kLeast) return false;
  Result<AlignedBuffer> pages = AlignedBuffer::allocate(bytes);
  if (!pages) return false;
  if (cudaHostRegister(pages->data(), bytes, cudaHostRegisterDefault) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  pages_ = std::make_unique<AlignedBuffer>(*std::move(pages));
  data_ = pages_->data();
  return true;
#endif
}

PinnedBuffer::~PinnedBuffer() {
  if (data_ == nullptr) return;
  if (stays()) {
    static_cast<void>(pages_.release());  // the device may use them still
    return;
  }
#if defined(TESSERA_HIP)
  static_cast<void>(hipHostFree(data_));
#else
  if (pages_ == nullptr)
    static_cast<void>(cudaFreeHost(data_));
  else if (cudaHostUnregister(data_) != cudaSuccess)
    static_cast<void>(pages_.release());
#endif
}

Result<Stream> Stream::create() {
  Stream stream;
  TESSERA_TRY(status_of(GPU(StreamCreateWithFlags)(&stream.stream_, GPU(StreamNonBlocking)),
                        "cannot make a queue"));
  return stream;
}

Stream::~Stream() {
  if (stream_ != nullptr && !stays()) static_cast<void>(GPU(StreamDestroy)(stream_));
}

Result<Event> Event::create(Timed timed) {
  Event event;
  const unsigned flags = timed == Timed::yes ? GPU(EventDefault) : GPU(EventDisableTiming);
  TESSERA_TRY(status_of(GPU(EventCreateWithFlags)(&event.event_, flags), "cannot make an event"));
  return event;
}

Event::~Event() {
  if (event_ != nullptr && !stays()) static_cast<void>(GPU(EventDestroy)(event_));
}

Status wait_for(GpuStream stream, const Event& event, double seconds, const char* late) {
  TESSERA_TRY(status_of(GPU(EventRecord)(event.get(), stream), "waiting"));
  return wait_for(event, seconds, late);
}

Result<bool> passed(const Event& event) {
  const int state = GPU(EventQuery)(event.get());
  if (state == static_cast<int>(GPU(ErrorNotReady))) return false;
  TESSERA_TRY(status_of(state, "computing"));
  return true;
}

Status wait_for(const Event& event, double seconds, const char* late) {
  TESSERA_ASSIGN(const bool done, passes(event, seconds));
  return done ? Status() : late_error(late, seconds);
}

Status wait_or_leave(GpuStream stream, const Event& event, double seconds, const char* late) {
  TESSERA_TRY(status_of(GPU(EventRecord)(event.get(), stream), "waiting"));
  return wait_or_leave(event, seconds, late);
}

Status wait_or_leave(const Event& event, double seconds, const char* late) {
  TESSERA_ASSIGN(const bool done, passes(event, seconds));
  if (done) return {};
  left_devices |= device_bit();
  return late_error(late, seconds);
}

bool device_left() {
  const std::uint64_t left = left_devices;
  return left != 0 && (left & device_bit()) != 0;
}

Status check_not_left(const std::string& name) {
  if (!device_left()) return {};
  return Error::make(
      ErrorCode::unavailable,
      "{}: what was under way on it did not end before; only a new process can use it", name);
}

Status LoadQueue::fill(void* to, int byte, std::int64_t bytes, const char* what) const {
  if (bytes == 0) return {};
  return status_of(GPU(MemsetAsync)(to, byte, as_size(bytes), stream), what);
}

Status LoadQueue::send(void* to, const void* from, std::size_t bytes, const char* what) const {
  if (bytes == 0) return {};
  TESSERA_ASSIGN(const PinnedBuffer pinned,
                 PinnedBuffer::allocate(static_cast<std::int64_t>(bytes), what));
  std::memcpy(pinned.as(), from, bytes);
  TESSERA_TRY(
      status_of(GPU(MemcpyAsync)(to, pinned.as(), bytes, GPU(MemcpyHostToDevice), stream), what));
  return wait(what);
}

Status Graph::begin(GpuStream stream) {
  return status_of(GPU(StreamBeginCapture)(stream, GPU(StreamCaptureModeThreadLocal)),
                   "cannot begin to capture a step");
}

Result<Graph> Graph::end(GpuStream stream) {
  GPU(Graph_t) captured = nullptr;
  TESSERA_TRY(
      status_of(GPU(StreamEndCapture)(stream, &captured), "cannot end the capture of a step"));
  Graph graph;
#if defined(TESSERA_HIP)
  const int error = hipGraphInstantiate(&graph.graph_, captured, nullptr, nullptr, 0);
#else
  const int error = cudaGraphInstantiate(&graph.graph_, captured, 0);
#endif
  static_cast<void>(GPU(GraphDestroy)(captured));
  TESSERA_TRY(status_of(error, "cannot make a graph of a step"));
  return graph;
}

Graph::~Graph() {
  if (graph_ != nullptr && !stays()) static_cast<void>(GPU(GraphExecDestroy)(graph_));
}

Status Graph::launch(GpuStream stream) const {
  return status_of(GPU(GraphLaunch)(graph_, stream), "cannot launch a step's graph");
}

}  // namespace tessera::gpu
