// The evaluator: walks a Program for one render. Statements are in eval_stmt.cc, expressions in
// eval_expr.cc, loops and macros in callables.cc, the global functions in globals.cc.
//
// Scopes are dynamic: loop bodies, macros, `with`, call, filter and set blocks open one, `if` does
// not. A macro keeps the scope that it was defined in.
#pragma once

#include <memory>
#include <optional>

#include "text/jinja/ast.h"
#include "text/jinja/runtime.h"

namespace tessera::jinja {

struct Scope {
  explicit Scope(std::shared_ptr<Scope> parent) : parent(std::move(parent)) {}
  const Value* find(Symbol symbol) const;
  void set(Symbol symbol, Value value);

  std::shared_ptr<Scope> parent;
  std::vector<std::pair<Symbol, Value>> variables;
};
using ScopePtr = std::shared_ptr<Scope>;

class Interpreter {
 public:
  Interpreter(const Program& program, Runtime& runtime)
      : program_(program), runtime_(runtime), scope_(std::make_shared<Scope>(nullptr)) {}

  // Sets a variable of the outermost scope; of no effect if the template never names it.
  void define(std::string_view name, Value value);
  Text run();

  Runtime& runtime() { return runtime_; }

  // For loops and macros (callables.h).
  Value eval(const Expr& expr);
  void assign(const Target& target, Value value);
  // `scope` is the one around the loop.
  Text run_loop(const For& loop, std::vector<Value> items, ScopePtr scope, std::size_t depth);
  Text run_function(const Signature& signature, const Body& body, const ScopePtr& closure,
                    const Args& args);
  // Evaluates with `scope` as the current scope.
  template <typename Run>
  auto within(ScopePtr scope, Run run) {
    std::swap(scope_, scope);
    auto result = run();
    std::swap(scope_, scope);
    return result;
  }

 private:
  enum class Flow { normal, broken, continued };

  Flow exec(const Body& body);
  Flow exec(const Stmt& stmt);
  Flow exec(const Data& node);
  Flow exec(const Output& node);
  Flow exec(const If& node);
  Flow exec(const For& node);
  Flow exec(const Set& node);
  Flow exec(const SetBlock& node);
  Flow exec(const Macro& node);
  Flow exec(const CallBlock& node);
  Flow exec(const FilterBlock& node);
  Flow exec(const With& node);
  Flow exec(const Break&) { return Flow::broken; }
  Flow exec(const Continue&) { return Flow::continued; }
  void emit(const Text& text);
  template <typename Run>
  Text capture(Run run);
  void bind(const Signature& signature, const Args& args);

  Value eval(const Constant& node) { return node.value; }
  Value eval(const Name& node);
  Value eval(const Sequence& node);
  Value eval(const Mapping& node);
  Value eval(const Attribute& node);
  Value eval(const Item& node);
  Value eval(const Slice& node);
  Value eval(const CallExpr& node);
  Value eval(const FilterExpr& node);
  Value eval(const TestExpr& node);
  Value eval(const Unary& node);
  Value eval(const Binary& node);
  Value eval(const Compare& node);
  Value eval(const Logic& node);
  Value eval(const Concat& node);
  Value eval(const Conditional& node);
  Value eval_call(const CallExpr& node, Args args);
  bool compare(CompareOp op, const Value& left, const Value& right);
  Args arguments(const Call& call);

  const Program& program_;
  Runtime& runtime_;
  ScopePtr scope_;
  Text* out_ = nullptr;
  Value block_text_;  // what a filter without an input is applied to
};

// The functions that every template has: range, namespace, dict, cycler, joiner, raise_exception,
// strftime_now. Calls define(name, value) for each.
void define_globals(Interpreter& interpreter);

}  // namespace tessera::jinja
