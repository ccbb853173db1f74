// The tests: `value is name`.
#include "text/jinja/chars.h"
#include "text/jinja/filters.h"
#include "text/jinja/methods.h"
#include "text/jinja/ops.h"
#include "text/jinja/print.h"

namespace tessera::jinja {
namespace {

using Kind = Value::Kind;

template <Kind kind>
bool is_kind(Runtime&, const Value& input, const Args& args) {
  const Bound none("test", args, {});
  return input.is(kind);
}

bool is_defined(Runtime&, const Value& input, const Args& args) {
  const Bound none("defined", args, {});
  return !input.is(Kind::undefined);
}

bool is_integer(Runtime&, const Value& input, const Args& args) {
  const Bound none("integer", args, {});
  return input.is(Kind::integer) || input.is(Kind::big_integer);
}

bool is_number(Runtime&, const Value& input, const Args& args) {
  const Bound none("number", args, {});
  return input.is_number();
}

template <bool wanted>
bool is_constant(Runtime&, const Value& input, const Args& args) {
  const Bound none(wanted ? "true" : "false", args, {});
  return input.is(Kind::boolean) && input.boolean() == wanted;
}

// Whatever has a length and can be indexed; in Python an undefined value claims both.
bool is_sequence(Runtime&, const Value& input, const Args& args) {
  const Bound none("sequence", args, {});
  if (input.is(Kind::list)) return input.list().is_indexable();
  return input.is_text() || input.is(Kind::dict) || input.is(Kind::undefined);
}

bool is_iterable(Runtime&, const Value& input, const Args& args) {
  const Bound none("iterable", args, {});
  return iterable(input);
}

bool is_callable(Runtime&, const Value& input, const Args& args) {
  const Bound none("callable", args, {});
  return input.is(Kind::undefined) || (input.is(Kind::object) && input.object()->callable());
}

bool is_escaped(Runtime&, const Value& input, const Args& args) {
  const Bound none("escaped", args, {});
  return input.is_text() && input.text().markup;
}

template <bool wants_upper>
bool has_case(Runtime& runtime, const Value& input, const Args& args) {
  const Bound none(wants_upper ? "upper" : "lower", args, {});
  const Value text(to_text(runtime, input));
  return truthy(find_text_method(wants_upper ? "isupper" : "islower")(runtime, text, Args()));
}

template <int remainder>
bool has_parity(Runtime& runtime, const Value& input, const Args& args) {
  const Bound none(remainder == 0 ? "even" : "odd", args, {});
  const Value rest = modulo(runtime, input, Value(std::int64_t{2}));
  return equal(runtime.meter, rest, Value(std::int64_t{remainder}));
}

bool is_divisible(Runtime& runtime, const Value& input, const Args& args) {
  const Bound bound("divisibleby", args, {"num"}, 1);
  return equal(runtime.meter, modulo(runtime, input, *bound[0]), Value(std::int64_t{0}));
}

bool is_in(Runtime& runtime, const Value& input, const Args& args) {
  const Bound bound("in", args, {"seq"}, 1);
  return contains(runtime.meter, *bound[0], input);
}

// Identity. Plain values that are equal and of one type count as one object.
bool is_same(Runtime& runtime, const Value& input, const Args& args) {
  const Bound bound("sameas", args, {"other"}, 1);
  const Value& other = *bound[0];
  if (input.kind() != other.kind()) return false;
  if (input.is(Kind::list)) return &input.list() == &other.list();
  if (input.is(Kind::dict)) return &input.dict() == &other.dict();
  return equal(runtime.meter, input, other);
}

bool eq(Runtime& runtime, const Value& input, const Args& args) {
  const Bound bound("eq", args, {"other"}, 1);
  return equal(runtime.meter, input, *bound[0]);
}
bool ne(Runtime& runtime, const Value& input, const Args& args) {
  return !eq(runtime, input, args);
}
bool lt(Runtime& runtime, const Value& input, const Args& args) {
  const Bound bound("lt", args, {"other"}, 1);
  return less(runtime.meter, input, *bound[0]);
}
bool gt(Runtime& runtime, const Value& input, const Args& args) {
  const Bound bound("gt", args, {"other"}, 1);
  return less(runtime.meter, *bound[0], input);
}
bool le(Runtime& runtime, const Value& input, const Args& args) {
  return lt(runtime, input, args) || eq(runtime, input, args);
}
bool ge(Runtime& runtime, const Value& input, const Args& args) {
  return gt(runtime, input, args) || eq(runtime, input, args);
}

bool names_filter(Runtime&, const Value& input, const Args& args) {
  const Bound none("filter", args, {});
  return input.is_text() && find_filter(input.view()) != nullptr;
}
bool names_test(Runtime&, const Value& input, const Args& args) {
  const Bound none("test", args, {});
  return input.is_text() && find_test(input.view()) != nullptr;
}

constexpr std::pair<std::string_view, Test> kTests[] = {
    {"!=", ne},
    {"<", lt},
    {"<=", le},
    {"==", eq},
    {">", gt},
    {">=", ge},
    {"boolean", is_kind<Kind::boolean>},
    {"callable", is_callable},
    {"defined", is_defined},
    {"divisibleby", is_divisible},
    {"eq", eq},
    {"equalto", eq},
    {"escaped", is_escaped},
    {"even", has_parity<0>},
    {"false", is_constant<false>},
    {"filter", names_filter},
    {"float", is_kind<Kind::real>},
    {"ge", ge},
    {"greaterthan", gt},
    {"gt", gt},
    {"in", is_in},
    {"integer", is_integer},
    {"iterable", is_iterable},
    {"le", le},
    {"lessthan", lt},
    {"lower", has_case<false>},
    {"lt", lt},
    {"mapping", is_kind<Kind::dict>},
    {"ne", ne},
    {"none", is_kind<Kind::none>},
    {"number", is_number},
    {"odd", has_parity<1>},
    {"sameas", is_same},
    {"sequence", is_sequence},
    {"string", is_kind<Kind::text>},
    {"test", names_test},
    {"true", is_constant<true>},
    {"undefined", is_kind<Kind::undefined>},
    {"upper", has_case<true>},
};

}  // namespace

Test find_test(std::string_view name) {
  for (const auto& [known, test] : kTests)
    if (known == name) return test;
  return nullptr;
}

}  // namespace tessera::jinja
