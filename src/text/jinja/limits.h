// What a template may spend, and the meter that counts it.
//
// A chat template comes from a model file, so it is untrusted: every evaluation step, every byte of
// every intermediate string and list, and every level of nesting is charged to a Meter, which
// raises a Failure once a limit is passed. Charges happen before the memory is taken.
//
// Failure is the one exception of this folder. It never leaves it: Template::parse and
// Template::render turn it into an Error.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "base/result.h"

namespace tessera::jinja {

struct RenderLimits {
  std::size_t max_steps = 5'000'000;             // evaluations, iterations, 64-byte units of work
  std::size_t max_output_bytes = 64u << 20;      // of the rendered text
  std::size_t max_allocated_bytes = 256u << 20;  // of all values made, freed ones included
  std::size_t max_depth = 800;                   // nested evaluations (macro recursion included)
};

struct Failure {
  ErrorCode code = ErrorCode::invalid;
  std::string message;
};

template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Failure{ErrorCode::invalid, fmt::format(format, std::forward<Args>(args)...)};
}

class Meter {
 public:
  explicit Meter(const RenderLimits& limits) : limits_(limits) {}

  void step(std::size_t count = 1) {
    if (count > limits_.max_steps - steps_) exceeded("steps", limits_.max_steps);
    steps_ += count;
  }
  // Work linear in `bytes` that makes nothing: searching, comparing.
  void scan(std::size_t bytes) { step(bytes / 64); }
  void allocate(std::size_t bytes) {
    if (bytes > limits_.max_allocated_bytes - allocated_)
      exceeded("bytes of values", limits_.max_allocated_bytes);
    allocated_ += bytes;
    scan(bytes);
  }
  const RenderLimits& limits() const { return limits_; }

  [[noreturn]] static void exceeded(const char* what, std::size_t limit) {
    throw Failure{ErrorCode::exhausted, fmt::format("more than {} {}", limit, what)};
  }

  // Counts one level of nesting for as long as it lives.
  class Level {
   public:
    explicit Level(Meter& meter) : meter_(meter) {
      if (meter_.depth_ >= meter_.limits_.max_depth)
        exceeded("nested evaluations", meter_.limits_.max_depth);
      ++meter_.depth_;
    }
    ~Level() { --meter_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Meter& meter_;
  };

 private:
  RenderLimits limits_;
  std::size_t steps_ = 0;
  std::size_t allocated_ = 0;
  std::size_t depth_ = 0;
};

}  // namespace tessera::jinja
