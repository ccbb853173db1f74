// A signal to a process that a test has looked for.
#pragma once

#include <gtest/gtest.h>

#include <csignal>

namespace tessera::testing {

// To none it would reach this process and all that it runs with.
inline void send_signal(int pid, int number) {
  ASSERT_GT(pid, 0) << "no such process";
  ::kill(pid, number);
}

}  // namespace tessera::testing
