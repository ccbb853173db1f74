// StepCounter: how far a thread has come. It counts up, others wait for a number.
//
//   done.advance();                 // one more piece
//   done.wait_for(8, spin);         // elsewhere: until eight are done
//
// A wait spins for a while and then sleeps until the counter moves, so that a hand-over costs no
// system call while both sides run and an idle one costs no processor time. What was written
// before advance() is visible after the wait. Numbers may wrap.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tessera {

class StepCounter {
 public:
  void advance();
  // Until advance() was called `count` times in all.
  void wait_for(std::uint32_t count, std::chrono::microseconds spin);
  bool reached(std::uint32_t count) const;

 private:
  alignas(64) std::atomic<std::uint32_t> count_{0};
  alignas(64) std::atomic<int> parked_{0};
};

}  // namespace tessera
