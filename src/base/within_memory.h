// within_memory: what a process that serves does for one of many: a client's model, a worker's
// connection, layers that are loaded in another's place. Should memory or threads run out, that is
// what fails, and not the process.
//
//   const Result<Prepared> ready = within_memory([&] { return handler.prepare(hello, ack); });
//
// Errors: those of the function, and `exhausted`.
#pragma once

#include <new>
#include <system_error>

#include "base/result.h"

namespace tessera {

// What is asked for is held against the budget before it is made, so this is for accidents.
template <typename Function>
auto within_memory(Function function, const char* who = "the worker") -> decltype(function()) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return Error::make(ErrorCode::exhausted, "{} is out of memory", who);
  } catch (const std::system_error& error) {
    return Error::make(ErrorCode::exhausted, "{} gets no thread: {}", who, error.what());
  }
}

}  // namespace tessera
