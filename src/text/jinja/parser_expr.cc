#include <algorithm>
#include <charconv>

#include "text/jinja/parser.h"

namespace tessera::jinja {

const Expr* Parser::conditional() {
  const Nesting nesting(*this);
  const int line = current().line;
  const Expr* value = logical_or();
  while (skip_name("if")) {
    const Expr* condition = logical_or();
    const Expr* no = skip_name("else") ? conditional() : nullptr;
    value = make(line, Conditional{condition, value, no});
  }
  return value;
}

const Expr* Parser::logical_or() {
  const int line = current().line;
  const Expr* left = logical_and();
  while (skip_name("or")) left = make(line, Logic{false, left, logical_and()});
  return left;
}

const Expr* Parser::logical_and() {
  const int line = current().line;
  const Expr* left = logical_not();
  while (skip_name("and")) left = make(line, Logic{true, left, logical_not()});
  return left;
}

const Expr* Parser::logical_not() {
  const int line = current().line;
  if (!skip_name("not")) return comparison();
  const Nesting nesting(*this);
  return make(line, Unary{UnaryOp::logical_not, logical_not()});
}

const Expr* Parser::comparison() {
  static constexpr std::pair<std::string_view, CompareOp> kOps[] = {
      {"==", CompareOp::eq}, {"!=", CompareOp::ne}, {"<", CompareOp::lt},
      {"<=", CompareOp::le}, {">", CompareOp::gt},  {">=", CompareOp::ge}};
  const int line = current().line;
  Compare node{sum(), {}};
  while (true) {
    const auto op = std::find_if(std::begin(kOps), std::end(kOps),
                                 [this](const auto& o) { return current().is_op(o.first); });
    if (op != std::end(kOps)) {
      advance();
      node.rest.emplace_back(op->second, sum());
    } else if (skip_name("in")) {
      node.rest.emplace_back(CompareOp::in, sum());
    } else if (current().is_name("not") && ahead().is_name("in")) {
      advance();
      advance();
      node.rest.emplace_back(CompareOp::not_in, sum());
    } else {
      break;
    }
  }
  return node.rest.empty() ? node.first : make(line, std::move(node));
}

const Expr* Parser::sum() {
  const int line = current().line;
  const Expr* left = concat();
  while (current().is_op("+") || current().is_op("-")) {
    const BinaryOp op = current().is_op("+") ? BinaryOp::add : BinaryOp::subtract;
    advance();
    left = make(line, Binary{op, left, concat()});
  }
  return left;
}

const Expr* Parser::concat() {
  const int line = current().line;
  Concat node{{product()}};
  while (skip_op("~")) node.parts.push_back(product());
  return node.parts.size() == 1 ? node.parts[0] : make(line, std::move(node));
}

const Expr* Parser::product() {
  static constexpr std::pair<std::string_view, BinaryOp> kOps[] = {{"*", BinaryOp::multiply},
                                                                   {"/", BinaryOp::divide},
                                                                   {"//", BinaryOp::floor_divide},
                                                                   {"%", BinaryOp::modulo}};
  const int line = current().line;
  const Expr* left = power();
  while (true) {
    const auto op = std::find_if(std::begin(kOps), std::end(kOps),
                                 [this](const auto& o) { return current().is_op(o.first); });
    if (op == std::end(kOps)) return left;
    advance();
    left = make(line, Binary{op->second, left, power()});
  }
}

const Expr* Parser::power() {
  const int line = current().line;
  const Expr* left = unary(true);
  while (skip_op("**")) left = make(line, Binary{BinaryOp::power, left, unary(true)});
  return left;
}

const Expr* Parser::unary(bool with_filter) {
  const int line = current().line;
  const Expr* node = nullptr;
  if (current().is_op("-") || current().is_op("+")) {
    const Nesting nesting(*this);
    const UnaryOp op = current().is_op("-") ? UnaryOp::minus : UnaryOp::plus;
    advance();
    node = make(line, Unary{op, unary(false)});
  } else {
    node = primary();
  }
  node = postfix(node);
  return with_filter ? filters(node) : node;
}

const Expr* Parser::primary() {
  const Token& token = current();
  const int line = token.line;
  switch (token.kind) {
    case Kind::name: {
      const std::string name = take_name();
      if (name == "true" || name == "True") return constant(line, Value(true));
      if (name == "false" || name == "False") return constant(line, Value(false));
      if (name == "none" || name == "None") return constant(line, None{});
      return name_node(line, name);
    }
    case Kind::string:
      return string_literal();
    case Kind::integer:
      return integer_literal();
    case Kind::real: {
      double value = 0;
      const auto end =
          std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
      if (end.ec != std::errc()) fail("the number {} is out of range", token.text);
      advance();
      return constant(line, Value(value));
    }
    default:
      break;
  }
  if (skip_op("(")) {
    const Expr* inside = tuple(true, "", true);
    expect_op(")");
    return inside;
  }
  if (current().is_op("[")) return list_literal();
  if (current().is_op("{")) return dict_literal();
  unexpected("an expression");
}

const Expr* Parser::string_literal() {
  const int line = current().line;
  std::string text;
  for (; current().kind == Kind::string; advance()) text += current().text;
  return constant(line, Value::literal(text));
}

const Expr* Parser::integer_literal() {
  const int line = current().line;
  const std::string text = current().text;
  advance();
  const bool prefixed = text.size() > 2 && !(text[1] >= '0' && text[1] <= '9');
  const char mark = prefixed ? static_cast<char>(text[1] | 0x20) : '\0';
  const int base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
  std::int64_t value = 0;
  const auto end =
      std::from_chars(text.data() + (prefixed ? 2 : 0), text.data() + text.size(), value, base);
  if (end.ec == std::errc()) return constant(line, Value(value));
  if (prefixed) fail("the number {} is out of range", text);
  return constant(line, BigInt{std::make_shared<const std::string>(text)});
}

bool Parser::at_tuple_end(std::string_view end_name) const {
  return current().kind == Kind::variable_end || current().kind == Kind::block_end ||
         current().is_op(")") || (!end_name.empty() && current().is_name(end_name));
}

// One expression, or several with commas between them, which make a tuple.
const Expr* Parser::tuple(bool with_conditional, std::string_view end_name, bool parenthesized) {
  const Nesting nesting(*this);
  const int line = current().line;
  Sequence node{{}, List::Flavour::tuple};
  bool is_tuple = false;
  while (!at_tuple_end(end_name)) {
    node.elements.push_back(with_conditional ? expression() : logical_or());
    if (!skip_op(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!node.elements.empty()) return node.elements[0];
    if (!parenthesized) unexpected("an expression");
  }
  return make(line, std::move(node));
}

const Expr* Parser::list_literal() {
  const int line = current().line;
  expect_op("[");
  Sequence node{{}, List::Flavour::list};
  while (!current().is_op("]")) {
    if (!node.elements.empty()) expect_op(",");
    if (current().is_op("]")) break;
    node.elements.push_back(expression());
  }
  expect_op("]");
  return make(line, std::move(node));
}

const Expr* Parser::dict_literal() {
  const int line = current().line;
  expect_op("{");
  Mapping node;
  while (!current().is_op("}")) {
    if (!node.entries.empty()) expect_op(",");
    if (current().is_op("}")) break;
    const Expr* key = expression();
    expect_op(":");
    node.entries.emplace_back(key, expression());
  }
  expect_op("}");
  return make(line, std::move(node));
}

const Expr* Parser::postfix(const Expr* node) {
  while (true) {
    const int line = current().line;
    if (current().is_op(".") || current().is_op("["))
      node = subscript(node);
    else if (current().is_op("("))
      node = make(line, CallExpr{node, call_arguments()});
    else
      return node;
  }
}

const Expr* Parser::filters(const Expr* node) {
  while (true) {
    const int line = current().line;
    if (skip_op("|"))
      node = filter(node);
    else if (skip_name("is"))
      node = test(node);
    else if (current().is_op("("))
      node = make(line, CallExpr{node, call_arguments()});
    else
      return node;
  }
}

const Expr* Parser::filter(const Expr* input) {
  const int line = current().line;
  std::string name = dotted_name();
  Call call;
  if (current().is_op("(")) call = call_arguments();
  return make(line, FilterExpr{input, std::move(name), std::move(call)});
}

// The filters of a block set: `{% set x | trim %}`. Null if there are none.
const Expr* Parser::block_filter() {
  const Expr* node = nullptr;
  while (skip_op("|")) node = filter(node);
  return node;
}

const Expr* Parser::test(const Expr* input) {
  const int line = current().line;
  const bool negated = skip_name("not");
  std::string name = dotted_name();
  Call call;
  const Token& next = current();
  const bool starts_operand = next.kind == Kind::string || next.kind == Kind::integer ||
                              next.kind == Kind::real || next.is_op("[") || next.is_op("{") ||
                              (next.kind == Kind::name && !next.is_name("else") &&
                               !next.is_name("or") && !next.is_name("and"));
  if (next.is_op("(")) {
    call = call_arguments();
  } else if (starts_operand) {
    if (next.is_name("is")) fail("tests cannot be chained with 'is'");
    call.positional.push_back(postfix(primary()));
  }
  return make(line, TestExpr{input, std::move(name), std::move(call), negated});
}

std::string Parser::dotted_name() {
  std::string name = take_name();
  while (skip_op(".")) name += "." + take_name();
  return name;
}

const Expr* Parser::subscript(const Expr* object) {
  const int line = current().line;
  if (skip_op(".")) {
    if (current().kind == Kind::integer) return make(line, Item{object, integer_literal()});
    return make(line, Attribute{object, take_name()});
  }
  expect_op("[");
  Sequence keys{{}, List::Flavour::tuple};
  while (!current().is_op("]")) {
    if (!keys.elements.empty()) expect_op(",");
    keys.elements.push_back(subscript_key());
  }
  advance();
  if (keys.elements.empty()) unexpected("an index");
  if (keys.elements.size() == 1) return make(line, Item{object, keys.elements[0]});
  return make(line, Item{object, make(line, std::move(keys))});
}

const Expr* Parser::subscript_key() {
  const int line = current().line;
  const auto ends = [this] {
    return current().is_op(":") || current().is_op("]") || current().is_op(",");
  };
  const Expr* start = current().is_op(":") ? nullptr : expression();
  if (!skip_op(":")) return start;
  Slice node{start, nullptr, nullptr};
  if (!ends()) node.stop = expression();
  if (skip_op(":") && !ends()) node.step = expression();
  return make(line, node);
}

Call Parser::call_arguments() {
  const Nesting nesting(*this);
  expect_op("(");
  Call call;
  bool first = true;
  while (!current().is_op(")")) {
    if (!first) {
      expect_op(",");
      if (current().is_op(")")) break;
    }
    first = false;
    if (skip_op("*")) {
      if (call.more_positional || call.more_named) fail("misplaced * in the arguments of a call");
      call.more_positional = expression();
    } else if (skip_op("**")) {
      if (call.more_named) fail("two ** in the arguments of a call");
      call.more_named = expression();
    } else if (current().kind == Kind::name && ahead().is_op("=")) {
      if (call.more_named) fail("a named argument follows **");
      std::string name = take_name();
      advance();
      call.named.emplace_back(std::move(name), expression());
    } else {
      if (!call.named.empty() || call.more_positional || call.more_named)
        fail("a positional argument follows a named one");
      call.positional.push_back(expression());
    }
  }
  advance();
  return call;
}

}  // namespace tessera::jinja
