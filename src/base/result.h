// Result<T>: a value or an Error. What can fail in use returns one; what cannot is a CHECK.
//
//   Result<File> file = File::open(path);
//   if (!file) return file.error();
//   use(*file);
//
// or, inside a function that itself returns a Result:
//
//   TESSERA_ASSIGN(File file, File::open(path));
//   TESSERA_TRY(file.validate());
//
// An Error's message is one line for a person: what is wrong, where, and what would be right.
#pragma once

#include <fmt/core.h>

#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace tessera {

enum class ErrorCode {
  invalid,      // a flag, request or file that can never work as it is
  not_found,    // a file, key, tensor or id that is not there
  unsupported,  // well formed, but not something this build can do
  exhausted,    // memory, a budget or a queue is full; may work later or with other options
  io,           // the operating system refused
  cancelled,    // the caller went away
  unavailable,  // not ready, draining, or a peer is gone
  internal,     // a bug or a fault of the machine
};

struct [[nodiscard]] Error {
  ErrorCode code = ErrorCode::internal;
  std::string message;

  template <typename... Args>
  static Error make(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
    return Error{code, fmt::format(format, std::forward<Args>(args)...)};
  }

  // Puts "context: " before the message.
  Error in(std::string_view context) && {
    message.insert(0, fmt::format("{}: ", context));
    return std::move(*this);
  }
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& operator*() & { return std::get<0>(state_); }
  const T& operator*() const& { return std::get<0>(state_); }
  T&& operator*() && { return std::get<0>(std::move(state_)); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }

  Error& error() & { return std::get<1>(state_); }
  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }

  Error& error() & { return *error_; }
  const Error& error() const& { return *error_; }
  Error&& error() && { return *std::move(error_); }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace tessera

#define TESSERA_CONCAT_(a, b) a##b
#define TESSERA_CONCAT(a, b) TESSERA_CONCAT_(a, b)

// Returns the error of `expr` from the enclosing function, if there is one.
#define TESSERA_TRY(expr)                                                                        \
  do {                                                                                           \
    if (auto tessera_status = (expr); !tessera_status) return std::move(tessera_status).error(); \
  } while (false)

// Declares or assigns `target` from a Result, or returns its error.
#define TESSERA_ASSIGN(target, expr) \
  TESSERA_ASSIGN_(target, expr, TESSERA_CONCAT(tessera_result_, __LINE__))
#define TESSERA_ASSIGN_(target, expr, name)  \
  auto name = (expr);                        \
  if (!name) return std::move(name).error(); \
  target = *std::move(name)
