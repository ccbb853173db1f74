// FaultGuard: a file that shrinks or fails under its mapping must not kill the process.
//
// Touching a page of a mapping that the file no longer has raises SIGBUS. While a guard exists for
// a range, such a fault puts a page of zeros there, marks the guard and lets the program go on; the
// owner asks faulted() when it has finished reading. A SIGBUS anywhere else goes to the handler
// that was installed before, or ends the process as usual.
//
// The handler is installed once, with the first guard, and stays. It takes no lock and no memory:
// ranges are kept in a fixed table. All functions are thread safe.
#pragma once

#include <cstddef>
#include <utility>

#include "base/result.h"

namespace tessera::gguf {

class FaultGuard {
 public:
  // The range is page aligned and stays mapped until the guard is destroyed.
  static Result<FaultGuard> create(const void* begin, std::size_t bytes);

  FaultGuard(FaultGuard&& other) noexcept : slot_(std::exchange(other.slot_, -1)) {}
  FaultGuard& operator=(FaultGuard&& other) noexcept {
    std::swap(slot_, other.slot_);
    return *this;
  }
  ~FaultGuard();

  bool faulted() const;

 private:
  explicit FaultGuard(int slot) : slot_(slot) {}
  int slot_;
};

}  // namespace tessera::gguf
