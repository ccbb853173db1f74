// within_memory: what a client has a worker do. Should memory or threads run out, this client pays
// for it and not the worker.
//
//   const Result<Prepared> ready = within_memory([&] { return handler.prepare(hello, ack); });
//
// Errors: those of the function, and `exhausted`.
#pragma once

#include <new>
#include <system_error>

#include "base/result.h"

namespace tessera::worker {

// What a client asks for is held against the budget before it is made, so this is for accidents.
template <typename Function>
auto within_memory(Function function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return Error::make(ErrorCode::exhausted, "the worker is out of memory");
  } catch (const std::system_error& error) {
    return Error::make(ErrorCode::exhausted, "the worker gets no thread: {}", error.what());
  }
}

}  // namespace tessera::worker
