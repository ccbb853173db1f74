// The parser: tokens to Program, by recursive descent with Jinja's precedence. Statements are in
// parser.cc, expressions in parser_expr.cc. Nesting is bounded; errors are Failures, and line()
// then says where.
#pragma once

#include <initializer_list>
#include <unordered_map>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace tessera::jinja {

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Program parse();
  int line() const { return current().line; }

 private:
  using Kind = Token::Kind;
  class Nesting;

  // Tokens.
  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  void advance() { at_ = std::min(at_ + 1, tokens_.size() - 1); }
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  void expect_op(std::string_view op);
  void expect_name(std::string_view name);
  void expect_block_end();
  std::string take_name();
  [[noreturn]] void unexpected(std::string_view wanted) const;

  // Nodes.
  template <typename Node>
  const Expr* make(int line, Node node) {
    return &program_.exprs.emplace_back(Expr{line, std::move(node)});
  }
  template <typename Node>
  const Stmt* make_stmt(int line, Node node) {
    return &program_.stmts.emplace_back(Stmt{line, std::move(node)});
  }
  const Expr* constant(int line, Value value) { return make(line, Constant{std::move(value)}); }
  const Expr* name_node(int line, std::string_view name);
  Symbol intern(std::string_view name);

  // Statements.
  Body body(std::initializer_list<std::string_view> ends);
  const Stmt* statement();
  const Stmt* output();
  const Stmt* parse_if();
  const Stmt* parse_for();
  const Stmt* parse_set();
  const Stmt* parse_macro();
  const Stmt* parse_call_block();
  const Stmt* parse_filter_block();
  const Stmt* parse_with();
  const Stmt* parse_generation();
  const Stmt* parse_loop_control();
  Signature signature(std::string name);
  Body function_body(Signature& signature, std::string_view end);
  Target target(bool with_attribute, std::string_view end);
  Target single_target(bool with_attribute);

  // Expressions.
  const Expr* expression() { return conditional(); }
  const Expr* conditional();
  const Expr* logical_or();
  const Expr* logical_and();
  const Expr* logical_not();
  const Expr* comparison();
  const Expr* sum();
  const Expr* concat();
  const Expr* product();
  const Expr* power();
  const Expr* unary(bool with_filter);
  const Expr* primary();
  const Expr* tuple(bool with_conditional, std::string_view end_name, bool parenthesized);
  bool at_tuple_end(std::string_view end_name) const;
  const Expr* list_literal();
  const Expr* dict_literal();
  const Expr* string_literal();
  const Expr* integer_literal();
  const Expr* postfix(const Expr* node);
  const Expr* filters(const Expr* node);
  const Expr* filter(const Expr* input);
  const Expr* block_filter();
  const Expr* test(const Expr* input);
  const Expr* subscript(const Expr* object);
  const Expr* subscript_key();
  Call call_arguments();
  std::string dotted_name();

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  std::size_t nesting_ = 0;
  std::size_t loops_ = 0;  // around the current statement, inside its macro
  std::vector<bool> mentions_ = std::vector<bool>(4);  // well-known names in the current macro
  Program program_;
  std::unordered_map<std::string, Symbol> symbols_;
};

// Counts one level of nested blocks or expressions.
class Parser::Nesting {
 public:
  explicit Nesting(Parser& parser) : parser_(parser) {
    constexpr std::size_t kMaxNesting = 120;
    if (parser_.nesting_ >= kMaxNesting) Meter::exceeded("nested blocks or brackets", kMaxNesting);
    ++parser_.nesting_;
  }
  ~Nesting() { --parser_.nesting_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  Parser& parser_;
};

}  // namespace tessera::jinja
