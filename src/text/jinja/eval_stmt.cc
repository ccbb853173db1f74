#include "text/jinja/callables.h"
#include "text/jinja/ops.h"
#include "text/jinja/print.h"

namespace tessera::jinja {

using Kind = Value::Kind;

const Value* Scope::find(Symbol symbol) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get())
    for (const auto& [known, value] : scope->variables)
      if (known == symbol) return &value;
  return nullptr;
}

void Scope::set(Symbol symbol, Value value) {
  for (auto& [known, old] : variables) {
    if (known != symbol) continue;
    old = std::move(value);
    return;
  }
  variables.emplace_back(symbol, std::move(value));
}

void Interpreter::define(std::string_view name, Value value) {
  for (Symbol i = 0; i < program_.symbols.size(); ++i)
    if (program_.symbols[i] == name) scope_->set(i, std::move(value));
}

Text Interpreter::run() {
  scope_ = std::make_shared<Scope>(scope_);
  return capture([this] { exec(program_.body); });
}

template <typename Run>
Text Interpreter::capture(Run run) {
  Text text;
  Text* outer = std::exchange(out_, &text);
  run();
  out_ = outer;
  return text;
}

void Interpreter::emit(const Text& text) {
  const std::size_t limit = runtime_.meter.limits().max_output_bytes;
  if (text.size() > limit - out_->size()) Meter::exceeded("bytes of output", limit);
  runtime_.meter.allocate(text.size());
  out_->append(text);
}

Interpreter::Flow Interpreter::exec(const Body& body) {
  const Meter::Level level(runtime_.meter);
  for (const Stmt* stmt : body)
    if (const Flow flow = exec(*stmt); flow != Flow::normal) return flow;
  return Flow::normal;
}

Interpreter::Flow Interpreter::exec(const Stmt& stmt) {
  runtime_.meter.step();
  runtime_.line = stmt.line;
  return std::visit([this](const auto& node) { return exec(node); }, stmt.node);
}

Interpreter::Flow Interpreter::exec(const Data& node) {
  emit(node.text.text());
  return Flow::normal;
}

Interpreter::Flow Interpreter::exec(const Output& node) {
  for (const Expr* part : node.parts) {
    const Value value = eval(*part);
    if (value.is_text())
      emit(value.text());
    else
      emit(to_text(runtime_, value));
  }
  return Flow::normal;
}

Interpreter::Flow Interpreter::exec(const If& node) {
  for (const auto& [condition, body] : node.branches)
    if (truthy(eval(*condition))) return exec(body);
  return exec(node.otherwise);
}

Interpreter::Flow Interpreter::exec(const For& node) {
  const Text text = run_loop(node, iterate(runtime_, eval(*node.items)), scope_, 0);
  emit(text);
  return Flow::normal;
}

Text Interpreter::run_loop(const For& node, std::vector<Value> items, ScopePtr scope,
                           std::size_t depth) {
  const ScopePtr outer = std::exchange(scope_, scope);
  const Text text = capture([&] {
    auto* loop = runtime_.make<Loop>(*this, node, std::move(items), scope, depth);
    bool any = false;
    while (const Value* item = loop->next()) {
      any = true;
      runtime_.meter.step();
      scope_ = std::make_shared<Scope>(scope);
      scope_->set(kLoop, Value(static_cast<Object*>(loop)));
      assign(node.target, *item);
      const Flow flow = exec(node.body);
      scope_ = scope;
      if (flow == Flow::broken) break;
    }
    if (!any) {
      scope_ = std::make_shared<Scope>(scope);
      exec(node.otherwise);
    }
  });
  scope_ = outer;
  return text;
}

void Interpreter::assign(const Target& target, Value value) {
  switch (target.kind) {
    case Target::Kind::name:
      return scope_->set(target.symbol, std::move(value));
    case Target::Kind::attribute: {
      const Value* holder = scope_->find(target.symbol);
      auto* names = holder != nullptr && holder->is(Kind::object)
                        ? dynamic_cast<Namespace*>(holder->object())
                        : nullptr;
      if (names == nullptr) fail("cannot assign attribute on non-namespace object");
      runtime_.meter.allocate(64 + target.attribute.size());
      return names->set(target.attribute, std::move(value));
    }
    case Target::Kind::tuple:
      break;
  }
  const std::vector<Value> values = iterate(runtime_, value);
  if (values.size() != target.elements.size())
    fail("cannot unpack {} values into {} names", values.size(), target.elements.size());
  for (std::size_t i = 0; i < values.size(); ++i) assign(target.elements[i], values[i]);
}

Interpreter::Flow Interpreter::exec(const Set& node) {
  assign(node.target, eval(*node.value));
  return Flow::normal;
}

Interpreter::Flow Interpreter::exec(const SetBlock& node) {
  Text text =
      within(std::make_shared<Scope>(scope_), [&] { return capture([&] { exec(node.body); }); });
  Value value = runtime_.text(std::move(text));
  if (node.filter != nullptr) {
    block_text_ = std::move(value);
    value = eval(*node.filter);
  }
  assign(node.target, std::move(value));
  return Flow::normal;
}

Interpreter::Flow Interpreter::exec(const Macro& node) {
  scope_->set(node.symbol, Value(static_cast<Object*>(runtime_.make<MacroObject>(
                               *this, node.signature, node.body, scope_))));
  return Flow::normal;
}

Interpreter::Flow Interpreter::exec(const CallBlock& node) {
  const auto& call = std::get<CallExpr>(node.call->node);
  Args args = arguments(call.call);
  args.named.emplace_back("caller", Value(static_cast<Object*>(runtime_.make<MacroObject>(
                                        *this, node.signature, node.body, scope_))));
  emit(to_text(runtime_, eval_call(call, std::move(args))));
  return Flow::normal;
}

Interpreter::Flow Interpreter::exec(const FilterBlock& node) {
  Text text =
      within(std::make_shared<Scope>(scope_), [&] { return capture([&] { exec(node.body); }); });
  block_text_ = runtime_.text(std::move(text));
  emit(to_text(runtime_, eval(*node.filter)));
  return Flow::normal;
}

Interpreter::Flow Interpreter::exec(const With& node) {
  auto inner = std::make_shared<Scope>(scope_);
  for (const auto& [target, expr] : node.values) inner->set(target.symbol, eval(*expr));
  return within(inner, [&] { return exec(node.body); });
}

}  // namespace tessera::jinja
