// Sleeping on a word that two processes share, and waking who sleeps on it.
//
//   word.store(1); if (nothing_to_do()) sleep_on(word, after(50ms));     // one end
//   do_something(); wake(word);                                          // the other
//
// The sleeper says so by a 1 and looks once more before it sleeps; who wakes it takes that back. So
// either the second look sees what was done, or the waker sees the 1. It may wake for nothing.
#pragma once

#include <atomic>
#include <cstdint>

#include "worker/transport.h"

namespace tessera::worker {

using SleepWord = std::atomic<std::uint32_t>;

// Until the word is no longer 1, or the deadline.
void sleep_on(SleepWord& word, Deadline deadline);
// No system call where nobody sleeps.
void wake(SleepWord& word);

}  // namespace tessera::worker
