#include "device/gpu/plugin/read_speed.h"

#include <algorithm>

#include "device/gpu/plugin/driver.h"

namespace tessera::gpu {
namespace {

constexpr double kLongestRead = 60;  // seconds

Result<double> measure_read(const DeviceBuffer& data, int blocks) {
  constexpr const char* kWhat = "reading";
  TESSERA_ASSIGN(const Stream stream, Stream::create());
  TESSERA_ASSIGN(const Event begin, Event::create(Timed::yes));
  TESSERA_ASSIGN(const Event end, Event::create(Timed::yes));
  double best = 0.0;
  const LoadQueue queue{stream.get(), end, kLongestRead};
  TESSERA_TRY(queue.fill(data.data(), 0, data.bytes(), kWhat));
  for (int run = 0; run < 6; ++run) {
    float milliseconds = 0.0f;
    TESSERA_TRY(status_of(GPU(EventRecord)(begin.get(), stream.get()), kWhat));
    TESSERA_TRY(
        status_of(enqueue_read(data.data(), as_size(data.bytes()), blocks, stream.get()), kWhat));
    TESSERA_TRY(queue.wait(kWhat));
    TESSERA_TRY(status_of(GPU(EventElapsedTime)(&milliseconds, begin.get(), end.get()), kWhat));
    if (milliseconds > 0.0f)
      best = std::max(best, static_cast<double>(data.bytes()) / milliseconds * 1e3);
  }
  return best;
}

Result<double> measured_speed(int index) {
#if defined(TESSERA_HIP)
  const auto attribute = hipDeviceAttributeMultiprocessorCount;
#else
  const auto attribute = cudaDevAttrMultiProcessorCount;
#endif
  std::size_t free = 0, total = 0;
  int multiprocessors = 0;
  TESSERA_TRY(status_of(GPU(SetDevice)(index), "choosing a device"));
  TESSERA_TRY(status_of(GPU(MemGetInfo)(&free, &total), "its memory"));
  TESSERA_TRY(
      status_of(GPU(DeviceGetAttribute)(&multiprocessors, attribute, index), "its processors"));
  const std::size_t bytes = std::min(free / 2, std::size_t{4} << 30) & ~std::size_t{0xfff};
  TESSERA_ASSIGN(const DeviceBuffer data,
                 DeviceBuffer::allocate(static_cast<std::int64_t>(bytes), "a buffer to read"));
  return measure_read(data, multiprocessors * 4);
}

}  // namespace

double read_speed(int index) {
  const Result<double> speed = measured_speed(index);
  return speed ? *speed : 0.0;
}

}  // namespace tessera::gpu
