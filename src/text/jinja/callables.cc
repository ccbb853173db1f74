#include "text/jinja/callables.h"

#include <algorithm>

#include "text/jinja/ops.h"

namespace tessera::jinja {
namespace {

using Kind = Value::Kind;

// A method of a Loop taken off it: loop.cycle, loop.changed.
template <typename Run>
class LoopMethod : public Object {
 public:
  explicit LoopMethod(Run run) : run_(run) {}
  std::string_view type_name() const override { return "method"; }
  bool callable() const override { return true; }
  Value call(Runtime& runtime, const Args& args) override { return run_(runtime, args); }

 private:
  Run run_;
};

template <typename Run>
Value loop_method(Runtime& runtime, Run run) {
  return Value(static_cast<Object*>(runtime.make<LoopMethod<Run>>(run)));
}

// Takes the named argument out of `named`, if it is there.
std::optional<Value> take(std::vector<std::pair<std::string, Value>>& named,
                          std::string_view name) {
  const auto hit = std::find_if(named.begin(), named.end(),
                                [name](const auto& argument) { return argument.first == name; });
  if (hit == named.end()) return std::nullopt;
  Value value = std::move(hit->second);
  named.erase(hit);
  return value;
}

}  // namespace

Value Namespace::attribute(Runtime&, std::string_view name) {
  const auto hit = attributes_.find(name);
  if (hit != attributes_.end()) return hit->second;
  return Value::undefined(fmt::format("namespace has no attribute '{}'", name));
}

Value MacroObject::attribute(Runtime& runtime, std::string_view name) {
  if (name == "name") return Value::literal(signature_.name);
  if (name == "caller") return Value(signature_.uses_caller);
  if (name == "catch_varargs") return Value(signature_.uses_varargs);
  if (name == "catch_kwargs") return Value(signature_.uses_kwargs);
  if (name != "arguments") return Object::attribute(runtime, name);
  std::vector<Value> names;
  for (const Parameter& parameter : signature_.parameters)
    names.push_back(Value::literal(parameter.name));
  return runtime.list(std::move(names), List::Flavour::tuple);
}

Value MacroObject::call(Runtime& runtime, const Args& args) {
  return runtime.text(interpreter_.run_function(signature_, body_, closure_, args));
}

Text Interpreter::run_function(const Signature& signature, const Body& body,
                               const ScopePtr& closure, const Args& args) {
  Text text;
  Text* outer = std::exchange(out_, &text);
  within(std::make_shared<Scope>(closure), [&] {
    bind(signature, args);
    return exec(body);
  });
  out_ = outer;
  return text;
}

void Interpreter::bind(const Signature& signature, const Args& args) {
  const std::size_t given = std::min(args.positional.size(), signature.parameters.size());
  auto named = args.named;
  for (std::size_t i = 0; i < signature.parameters.size(); ++i) {
    const Parameter& parameter = signature.parameters[i];
    std::optional<Value> value;
    if (i < given)
      value = args.positional[i];
    else
      value = take(named, parameter.name);
    if (!value && parameter.otherwise != nullptr) value = eval(*parameter.otherwise);
    if (!value)
      value = Value::undefined(fmt::format("parameter '{}' was not provided", parameter.name));
    scope_->set(parameter.symbol, *std::move(value));
  }
  if (signature.uses_caller)
    scope_->set(kCaller, take(named, "caller").value_or(Value::undefined("No caller defined")));
  if (signature.uses_kwargs) {
    std::vector<Dict::Entry> rest;
    for (auto& [name, value] : named) rest.emplace_back(Value::literal(name), std::move(value));
    scope_->set(kKwargs, runtime_.dict(std::move(rest)));
  } else if (!named.empty()) {
    fail("macro '{}' takes no keyword argument '{}'", signature.name, named.front().first);
  }
  if (signature.uses_varargs) {
    std::vector<Value> rest(args.positional.begin() + static_cast<std::ptrdiff_t>(given),
                            args.positional.end());
    scope_->set(kVarargs, runtime_.list(std::move(rest), List::Flavour::tuple));
  } else if (args.positional.size() > given) {
    fail("macro '{}' takes not more than {} argument(s)", signature.name, given);
  }
}

void Loop::accept(std::size_t count) {
  while (accepted_.size() < count && looked_at_ < waiting_.size()) {
    const Value& item = waiting_[looked_at_++];
    const bool passes =
        node_.filter == nullptr || interpreter_.within(std::make_shared<Scope>(scope_), [&] {
          interpreter_.assign(node_.target, item);
          return truthy(interpreter_.eval(*node_.filter));
        });
    if (passes) accepted_.push_back(item);
  }
}

const Value* Loop::next() {
  if (!has(index_)) return nullptr;
  return &accepted_[index_++];
}

Value Loop::attribute(Runtime& runtime, std::string_view name) {
  if (name == "index") return Value::count(index_);
  if (name == "index0") return Value::count(index_ - 1);
  if (name == "first") return Value(index_ == 1);
  if (name == "last") return Value(!has(index_));
  if (name == "length") return Value::count(length());
  if (name == "revindex") return Value::count(length() - index_ + 1);
  if (name == "revindex0") return Value::count(length() - index_);
  if (name == "depth") return Value::count(depth_ + 1);
  if (name == "depth0") return Value::count(depth_);
  if (name == "previtem")
    return index_ > 1 ? accepted_[index_ - 2] : Value::undefined("there is no previous item");
  if (name == "nextitem")
    return has(index_) ? accepted_[index_] : Value::undefined("there is no next item");
  if (name == "cycle")
    return loop_method(runtime, [this](Runtime&, const Args& args) { return cycle(args); });
  if (name == "changed")
    return loop_method(runtime,
                       [this](Runtime& rt, const Args& args) { return changed(rt, args); });
  return Object::attribute(runtime, name);
}

Value Loop::call(Runtime& runtime, const Args& args) {
  if (!node_.recursive) fail("the loop must have the 'recursive' marker to be called recursively");
  const Bound bound("loop", args, {"iterable"}, 1);
  return runtime.text(
      interpreter_.run_loop(node_, iterate(runtime, *bound[0]), scope_, depth_ + 1));
}

Value Loop::cycle(const Args& args) const {
  if (args.positional.empty()) fail("no items for cycling given");
  return args.positional[(index_ - 1) % args.positional.size()];
}

Value Loop::changed(Runtime& runtime, const Args& args) {
  const Value now = runtime.list(args.positional, List::Flavour::tuple);
  if (last_changed_ && equal(runtime.meter, *last_changed_, now)) return Value(false);
  last_changed_ = now;
  return Value(true);
}

}  // namespace tessera::jinja
