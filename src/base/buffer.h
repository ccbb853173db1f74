// AlignedBuffer: owned, zeroed, 64-byte aligned memory, on huge pages where it is large.
//
// Allocation can fail (a plan may be wrong about a machine), so it is a Result. The pages of a
// large buffer are not touched before their first write: whoever fills a buffer decides where it
// lives.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "base/result.h"

namespace tessera {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  static Result<AlignedBuffer> allocate(std::size_t bytes);

  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        mapped_(std::exchange(other.mapped_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(mapped_, other.mapped_);
    return *this;
  }
  ~AlignedBuffer();

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // The buffer, or its part from `offset` on, as an array of T.
  template <typename T>
  T* as(std::size_t offset = 0) {
    return reinterpret_cast<T*>(data_ + offset);
  }
  template <typename T>
  const T* as(std::size_t offset = 0) const {
    return reinterpret_cast<const T*>(data_ + offset);
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;    // bytes asked for
  std::size_t mapped_ = 0;  // bytes of the mapping, 0 for a heap allocation
};

}  // namespace tessera
