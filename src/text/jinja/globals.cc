// The global functions of every template.
#include <time.h>

#include "base/checked.h"
#include "text/jinja/callables.h"
#include "text/jinja/ops.h"
#include "text/jinja/print.h"

namespace tessera::jinja {
namespace {

using Kind = Value::Kind;

// The sandbox of chat templates refuses longer ranges.
constexpr std::int64_t kMaxRange = 100'000;

Value range_function(Runtime& runtime, const Args& args) {
  const Bound bound("range", args, {"start", "stop", "step"}, 1);
  const bool has_start = bound[1] != nullptr;
  const std::int64_t start = has_start ? bound.integer(0, 0) : 0;
  const std::int64_t stop = bound.integer(has_start ? 1 : 0, 0);
  const std::int64_t step = bound.integer(2, 1);
  if (step == 0) fail("range() arg 3 must not be zero");
  const auto distance = static_cast<__int128>(stop) - start;
  const __int128 count = (distance / step) + (distance % step != 0 && (distance > 0) == (step > 0));
  if (count > kMaxRange) fail("range too big: more than {} numbers", kMaxRange);
  List range;
  range.flavour = List::Flavour::range;
  range.range_text = step == 1 ? fmt::format("range({}, {})", start, stop)
                               : fmt::format("range({}, {}, {})", start, stop, step);
  const auto size = static_cast<std::size_t>(count > 0 ? count : 0);
  runtime.meter.allocate(size * sizeof(Value));
  for (std::size_t i = 0; i < size; ++i)
    range.elements.push_back(Value(start + static_cast<std::int64_t>(i) * step));
  return Value(std::make_shared<const List>(std::move(range)));
}

// dict(mapping or pairs, **named)
Value dict_function(Runtime& runtime, const Args& args) {
  std::vector<Dict::Entry> entries;
  if (args.positional.size() > 1) fail("dict expected at most 1 argument");
  if (!args.positional.empty() && args.positional[0].is(Kind::dict)) {
    entries = args.positional[0].dict().entries();
  } else if (!args.positional.empty()) {
    for (const Value& item : iterate(runtime, args.positional[0])) {
      const std::vector<Value> pair = iterate(runtime, item);
      if (pair.size() != 2) fail("dict() needs pairs, found {} elements", pair.size());
      entries.emplace_back(pair[0], pair[1]);
    }
  }
  for (const auto& [name, value] : args.named) entries.emplace_back(Value::literal(name), value);
  return runtime.dict(std::move(entries));
}

Value namespace_function(Runtime& runtime, const Args& args) {
  const Value initial = dict_function(runtime, args);
  auto* out = runtime.make<Namespace>();
  for (const auto& [key, value] : initial.dict().entries())
    if (key.is_text()) out->set(key.view(), value);
  return Value(static_cast<Object*>(out));
}

class Joiner : public Object {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {}
  std::string_view type_name() const override { return "Joiner"; }
  bool callable() const override { return true; }
  Value call(Runtime&, const Args& args) override {
    const Bound none("joiner", args, {});
    return std::exchange(used_, true) ? separator_ : Value::literal("");
  }

 private:
  Value separator_;
  bool used_ = false;
};

Value joiner_function(Runtime& runtime, const Args& args) {
  const Bound bound("joiner", args, {"sep"});
  const Value separator = bound[0] != nullptr ? *bound[0] : Value::literal(", ");
  return Value(static_cast<Object*>(runtime.make<Joiner>(separator)));
}

class Cycler : public Object {
 public:
  explicit Cycler(std::vector<Value> items) : items_(std::move(items)) {}
  std::string_view type_name() const override { return "Cycler"; }
  Value attribute(Runtime& runtime, std::string_view name) override {
    if (name == "current") return items_[position_];
    if (name == "next" || name == "reset")
      return Value(static_cast<Object*>(runtime.make<Step>(*this, name == "next")));
    return Object::attribute(runtime, name);
  }

 private:
  class Step : public Object {
   public:
    Step(Cycler& cycler, bool advances) : cycler_(cycler), advances_(advances) {}
    std::string_view type_name() const override { return "method"; }
    bool callable() const override { return true; }
    Value call(Runtime&, const Args& args) override {
      const Bound none("cycler method", args, {});
      if (!advances_) {
        cycler_.position_ = 0;
        return None{};
      }
      const std::size_t at = cycler_.position_;
      cycler_.position_ = (at + 1) % cycler_.items_.size();
      return cycler_.items_[at];
    }

   private:
    Cycler& cycler_;
    bool advances_;
  };

  std::vector<Value> items_;
  std::size_t position_ = 0;
};

Value cycler_function(Runtime& runtime, const Args& args) {
  if (args.positional.empty()) fail("at least one item has to be provided");
  return Value(static_cast<Object*>(runtime.make<Cycler>(args.positional)));
}

Value raise_exception(Runtime& runtime, const Args& args) {
  const Bound bound("raise_exception", args, {"message"}, 1);
  fail("{}", to_text(runtime, *bound[0]).view());
}

Value strftime_now(Runtime& runtime, const Args& args) {
  const Bound bound("strftime_now", args, {"format"}, 1);
  const Text* format = bound.text(0);
  if (format == nullptr) fail("strftime_now() needs a format");
  if (format->empty()) return Value::literal("");
  const time_t seconds = std::chrono::system_clock::to_time_t(runtime.now);
  tm fields{};
  gmtime_r(&seconds, &fields);
  char buffer[1024];
  const std::string terminated(format->view());
  const std::size_t size = strftime(buffer, sizeof buffer, terminated.c_str(), &fields);
  if (size == 0)
    fail("strftime_now() needs a format whose result is not empty or over {} bytes",
         sizeof buffer - 1);
  return runtime.text(std::string(buffer, size), format->all_trusted());
}

}  // namespace

void define_globals(Interpreter& interpreter) {
  static constexpr std::pair<std::string_view, Function::Run> kFunctions[] = {
      {"range", range_function},         {"dict", dict_function},
      {"namespace", namespace_function}, {"joiner", joiner_function},
      {"cycler", cycler_function},       {"raise_exception", raise_exception},
      {"strftime_now", strftime_now},
  };
  for (const auto& [name, run] : kFunctions)
    interpreter.define(name,
                       Value(static_cast<Object*>(interpreter.runtime().make<Function>(run))));
}

}  // namespace tessera::jinja
