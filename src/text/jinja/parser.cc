#include "text/jinja/parser.h"

#include <algorithm>

namespace tessera::jinja {

Program::Program() : symbols({"loop", "caller", "varargs", "kwargs"}) {}

Symbol Parser::intern(std::string_view name) {
  if (symbols_.empty())
    for (Symbol i = 0; i < program_.symbols.size(); ++i) symbols_[program_.symbols[i]] = i;
  const auto [hit, added] =
      symbols_.try_emplace(std::string(name), static_cast<Symbol>(program_.symbols.size()));
  if (added) program_.symbols.emplace_back(name);
  return hit->second;
}

const Expr* Parser::name_node(int line, std::string_view name) {
  const Symbol symbol = intern(name);
  if (symbol < mentions_.size()) mentions_[symbol] = true;
  return make(line, Name{symbol});
}

bool Parser::skip_op(std::string_view op) {
  if (!current().is_op(op)) return false;
  advance();
  return true;
}

bool Parser::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  advance();
  return true;
}

void Parser::expect_op(std::string_view op) {
  if (!skip_op(op)) unexpected(fmt::format("'{}'", op));
}

void Parser::expect_name(std::string_view name) {
  if (!skip_name(name)) unexpected(fmt::format("'{}'", name));
}

void Parser::expect_block_end() {
  if (current().kind != Kind::block_end) unexpected("'%}'");
  advance();
}

std::string Parser::take_name() {
  if (current().kind != Kind::name) unexpected("a name");
  std::string name = current().text;
  advance();
  return name;
}

void Parser::unexpected(std::string_view wanted) const {
  const auto found = [this]() -> std::string {
    switch (current().kind) {
      case Kind::end:
        return "the end of the template";
      case Kind::data:
        return "text";
      case Kind::variable_begin:
        return "'{{'";
      case Kind::variable_end:
        return "'}}'";
      case Kind::block_begin:
        return "'{%'";
      case Kind::block_end:
        return "'%}'";
      case Kind::string:
        return "a string";
      default:
        return fmt::format("'{}'", current().text);
    }
  };
  fail("expected {}, found {}", wanted, found());
}

Program Parser::parse() {
  program_.body = body({});
  return std::move(program_);
}

// Statements up to a tag that starts with one of `ends`, which is left as the current token. The
// outermost body has no ends and takes everything.
Body Parser::body(std::initializer_list<std::string_view> ends) {
  const Nesting nesting(*this);
  Body out;
  while (current().kind != Kind::end) {
    const int line = current().line;
    if (current().kind == Kind::data) {
      out.push_back(make_stmt(line, Data{Value::literal(current().text)}));
      advance();
    } else if (current().kind == Kind::variable_begin) {
      advance();
      out.push_back(make_stmt(line, Output{{tuple(true, "", false)}}));
      if (current().kind != Kind::variable_end) unexpected("'}}'");
      advance();
    } else {
      advance();  // {%
      const bool ended = std::any_of(ends.begin(), ends.end(), [this](std::string_view end) {
        return current().is_name(end);
      });
      if (ended) return out;
      out.push_back(statement());
      expect_block_end();
    }
  }
  if (ends.size() > 0) fail("the template ends before the tag '{}'", *std::prev(ends.end()));
  return out;
}

const Stmt* Parser::statement() {
  if (current().kind != Kind::name) unexpected("the name of a tag");
  const std::string_view tag = current().text;
  if (tag == "if") return parse_if();
  if (tag == "for") return parse_for();
  if (tag == "set") return parse_set();
  if (tag == "macro") return parse_macro();
  if (tag == "call") return parse_call_block();
  if (tag == "filter") return parse_filter_block();
  if (tag == "with") return parse_with();
  if (tag == "generation") return parse_generation();
  if (tag == "break" || tag == "continue") return parse_loop_control();
  if (tag == "print") return output();
  for (const std::string_view other : {"block", "extends", "include", "import", "from"})
    if (tag == other) fail("the tag '{}' is not supported: a chat template is one file", tag);
  fail("unknown tag '{}'", tag);
}

const Stmt* Parser::output() {
  const int line = current().line;
  advance();
  Output node;
  while (current().kind != Kind::block_end) {
    if (!node.parts.empty()) expect_op(",");
    node.parts.push_back(expression());
  }
  return make_stmt(line, std::move(node));
}

const Stmt* Parser::parse_if() {
  const int line = current().line;
  If node;
  while (true) {
    advance();  // if, elif
    const Expr* condition = tuple(false, "", false);
    expect_block_end();
    node.branches.emplace_back(condition, body({"elif", "else", "endif"}));
    if (!current().is_name("elif")) break;
  }
  if (skip_name("else")) {
    expect_block_end();
    node.otherwise = body({"endif"});
  }
  advance();  // endif
  return make_stmt(line, std::move(node));
}

const Stmt* Parser::parse_for() {
  const int line = current().line;
  advance();
  Target items = target(false, "in");
  if (items.kind == Target::Kind::name && items.symbol == kLoop)
    fail("the variable of a loop cannot be named 'loop'");
  expect_name("in");
  const Expr* iterable = tuple(false, "recursive", false);
  const Expr* filter = skip_name("if") ? expression() : nullptr;
  const bool recursive = skip_name("recursive");
  expect_block_end();

  ++loops_;
  Body inside = body({"else", "endfor"});
  --loops_;
  Body otherwise;
  if (skip_name("else")) {
    expect_block_end();
    otherwise = body({"endfor"});
  }
  advance();  // endfor
  return make_stmt(line, For{std::move(items), iterable, filter, recursive, std::move(inside),
                             std::move(otherwise)});
}

const Stmt* Parser::parse_set() {
  const int line = current().line;
  advance();
  Target where = target(true, "=");
  if (skip_op("=")) return make_stmt(line, Set{std::move(where), tuple(true, "", false)});

  const Expr* filter = block_filter();
  expect_block_end();
  Body inside = body({"endset"});
  advance();
  return make_stmt(line, SetBlock{std::move(where), filter, std::move(inside)});
}

Signature Parser::signature(std::string name) {
  Signature out;
  out.name = std::move(name);
  expect_op("(");
  while (!current().is_op(")")) {
    if (!out.parameters.empty()) expect_op(",");
    std::string parameter = take_name();
    const Expr* otherwise = nullptr;
    if (skip_op("="))
      otherwise = expression();
    else if (!out.parameters.empty() && out.parameters.back().otherwise != nullptr)
      fail("the parameter '{}' has no default but follows one that has", parameter);
    const Symbol symbol = intern(parameter);
    out.parameters.push_back({symbol, std::move(parameter), otherwise});
  }
  advance();
  return out;
}

// The body of a macro or call block. Notes which of the implicit arguments it mentions.
Body Parser::function_body(Signature& signature, std::string_view end) {
  expect_block_end();
  const std::size_t outer_loops = std::exchange(loops_, 0);
  const std::vector<bool> outer_mentions = std::exchange(mentions_, std::vector<bool>(4));
  Body inside = body({end});
  loops_ = outer_loops;
  for (const Parameter& parameter : signature.parameters)
    if (parameter.symbol < mentions_.size()) mentions_[parameter.symbol] = false;
  signature.uses_caller = mentions_[kCaller];
  signature.uses_varargs = mentions_[kVarargs];
  signature.uses_kwargs = mentions_[kKwargs];
  for (std::size_t i = 0; i < mentions_.size(); ++i)
    mentions_[i] = mentions_[i] || outer_mentions[i];
  advance();
  return inside;
}

const Stmt* Parser::parse_macro() {
  const int line = current().line;
  advance();
  const Target name = single_target(false);
  Signature parameters = signature(program_.symbols[name.symbol]);
  Body inside = function_body(parameters, "endmacro");
  return make_stmt(line, Macro{name.symbol, std::move(parameters), std::move(inside)});
}

const Stmt* Parser::parse_call_block() {
  const int line = current().line;
  advance();
  Signature parameters;
  if (current().is_op("(")) parameters = signature("");
  parameters.name = "caller";
  const Expr* callee = expression();
  if (!std::holds_alternative<CallExpr>(callee->node)) fail("the tag 'call' needs a call");
  Body inside = function_body(parameters, "endcall");
  return make_stmt(line, CallBlock{std::move(parameters), callee, std::move(inside)});
}

const Stmt* Parser::parse_filter_block() {
  const int line = current().line;
  advance();
  const Expr* chain = filter(nullptr);
  while (skip_op("|")) chain = filter(chain);
  expect_block_end();
  Body inside = body({"endfilter"});
  advance();
  return make_stmt(line, FilterBlock{chain, std::move(inside)});
}

const Stmt* Parser::parse_with() {
  const int line = current().line;
  advance();
  With node;
  while (current().kind != Kind::block_end) {
    if (!node.values.empty()) expect_op(",");
    Target where = single_target(false);
    expect_op("=");
    node.values.emplace_back(std::move(where), expression());
  }
  expect_block_end();
  node.body = body({"endwith"});
  advance();
  return make_stmt(line, std::move(node));
}

// {% generation %} marks what a model would have written, for training. Here it only opens a scope.
const Stmt* Parser::parse_generation() {
  const int line = current().line;
  advance();
  expect_block_end();
  const std::size_t outer_loops = std::exchange(loops_, 0);
  Body inside = body({"endgeneration"});
  loops_ = outer_loops;
  advance();
  return make_stmt(line, With{{}, std::move(inside)});
}

const Stmt* Parser::parse_loop_control() {
  const Token tag = current();
  advance();
  if (loops_ == 0) fail("'{}' outside of a loop", tag.text);
  if (tag.text == "break") return make_stmt(tag.line, Break{});
  return make_stmt(tag.line, Continue{});
}

Target Parser::single_target(bool with_attribute) {
  std::string name = take_name();
  for (const std::string_view reserved : {"true", "false", "none", "True", "False", "None"})
    if (name == reserved) fail("cannot assign to '{}'", name);
  Target out{Target::Kind::name, intern(name), {}, {}};
  if (with_attribute && skip_op(".")) {
    out.kind = Target::Kind::attribute;
    out.attribute = take_name();
  }
  return out;
}

// One target, or a tuple of targets with or without parentheses, up to the name or operator `end`.
Target Parser::target(bool with_attribute, std::string_view end) {
  const Nesting nesting(*this);
  const auto one = [&]() -> Target {
    if (!skip_op("(")) return single_target(with_attribute);
    Target inner = target(false, ")");
    expect_op(")");
    return inner;
  };
  Target first = one();
  if (!current().is_op(",")) return first;
  Target out{Target::Kind::tuple, 0, {}, {}};
  out.elements.push_back(std::move(first));
  while (skip_op(",")) {
    if (current().is_op(end) || current().is_name(end)) break;
    out.elements.push_back(one());
  }
  return out;
}

}  // namespace tessera::jinja
