// The objects that templates meet: namespaces, macros, the variable `loop`, global functions.
#pragma once

#include <map>
#include <optional>

#include "text/jinja/eval.h"

namespace tessera::jinja {

class Namespace : public Object {
 public:
  std::string_view type_name() const override { return "Namespace"; }
  Value attribute(Runtime& runtime, std::string_view name) override;
  void set(std::string_view name, Value value) {
    attributes_.insert_or_assign(std::string(name), std::move(value));
  }

 private:
  std::map<std::string, Value, std::less<>> attributes_;
};

class Function : public Object {
 public:
  using Run = Value (*)(Runtime& runtime, const Args& args);
  explicit Function(Run run) : run_(run) {}
  std::string_view type_name() const override { return "function"; }
  bool callable() const override { return true; }
  Value call(Runtime& runtime, const Args& args) override { return run_(runtime, args); }

 private:
  Run run_;
};

class MacroObject : public Object {
 public:
  MacroObject(Interpreter& interpreter, const Signature& signature, const Body& body,
              ScopePtr closure)
      : interpreter_(interpreter),
        signature_(signature),
        body_(body),
        closure_(std::move(closure)) {}
  std::string_view type_name() const override { return "Macro"; }
  bool callable() const override { return true; }
  Value attribute(Runtime& runtime, std::string_view name) override;
  Value call(Runtime& runtime, const Args& args) override;

 private:
  Interpreter& interpreter_;
  const Signature& signature_;
  const Body& body_;
  ScopePtr closure_;
};

// One run of a for loop, and the variable `loop` inside it. Items pass the loop's filter only when
// they are asked for, so the filter sees what earlier iterations changed.
class Loop : public Object {
 public:
  Loop(Interpreter& interpreter, const For& node, std::vector<Value> items, ScopePtr scope,
       std::size_t depth)
      : interpreter_(interpreter),
        node_(node),
        waiting_(std::move(items)),
        scope_(std::move(scope)),
        depth_(depth) {}

  // The next item, or null after the last one.
  const Value* next();

  std::string_view type_name() const override { return "LoopContext"; }
  bool callable() const override { return true; }
  Value attribute(Runtime& runtime, std::string_view name) override;
  Value call(Runtime& runtime, const Args& args) override;
  Value cycle(const Args& args) const;
  Value changed(Runtime& runtime, const Args& args);

 private:
  // Filters items until `count` have passed or none is left.
  void accept(std::size_t count);
  bool has(std::size_t index) {
    accept(index + 1);
    return index < accepted_.size();
  }
  std::size_t length() {
    accept(waiting_.size());
    return accepted_.size();
  }

  Interpreter& interpreter_;
  const For& node_;
  std::vector<Value> waiting_;
  std::size_t looked_at_ = 0;
  std::vector<Value> accepted_;
  std::size_t index_ = 0;  // of the current item, counted from 1
  ScopePtr scope_;         // around the loop
  std::size_t depth_;      // 0 for a loop that is not inside its own recursion
  std::optional<Value> last_changed_;
};

}  // namespace tessera::jinja
