// Value: what a template computes with. The types and their behaviour are Python's.
//
// Text, lists and dicts are immutable and shared, so a copy of a Value is cheap; the sandbox that
// chat templates are written for forbids their mutation anyway. Everything that has state or can be
// called (namespaces, macros, loops, bound methods) is an Object, owned by the render that made it
// (runtime.h), so no cycle of owners can arise.
//
// Functions that compare, convert or print live in ops.h, print.h and json.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/text.h"

namespace tessera::jinja {

class Dict;
class Object;
struct List;

struct Undefined {
  std::shared_ptr<const std::string> why;  // the message of the error that its use raises
};
struct None {};
// An integer outside int64, as its decimal digits with an optional sign. It can be printed and
// compared; arithmetic on it is an error.
struct BigInt {
  std::shared_ptr<const std::string> digits;
};

class Value {
 public:
  enum class Kind {
    undefined,
    none,
    boolean,
    integer,
    big_integer,
    real,
    text,
    list,
    dict,
    object
  };

  Value() = default;
  Value(Undefined v) : state_(std::move(v)) {}
  Value(None v) : state_(v) {}
  explicit Value(bool v) : state_(v) {}
  explicit Value(std::int64_t v) : state_(v) {}
  explicit Value(double v) : state_(v) {}
  Value(BigInt v) : state_(std::move(v)) {}
  Value(Text v) : state_(std::make_shared<const Text>(std::move(v))) {}
  Value(std::shared_ptr<const Text> v) : state_(std::move(v)) {}
  Value(std::shared_ptr<const List> v) : state_(std::move(v)) {}
  Value(std::shared_ptr<const Dict> v) : state_(std::move(v)) {}
  explicit Value(Object* v) : state_(v) {}

  static Value undefined(std::string why) {
    return Undefined{std::make_shared<const std::string>(std::move(why))};
  }
  // Text that the template or this renderer wrote.
  static Value literal(std::string_view bytes) { return Text(std::string(bytes), true); }
  static Value count(std::size_t v) { return Value(static_cast<std::int64_t>(v)); }

  Kind kind() const { return static_cast<Kind>(state_.index()); }
  bool is(Kind k) const { return kind() == k; }
  bool is_text() const { return is(Kind::text); }
  // Python's bool is an int.
  bool is_integral() const { return is(Kind::integer) || is(Kind::boolean); }
  bool is_number() const { return is_integral() || is(Kind::real) || is(Kind::big_integer); }

  // Each of these needs the kind that it names.
  const Undefined& as_undefined() const { return std::get<Undefined>(state_); }
  bool boolean() const { return std::get<bool>(state_); }
  double real() const { return std::get<double>(state_); }
  const std::string& digits() const { return *std::get<BigInt>(state_).digits; }
  const Text& text() const { return *std::get<std::shared_ptr<const Text>>(state_); }
  std::string_view view() const { return text().view(); }
  const List& list() const { return *std::get<std::shared_ptr<const List>>(state_); }
  const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(state_); }
  Object* object() const { return std::get<Object*>(state_); }
  // Of an integer or a boolean.
  std::int64_t integer() const {
    return is(Kind::boolean) ? std::int64_t{boolean()} : std::get<std::int64_t>(state_);
  }

 private:
  std::variant<Undefined, None, bool, std::int64_t, BigInt, double, std::shared_ptr<const Text>,
               std::shared_ptr<const List>, std::shared_ptr<const Dict>, Object*>
      state_;
};

// Every sequence of values. The flavour is the Python type that it stands for: it decides how the
// sequence prints and what it can do. A generator forgets what was read from it.
struct List {
  // A group is what groupby makes: a tuple with the names `grouper` and `list`.
  enum class Flavour { list, tuple, group, range, keys, values, items, generator };

  std::vector<Value> elements;
  Flavour flavour = Flavour::list;
  std::size_t depth = 1;         // nesting of containers, this one included
  std::string range_text;        // of a range: how it prints
  mutable std::size_t read = 0;  // of a generator: the elements already taken

  bool is_lazy() const { return flavour == Flavour::generator; }
  bool is_view() const { return flavour >= Flavour::keys && flavour <= Flavour::items; }
  // Lists, tuples, groups and ranges: what Python can index.
  bool is_indexable() const { return flavour <= Flavour::range; }
};

// A mapping in insertion order. Keys are text, numbers, booleans, none or tuples of these; 1, 1.0
// and true are one key.
class Dict {
 public:
  using Entry = std::pair<Value, Value>;
  Dict() = default;
  // Later entries replace the value of earlier equal keys. Every key must be hashable (ops.h).
  explicit Dict(std::vector<Entry> entries);

  const std::vector<Entry>& entries() const { return entries_; }
  std::size_t size() const { return entries_.size(); }
  std::size_t depth() const { return depth_; }
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const { return find(Value::literal(key)); }

 private:
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> order_;  // entries sorted by key
  std::size_t depth_ = 1;
};

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

class Runtime;

// Something with state or behaviour. Owned by the Runtime that made it.
class Object {
 public:
  virtual ~Object() = default;
  virtual std::string_view type_name() const = 0;
  // Undefined if there is no such attribute.
  virtual Value attribute(Runtime& runtime, std::string_view name);
  virtual bool callable() const { return false; }
  virtual Value call(Runtime& runtime, const Args& args);
};

// Containers may not nest deeper than this: what walks them recurses.
inline constexpr std::size_t kMaxContainerDepth = 200;

// 0 for what is no container.
std::size_t depth_of(const Value& value);

}  // namespace tessera::jinja
