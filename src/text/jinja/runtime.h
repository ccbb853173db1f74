// Runtime: what one render owns and shares with every filter, test, method and global: the meter,
// the objects made on the way, the injected clock. Also the constructors of metered values.
//
// One thread at a time; a Template makes one per render.
#pragma once

#include <chrono>
#include <functional>
#include <initializer_list>
#include <memory>

#include "text/jinja/limits.h"
#include "text/jinja/value.h"

namespace tessera::jinja {

class Runtime {
 public:
  Runtime(const RenderLimits& limits, std::chrono::sys_seconds now) : meter(limits), now(now) {}

  template <typename T, typename... CtorArgs>
  T* make(CtorArgs&&... args) {
    meter.allocate(sizeof(T) + 32);
    auto object = std::make_unique<T>(std::forward<CtorArgs>(args)...);
    T* raw = object.get();
    objects_.push_back(std::move(object));
    return raw;
  }

  // Values whose size is charged. `trusted` is the provenance of rewritten text.
  Value text(Text text);
  Value text(std::string bytes, bool trusted) {
    return this->text(Text(std::move(bytes), trusted));
  }
  Value list(std::vector<Value> elements, List::Flavour flavour = List::Flavour::list);
  Value dict(std::vector<Dict::Entry> entries);
  Value tuple(std::initializer_list<Value> elements) {
    return list(std::vector<Value>(elements), List::Flavour::tuple);
  }
  Value generator(std::vector<Value> elements) {
    return list(std::move(elements), List::Flavour::generator);
  }

  Meter meter;
  const std::chrono::sys_seconds now;
  int line = 0;  // of the template, where evaluation is

 private:
  std::vector<std::unique_ptr<Object>> objects_;
};

// Python's rules for arguments: names in order, the first `required` of them mandatory.
class Bound {
 public:
  Bound(std::string_view function, const Args& args, std::initializer_list<const char*> names,
        std::size_t required = 0);
  // The argument, or null if it was not given.
  const Value* operator[](std::size_t index) const { return values_[index]; }
  bool flag(std::size_t index, bool otherwise) const;
  std::int64_t integer(std::size_t index, std::int64_t otherwise) const;
  // The text argument; null if not given or none.
  const Text* text(std::size_t index) const;

 private:
  const char* name(std::size_t index) const { return names_[index]; }

  std::string_view function_;
  std::vector<const char*> names_;
  std::vector<const Value*> values_;
};

}  // namespace tessera::jinja
