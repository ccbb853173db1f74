// The runtime's calls: memory that is the process's, and streams that are threads with a queue.
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/gpu/emulator/cuda_runtime.h"
#include "tests/gpu/emulator/kernel_run.h"
#include "tests/gpu/emulator/queue.h"

namespace emulated {

namespace {

cudaError_t fault(bool launches = false) {
  Fault& all = fault_of_all();
  if (launches) {
    all.launched(device);
    stall_of_all().launched(device);
  }
  return all.came_to(device) ? cudaErrorIllegalAddress : cudaSuccess;
}

constexpr int kMultiprocessors = 8;
constexpr std::size_t kMemory = std::size_t{4} << 30;  // of each device

int devices() {
  static const int count = [] {
    const char* text = std::getenv("EMULATED_GPUS");
    return text != nullptr ? std::atoi(text) : 1;
  }();
  return count;
}

struct Memory {
  std::mutex mutex;
  std::map<void*, std::pair<int, std::size_t>> pieces;  // device and bytes
  std::map<void*, std::pair<int, std::size_t>> pinned;  // of the host's, likewise
  std::map<int, std::size_t> used;
};
Memory& memory() {
  static Memory all;
  return all;
}

struct Streams {
  std::mutex mutex;
  std::vector<Stream*> all;
};
Streams& streams() {
  static Streams all;
  return all;
}

// Memory is freed when nothing runs that may use it.
void wait_for_all() {
  const std::lock_guard lock(streams().mutex);
  for (Stream* stream : streams().all) {
    // After a fault one may wait for good.
    const bool fault = fault_of_all().came();
    if (fault && stream->index == device) stream->dropping = true;
    stream->wait(fault);
  }
}

Stream* of(cudaStream_t stream) {
  return reinterpret_cast<Stream*>(stream);
}

void enqueue(Stream* stream, Work work) {
  if (stream == nullptr)
    work();
  else
    stream->enqueue(std::move(work));
}

bool is_captured(const Stream& stream) {
  return stream.capture != nullptr && !stream.capture->ended;
}

// What the queue does next is part of the event's capture, or waits there for what another has
// done.
cudaError_t follow(Stream& stream, Event& event) {
  if (event.capture->ended) return cudaErrorUnknown;
  if (stream.captures) {
    event.recorded_on->joined = std::max(event.recorded_on->joined, event.behind);
  } else if (stream.capture != event.capture) {
    stream.capture = event.capture;
    stream.captured = stream.joined = 0;
    event.capture->others.push_back(&stream);
  }
  return cudaSuccess;
}

}  // namespace

int launch(Stream* stream, Dim3 grid, Dim3 block, std::size_t shared_bytes,
           std::function<void()> kernel) {
  if (const cudaError_t error = fault(true)) return error;
  enqueue(stream,
          [=, kernel = std::move(kernel)] { run_kernel(grid, block, shared_bytes, kernel); });
  return cudaSuccess;
}

}  // namespace emulated

using namespace emulated;

cudaError_t cudaGetDeviceCount(int* count) {
  *count = devices();
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {.name = "emulated",
                 .major = 8,
                 .minor = 0,
                 .multiProcessorCount = kMultiprocessors,
                 .integrated = 0};
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = kMultiprocessors;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = 227 * 1024;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 8;
      break;
    case cudaDevAttrMemoryClockRate:
      *value = 1000000;
      break;
    case cudaDevAttrGlobalMemoryBusWidth:
      *value = 64;
      break;
  }
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int index) {
  if (index < 0 || index >= devices()) return cudaErrorNoDevice;
  device = index;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* index) {
  *index = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  const std::lock_guard lock(memory().mutex);
  *total = kMemory;
  *free = kMemory - memory().used[device];
  // As on a GPU whose memory is the host's, so that tests see whether all of it is given back.
  for (const auto& [data, piece] : memory().pinned)
    if (piece.first == device) *free -= std::min(*free, piece.second);
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorPeerAccessAlreadyEnabled:
      return "cudaErrorPeerAccessAlreadyEnabled";
  }
  return "unknown";
}

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : cudaGetErrorName(error);
}

cudaError_t cudaMallocBytes(void** data, std::size_t bytes) {
  const std::lock_guard lock(memory().mutex);
  if (bytes > kMemory - memory().used[device]) return cudaErrorMemoryAllocation;
  const std::size_t rounded = (bytes + 255) / 256 * 256;
  *data = std::aligned_alloc(256, std::max<std::size_t>(rounded, 256));
  if (*data == nullptr) return cudaErrorMemoryAllocation;
  memory().pieces[*data] = {device, bytes};
  memory().used[device] += bytes;
  return cudaSuccess;
}

cudaError_t cudaFree(void* data) {
  if (data == nullptr) return cudaSuccess;
  wait_for_all();
  const std::lock_guard lock(memory().mutex);
  const auto found = memory().pieces.find(data);
  if (found == memory().pieces.end()) return cudaErrorInvalidValue;
  memory().used[found->second.first] -= found->second.second;
  memory().pieces.erase(found);
  std::free(data);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned) {
  *data = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return *data != nullptr ? cudaHostRegister(*data, bytes, 0) : cudaErrorMemoryAllocation;
}

cudaError_t cudaFreeHost(void* data) {
  const cudaError_t error = cudaHostUnregister(data);
  std::free(data);
  return error;
}

cudaError_t cudaHostRegister(void* data, std::size_t bytes, unsigned) {
  const std::lock_guard lock(memory().mutex);
  const bool added = memory().pinned.insert({data, {device, bytes}}).second;
  return added ? cudaSuccess : cudaErrorInvalidValue;
}

// One that nobody registered, or twice, is a mistake that shall show.
cudaError_t cudaHostUnregister(void* data) {
  wait_for_all();
  const std::lock_guard lock(memory().mutex);
  if (memory().pinned.erase(data) == 0) std::abort();
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemset(void* data, int byte, std::size_t bytes) {
  std::memset(data, byte, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  enqueue(of(stream), [=] { std::memcpy(to, from, bytes); });
  return fault();
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device != peer ? 1 : 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return cudaSuccess;
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes,
                                cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}

cudaError_t cudaMemsetAsync(void* data, int byte, std::size_t bytes, cudaStream_t stream) {
  enqueue(of(stream), [=] { std::memset(data, byte, bytes); });
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  auto* made = new Stream;
  const std::lock_guard lock(streams().mutex);
  streams().all.push_back(made);
  *stream = reinterpret_cast<cudaStream_t>(made);
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  {
    const std::lock_guard lock(streams().mutex);
    std::erase(streams().all, of(stream));
    if (fault_of_all().came()) of(stream)->dropping = true;
  }
  delete of(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream != nullptr) of(stream)->wait();
  return fault();
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return stream == nullptr || of(stream)->idle() ? fault() : cudaErrorNotReady;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const std::lock_guard lock(of(stream)->mutex);
  of(stream)->capture = std::make_shared<Capture>();
  of(stream)->captures = true;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard lock(of(stream)->mutex);
  Capture& capture = *of(stream)->capture;
  of(stream)->captures = false;
  capture.ended = true;
  *graph = capture.graph.release();
  const bool joined =
      std::all_of(capture.others.begin(), capture.others.end(),
                  [](const Stream* other) { return other->joined == other->captured; });
  return joined ? cudaSuccess : cudaErrorUnknown;
}

// EMULATED_NO_GRAPHS=COUNT: so many are not made.
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned) {
  static std::atomic<int> failing = [] {
    const char* text = std::getenv("EMULATED_NO_GRAPHS");
    return text != nullptr ? std::atoi(text) : 0;
  }();
  if (failing.fetch_sub(1) > 0) return cudaErrorMemoryAllocation;
  *exec = new Graph(*graph);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (const cudaError_t error = fault(true)) return error;
  for (const Work& work : exec->work) enqueue(of(stream), work);
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new Event;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return cudaEventCreate(event);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->capture = nullptr;
  if (stream != nullptr && is_captured(*of(stream))) {
    event->capture = of(stream)->capture;
    event->recorded_on = of(stream);
    event->behind = of(stream)->captured;
    return cudaSuccess;
  }
  const std::uint64_t count = ++event->counts->recorded;
  enqueue(of(stream), [counts = event->counts, count] { counts->reached.store(count); });
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Event::Counts& counts = *event->counts;
  if (const cudaError_t error = fault()) return error;
  return counts.reached.load() >= counts.recorded.load() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  event->counts->wait(event->counts->recorded.load(), [] { return fault() != cudaSuccess; });
  return fault();
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (event->capture != nullptr) return follow(*of(stream), *event);
  if (is_captured(*of(stream))) return cudaErrorUnknown;  // of what is outside
  const std::uint64_t wanted = event->counts->recorded.load();
  enqueue(of(stream), [counts = event->counts, wanted, waits = of(stream)] {
    waits->wait_for(*counts, wanted);
  });
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 1.0f;  // time is not emulated
  return cudaSuccess;
}
