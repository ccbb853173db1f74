#include "text/jinja/callables.h"
#include "text/jinja/filters.h"
#include "text/jinja/methods.h"
#include "text/jinja/ops.h"
#include "text/jinja/print.h"

namespace tessera::jinja {

using Kind = Value::Kind;

Value Interpreter::eval(const Expr& expr) {
  const Meter::Level level(runtime_.meter);
  runtime_.meter.step();
  runtime_.line = expr.line;
  return std::visit([this](const auto& node) { return eval(node); }, expr.node);
}

Value Interpreter::eval(const Name& node) {
  if (const Value* value = scope_->find(node.symbol)) return *value;
  return Value::undefined(fmt::format("'{}' is undefined", program_.symbols[node.symbol]));
}

Value Interpreter::eval(const Sequence& node) {
  std::vector<Value> elements;
  elements.reserve(node.elements.size());
  for (const Expr* element : node.elements) elements.push_back(eval(*element));
  return runtime_.list(std::move(elements), node.flavour);
}

Value Interpreter::eval(const Mapping& node) {
  std::vector<Dict::Entry> entries;
  entries.reserve(node.entries.size());
  for (const auto& [key, value] : node.entries) {
    Value k = eval(*key);
    entries.emplace_back(std::move(k), eval(*value));
  }
  return runtime_.dict(std::move(entries));
}

Value Interpreter::eval(const Attribute& node) {
  return get_attribute(runtime_, eval(*node.object), node.name);
}

Value Interpreter::eval(const Item& node) {
  const Value object = eval(*node.object);
  const auto* slice = std::get_if<Slice>(&node.key->node);
  if (slice == nullptr) return get_item(runtime_, object, eval(*node.key));
  const auto part = [this](const Expr* expr) { return expr == nullptr ? None{} : eval(*expr); };
  const Value start = part(slice->start);
  const Value stop = part(slice->stop);
  return get_slice(runtime_, object, start, stop, part(slice->step));
}

Value Interpreter::eval(const Slice&) {
  fail("a slice among several indexes is not supported");
}

Args Interpreter::arguments(const Call& call) {
  Args args;
  for (const Expr* expr : call.positional) args.positional.push_back(eval(*expr));
  for (const auto& [name, expr] : call.named) args.named.emplace_back(name, eval(*expr));
  if (call.more_positional != nullptr)
    for (Value& value : iterate(runtime_, eval(*call.more_positional)))
      args.positional.push_back(std::move(value));
  if (call.more_named != nullptr) {
    const Value more = eval(*call.more_named);
    if (!more.is(Kind::dict)) fail("argument after ** must be a mapping, not {}", type_name(more));
    for (const auto& [key, value] : more.dict().entries()) {
      if (!key.is_text()) fail("keywords must be strings");
      args.named.emplace_back(std::string(key.view()), value);
    }
  }
  return args;
}

Value Interpreter::eval(const CallExpr& node) {
  return eval_call(node, arguments(node.call));
}

// A method is called on its value without making an object for it first.
Value Interpreter::eval_call(const CallExpr& node, Args args) {
  if (const auto* attribute = std::get_if<Attribute>(&node.callee->node)) {
    const Value self = eval(*attribute->object);
    if (const Method method = find_method(self, attribute->name)) {
      runtime_.meter.step();
      return method(runtime_, self, args);
    }
    return call(runtime_, get_attribute(runtime_, self, attribute->name), args);
  }
  return call(runtime_, eval(*node.callee), args);
}

Value Interpreter::eval(const FilterExpr& node) {
  const Value input = node.input == nullptr ? std::exchange(block_text_, {}) : eval(*node.input);
  return apply_filter(runtime_, node.name, input, arguments(node.call));
}

Value Interpreter::eval(const TestExpr& node) {
  const Value input = eval(*node.input);
  return Value(apply_test(runtime_, node.name, input, arguments(node.call)) != node.negated);
}

Value Interpreter::eval(const Unary& node) {
  const Value operand = eval(*node.operand);
  switch (node.op) {
    case UnaryOp::logical_not:
      return Value(!truthy(operand));
    case UnaryOp::minus:
      return negate(operand);
    case UnaryOp::plus:
      break;
  }
  if (operand.is(Kind::undefined)) use_of_undefined(operand);
  if (!operand.is_number()) fail("bad operand type for unary +: '{}'", type_name(operand));
  return operand.is(Kind::boolean) ? Value(operand.integer()) : operand;
}

Value Interpreter::eval(const Binary& node) {
  const Value left = eval(*node.left);
  const Value right = eval(*node.right);
  switch (node.op) {
    case BinaryOp::add:
      return add(runtime_, left, right);
    case BinaryOp::subtract:
      return subtract(left, right);
    case BinaryOp::multiply:
      return multiply(runtime_, left, right);
    case BinaryOp::divide:
      return divide(left, right);
    case BinaryOp::floor_divide:
      return floor_divide(left, right);
    case BinaryOp::modulo:
      return modulo(runtime_, left, right);
    case BinaryOp::power:
      break;
  }
  return power(left, right);
}

bool Interpreter::compare(CompareOp op, const Value& left, const Value& right) {
  Meter& meter = runtime_.meter;
  switch (op) {
    case CompareOp::eq:
      return equal(meter, left, right);
    case CompareOp::ne:
      return !equal(meter, left, right);
    case CompareOp::lt:
      return less(meter, left, right);
    case CompareOp::le:
      return less(meter, left, right) || equal(meter, left, right);
    case CompareOp::gt:
      return less(meter, right, left);
    case CompareOp::ge:
      return less(meter, right, left) || equal(meter, left, right);
    case CompareOp::in:
      return contains(meter, right, left);
    case CompareOp::not_in:
      break;
  }
  return !contains(meter, right, left);
}

Value Interpreter::eval(const Compare& node) {
  Value left = eval(*node.first);
  for (const auto& [op, expr] : node.rest) {
    Value right = eval(*expr);
    if (!compare(op, left, right)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Value Interpreter::eval(const Logic& node) {
  Value left = eval(*node.left);
  return truthy(left) == node.is_and ? eval(*node.right) : left;
}

Value Interpreter::eval(const Concat& node) {
  Text out;
  for (const Expr* part : node.parts) {
    const Text text = to_text(runtime_, eval(*part));
    runtime_.meter.allocate(text.size());
    out.append(text);
  }
  return runtime_.text(std::move(out));
}

Value Interpreter::eval(const Conditional& node) {
  if (truthy(eval(*node.condition))) return eval(*node.yes);
  if (node.no != nullptr) return eval(*node.no);
  return Value::undefined(
      fmt::format("the inline if-expression on line {} evaluated to false and no else section was "
                  "defined.",
                  runtime_.line));
}

}  // namespace tessera::jinja
