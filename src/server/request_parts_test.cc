// The parts of a request that need no socket: JSON limits, fields, messages, the HTTP parser,
// alignment.
#include <gtest/gtest.h>

#include "server/chat_messages.h"
#include "server/choice_output.h"
#include "server/request_parser.h"
#include "server/routes.h"

namespace tessera::server {
namespace {

TEST(JsonBody, Limits) {
  EXPECT_TRUE(parse_json_body(std::string(128, '[') + std::string(128, ']')).ok());
  EXPECT_FALSE(parse_json_body(std::string(129, '[') + std::string(129, ']')).ok());
  EXPECT_TRUE(parse_json_body(R"({"a":"[[[[{{{{\"[["})", {.depth = 1}).ok());
  EXPECT_FALSE(parse_json_body("[1,2,3]", {.values = 2}).ok());
  EXPECT_FALSE(parse_json_body(R"({"a":1,"b":2})", {.member_work = 3}).ok());
  EXPECT_TRUE(parse_json_body(R"({"a":1,"b":2})", {.member_work = 4}).ok());
  for (const char* text : {"", "{", "\"", "\"\\", "nul", "1e999", "\"\xFF\"", "{}{}"}) {
    EXPECT_FALSE(parse_json_body(text).ok()) << text;
  }
}

TEST(Fields, FirstFailureNamesFieldValueAndRange) {
  const Json body = {{"n", 0}, {"t", 9.0}, {"whole", 3.0}, {"none", nullptr}};
  FieldReader fields(body);
  EXPECT_EQ(fields.integer("whole", 1, 5), 3);
  EXPECT_FALSE(fields.integer("none", 1, 5).has_value());
  EXPECT_TRUE(fields.ok());
  fields.integer("n", 1, 8);
  fields.number("t", 0, 2);
  ASSERT_FALSE(fields.ok());
  EXPECT_EQ(fields.error().message, "n is 0; it must be an integer from 1 to 8");
  EXPECT_EQ(fields.error().param, "n");
}

TEST(Fields, StrictModeKnowsWhatWasRead) {
  const Json body = {{"a", 1}, {"b", 2}};
  FieldReader fields(body);
  fields.integer("a", 0, 5);
  fields.ignore({"b"});
  fields.refuse_unknown();
  EXPECT_TRUE(fields.ok());
}

TEST(Messages, CanonicalForm) {
  const Json body = Json::parse(R"({"messages":[
    {"role":"developer","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
    {"role":"assistant","content":null,"reasoning":"r","tool_calls":[
      {"id":"1","type":"function","function":{"name":"f","arguments":"{\"z\":1,\"a\":2}"}}]},
    {"role":"function","name":"f","content":"ok"}]})");
  FieldReader fields(body);
  const Json messages = read_messages(fields);
  ASSERT_TRUE(fields.ok()) << fields.error().message;
  EXPECT_EQ(messages[0].dump(), R"({"role":"system","content":"ab"})");
  EXPECT_EQ(messages[1].dump(),
            R"({"role":"assistant","content":"","reasoning_content":"r","tool_calls":[{"id":"1",)"
            R"("type":"function","function":{"name":"f","arguments":{"z":1,"a":2}}}]})");
  EXPECT_EQ(messages[2]["role"], "tool");
}

TEST(RequestParser, PiecewiseAndPipelined) {
  const std::string text =
      "POST /v1/x/?q=1 HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\n\r\n";
  for (std::size_t piece = 1; piece <= text.size(); ++piece) {
    RequestParser parser({.header = 1000, .body = 100});
    std::string buffer;
    std::size_t begin = 0;
    while (begin < text.size() && parser.state() != RequestParser::State::complete) {
      buffer += text.substr(begin, piece);
      begin += piece;
      for (int i = 0; i < 2; ++i) {
        buffer.erase(0, parser.feed(buffer));
        if (parser.state() == RequestParser::State::head) parser.read_body();
      }
    }
    ASSERT_EQ(parser.state(), RequestParser::State::complete) << piece;
    EXPECT_EQ(parser.request().path, "/v1/x");
    EXPECT_EQ(parser.request().query, "q=1");
    EXPECT_EQ(parser.request().body, "abc");
  }
}

TEST(RequestParser, RefusesAmbiguousLengths) {
  RequestParser parser({.header = 1000, .body = 100});
  parser.feed("POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n");
  EXPECT_EQ(parser.state(), RequestParser::State::failed);
  EXPECT_EQ(parser.failure_status(), 400);
}

TEST(ChoiceOutput, TokensFollowTheTextThatIsShown) {
  ChoiceOutput output(true);
  GenerationEvent event;
  event.tokens = {{.id = 1, .piece = "ab"}, {.id = 2, .piece = "cd"}};
  event.text = "ab";
  EXPECT_EQ(output.feed(event).tokens.size(), 1u);
  GenerationEvent end;
  end.text = "";
  end.finish = Finish{.stop_string = "cd"};
  EXPECT_TRUE(output.feed(end).tokens.empty());
}

TEST(Routes, Lookup) {
  EXPECT_EQ(find_route("/v1/chat/completions")->route->id, RouteId::chat);
  EXPECT_EQ(find_route("/chat/completions")->route->id, RouteId::chat);
  EXPECT_EQ(find_route("/v1/models/a%2Fb")->argument, "a/b");
  EXPECT_FALSE(find_route("/v1").has_value());
  EXPECT_FALSE(find_route("/v1chat/completions").has_value());
}

}  // namespace
}  // namespace tessera::server
