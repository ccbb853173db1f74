#include "text/jinja/ops.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "text/jinja/chars.h"
#include "text/jinja/methods.h"

namespace tessera::jinja {
namespace {

using Kind = Value::Kind;
using Flavour = List::Flavour;

std::strong_ordering compare_digits(const std::string& a, const std::string& b) {
  const bool a_negative = a.front() == '-';
  const bool b_negative = b.front() == '-';
  if (a_negative != b_negative)
    return a_negative ? std::strong_ordering::less : std::strong_ordering::greater;
  const auto magnitude = a.size() != b.size() ? a.size() <=> b.size() : a.compare(b) <=> 0;
  return a_negative ? 0 <=> magnitude : magnitude;
}

// long double holds every int64 exactly, so integers and reals compare as Python compares them.
long double wide(const Value& number) {
  if (number.is(Kind::real)) return number.real();
  if (number.is(Kind::big_integer)) return std::strtold(number.digits().c_str(), nullptr);
  return static_cast<long double>(number.integer());
}

std::partial_ordering compare_numbers(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return a.integer() <=> b.integer();
  if (a.is(Kind::big_integer) && b.is(Kind::big_integer))
    return compare_digits(a.digits(), b.digits());
  return wide(a) <=> wide(b);
}

// Python compares a list with a list and a tuple with a tuple only.
bool comparable(const List& a, const List& b) {
  return a.flavour == b.flavour && a.is_indexable();
}

bool equal_lists(Meter& meter, const List& a, const List& b) {
  if (!comparable(a, b)) return &a == &b;
  if (a.elements.size() != b.elements.size()) return false;
  for (std::size_t i = 0; i < a.elements.size(); ++i)
    if (!equal(meter, a.elements[i], b.elements[i])) return false;
  return true;
}

bool equal_dicts(Meter& meter, const Dict& a, const Dict& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [key, value] : a.entries()) {
    meter.step();
    const Value* other = b.find(key);
    if (other == nullptr || !equal(meter, value, *other)) return false;
  }
  return true;
}

int key_class(const Value& key) {
  if (key.is_number()) return 1;
  return static_cast<int>(key.kind()) + 2;
}

std::weak_ordering compare_number_keys(const Value& a, const Value& b) {
  const std::partial_ordering order = compare_numbers(a, b);
  if (order == std::partial_ordering::less) return std::weak_ordering::less;
  if (order == std::partial_ordering::greater) return std::weak_ordering::greater;
  if (order == std::partial_ordering::equivalent) return std::weak_ordering::equivalent;
  // One is not a number: that one comes first.
  const bool a_is_nan = a.is(Kind::real) && std::isnan(a.real());
  const bool b_is_nan = b.is(Kind::real) && std::isnan(b.real());
  return b_is_nan <=> a_is_nan;
}

}  // namespace

std::string_view type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
      return "Undefined";
    case Kind::none:
      return "NoneType";
    case Kind::boolean:
      return "bool";
    case Kind::integer:
    case Kind::big_integer:
      return "int";
    case Kind::real:
      return "float";
    case Kind::text:
      return "str";
    case Kind::dict:
      return "dict";
    case Kind::object:
      return value.object()->type_name();
    case Kind::list:
      break;
  }
  constexpr std::string_view kNames[] = {"list",      "tuple",       "_GroupTuple", "range",
                                         "dict_keys", "dict_values", "dict_items",  "generator"};
  return kNames[static_cast<std::size_t>(value.list().flavour)];
}

void use_of_undefined(const Value& value) {
  const auto& why = value.as_undefined().why;
  if (why == nullptr) fail("use of an undefined value");
  fail("{}", *why);
}

bool truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
    case Kind::none:
      return false;
    case Kind::boolean:
      return value.boolean();
    case Kind::integer:
      return value.integer() != 0;
    case Kind::real:
      return value.real() != 0;
    case Kind::text:
      return !value.text().empty();
    case Kind::list:
      return value.list().is_lazy() || !value.list().elements.empty();
    case Kind::dict:
      return value.dict().size() > 0;
    case Kind::big_integer:
    case Kind::object:
      break;
  }
  return true;
}

bool equal(Meter& meter, const Value& a, const Value& b) {
  meter.step();
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0;
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::text:
      if (a.text().size() != b.text().size()) return false;
      meter.scan(a.text().size());
      return a.view() == b.view();
    case Kind::list:
      return equal_lists(meter, a.list(), b.list());
    case Kind::dict:
      return equal_dicts(meter, a.dict(), b.dict());
    case Kind::object:
      return a.object() == b.object();
    default:
      return true;  // undefined, none
  }
}

bool less(Meter& meter, const Value& a, const Value& b) {
  meter.step();
  if (a.is(Kind::undefined)) use_of_undefined(a);
  if (b.is(Kind::undefined)) use_of_undefined(b);
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) < 0;
  if (a.is_text() && b.is_text()) {
    meter.scan(std::min(a.text().size(), b.text().size()));
    return a.view() < b.view();  // the byte order of UTF-8 is the order of code points
  }
  if (a.is(Kind::list) && b.is(Kind::list) && comparable(a.list(), b.list()) &&
      a.list().flavour != Flavour::range) {
    const auto& x = a.list().elements;
    const auto& y = b.list().elements;
    for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i)
      if (!equal(meter, x[i], y[i])) return less(meter, x[i], y[i]);
    return x.size() < y.size();
  }
  fail("'<' not supported between instances of '{}' and '{}'", type_name(a), type_name(b));
}

bool contains(Meter& meter, const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::undefined:
      return false;
    case Kind::text:
      if (!item.is_text())
        fail("'in <string>' requires string as left operand, not {}", type_name(item));
      meter.scan(container.text().size());
      return find(container.view(), item.view()) != std::string_view::npos;
    case Kind::dict:
      if (!hashable(item)) fail("unhashable type: '{}'", type_name(item));
      return container.dict().find(item) != nullptr;
    case Kind::list: {
      const List& list = container.list();
      const auto begin = list.elements.begin() + static_cast<std::ptrdiff_t>(list.read);
      const auto hit = std::find_if(begin, list.elements.end(),
                                    [&](const Value& v) { return equal(meter, v, item); });
      const bool found = hit != list.elements.end();
      // Looking for an item takes from a generator what it looks at.
      if (list.is_lazy())
        list.read = static_cast<std::size_t>(hit - list.elements.begin()) + (found ? 1 : 0);
      return found;
    }
    default:
      fail("argument of type '{}' is not iterable", type_name(container));
  }
}

bool hashable(const Value& value) {
  if (value.is(Kind::dict)) return false;
  if (!value.is(Kind::list)) return true;
  if (value.list().flavour != Flavour::tuple) return false;
  return std::all_of(value.list().elements.begin(), value.list().elements.end(), hashable);
}

std::weak_ordering compare_keys(const Value& a, const Value& b) {
  if (const int a_class = key_class(a), b_class = key_class(b); a_class != b_class)
    return a_class <=> b_class;
  if (a.is_number()) return compare_number_keys(a, b);
  if (a.is_text()) return a.view() <=> b.view();
  if (a.is(Kind::object)) return std::compare_three_way{}(a.object(), b.object());
  if (!a.is(Kind::list)) return std::weak_ordering::equivalent;
  const auto& x = a.list().elements;
  const auto& y = b.list().elements;
  for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i)
    if (const auto order = compare_keys(x[i], y[i]); order != 0) return order;
  return x.size() <=> y.size();
}

double to_real(const Value& number) {
  return static_cast<double>(wide(number));
}

std::size_t length(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
      return 0;
    case Kind::text:
      return count_chars(value.view());
    case Kind::dict:
      return value.dict().size();
    case Kind::list:
      if (!value.list().is_lazy()) return value.list().elements.size();
      [[fallthrough]];
    default:
      fail("object of type '{}' has no len()", type_name(value));
  }
}

bool iterable(const Value& value) {
  return value.is_text() || value.is(Kind::list) || value.is(Kind::dict) ||
         value.is(Kind::undefined);
}

std::vector<Value> iterate(Runtime& runtime, const Value& value) {
  std::vector<Value> out;
  switch (value.kind()) {
    case Kind::undefined:
      return out;
    case Kind::text: {
      const Text& text = value.text();
      runtime.meter.allocate(text.size() * sizeof(Value));
      for (std::size_t at = 0; at < text.size();) {
        const std::size_t size = char_at(text.view(), at).size;
        out.push_back(runtime.text(text.substr(at, size)));
        at += size;
      }
      return out;
    }
    case Kind::dict:
      runtime.meter.allocate(value.dict().size() * sizeof(Value));
      for (const auto& entry : value.dict().entries()) out.push_back(entry.first);
      return out;
    case Kind::list: {
      const List& list = value.list();
      runtime.meter.allocate(list.elements.size() * sizeof(Value));
      out.assign(list.elements.begin() + static_cast<std::ptrdiff_t>(list.read),
                 list.elements.end());
      if (list.is_lazy()) list.read = list.elements.size();
      return out;
    }
    default:
      fail("'{}' object is not iterable", type_name(value));
  }
}

Value call(Runtime& runtime, const Value& callee, const Args& args) {
  runtime.meter.step();
  if (callee.is(Kind::undefined)) use_of_undefined(callee);
  if (!callee.is(Kind::object)) fail("'{}' object is not callable", type_name(callee));
  return callee.object()->call(runtime, args);
}

}  // namespace tessera::jinja
