// The syntax tree of a template. Nodes are owned by Program in flat storage and refer to each other
// by plain pointers, so a tree of any shape is destroyed without recursion. Immutable once parsed.
#pragma once

#include <deque>
#include <string>
#include <variant>
#include <vector>

#include "text/jinja/value.h"

namespace tessera::jinja {

struct Expr;
struct Stmt;
using Body = std::vector<const Stmt*>;
using Symbol = std::uint32_t;  // a variable name, numbered by Program

struct Call {
  std::vector<const Expr*> positional;
  std::vector<std::pair<std::string, const Expr*>> named;
  const Expr* more_positional = nullptr;  // *args
  const Expr* more_named = nullptr;       // **kwargs
};

struct Constant {
  Value value;
};
struct Name {
  Symbol symbol;
};
struct Sequence {
  std::vector<const Expr*> elements;
  List::Flavour flavour;
};
struct Mapping {
  std::vector<std::pair<const Expr*, const Expr*>> entries;
};
struct Attribute {
  const Expr* object;
  std::string name;
};
struct Item {
  const Expr* object;
  const Expr* key;
};
struct Slice {
  const Expr* start;
  const Expr* stop;
  const Expr* step;
};  // null where left out
struct CallExpr {
  const Expr* callee;
  Call call;
};
struct FilterExpr {
  const Expr* input;
  std::string name;
  Call call;
};  // no input in a block filter
struct TestExpr {
  const Expr* input;
  std::string name;
  Call call;
  bool negated;
};
enum class UnaryOp { plus, minus, logical_not };
struct Unary {
  UnaryOp op;
  const Expr* operand;
};
enum class BinaryOp { add, subtract, multiply, divide, floor_divide, modulo, power };
struct Binary {
  BinaryOp op;
  const Expr* left;
  const Expr* right;
};
enum class CompareOp { eq, ne, lt, le, gt, ge, in, not_in };
struct Compare {
  const Expr* first;
  std::vector<std::pair<CompareOp, const Expr*>> rest;
};
struct Logic {
  bool is_and;
  const Expr* left;
  const Expr* right;
};
struct Concat {
  std::vector<const Expr*> parts;
};
struct Conditional {
  const Expr* condition;
  const Expr* yes;
  const Expr* no;
};  // no may be null

struct Expr {
  int line;
  std::variant<Constant, Name, Sequence, Mapping, Attribute, Item, Slice, CallExpr, FilterExpr,
               TestExpr, Unary, Binary, Compare, Logic, Concat, Conditional>
      node;
};

// What can stand left of `=`: a name, name.attribute of a namespace, or a tuple of targets.
struct Target {
  enum class Kind { name, attribute, tuple } kind;
  Symbol symbol;
  std::string attribute;
  std::vector<Target> elements;
};

struct Parameter {
  Symbol symbol;
  std::string name;
  const Expr* otherwise;
};  // otherwise may be null
struct Signature {
  std::string name;
  std::vector<Parameter> parameters;
  bool uses_caller = false;  // the body mentions these names, so they are bound
  bool uses_varargs = false;
  bool uses_kwargs = false;
};

struct Data {
  Value text;
};
struct Output {
  std::vector<const Expr*> parts;
};
struct If {
  std::vector<std::pair<const Expr*, Body>> branches;
  Body otherwise;
};
struct For {
  Target target;
  const Expr* items;
  const Expr* filter;  // may be null
  bool recursive;
  Body body;
  Body otherwise;
};
struct Set {
  Target target;
  const Expr* value;
};
struct SetBlock {
  Target target;
  const Expr* filter;
  Body body;
};  // filter may be null
struct Macro {
  Symbol symbol;
  Signature signature;
  Body body;
};
struct CallBlock {
  Signature signature;
  const Expr* call;
  Body body;
};
struct FilterBlock {
  const Expr* filter;
  Body body;
};
struct With {
  std::vector<std::pair<Target, const Expr*>> values;
  Body body;
};  // also generation
struct Break {};
struct Continue {};

struct Stmt {
  int line;
  std::variant<Data, Output, If, For, Set, SetBlock, Macro, CallBlock, FilterBlock, With, Break,
               Continue>
      node;
};

// Names that the evaluator itself binds, interned first in this order.
enum WellKnown : Symbol { kLoop, kCaller, kVarargs, kKwargs };

struct Program {
  Program();
  Symbol intern(std::string_view name);

  std::vector<std::string> symbols;
  std::deque<Expr> exprs;
  std::deque<Stmt> stmts;
  Body body;
};

}  // namespace tessera::jinja
