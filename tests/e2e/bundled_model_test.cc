// The model that comes with Tessera, asked as a person asks it. Nothing here depends on time.
#include <array>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

#include "tests/e2e/served_model.h"

namespace tessera::testing {
namespace {

const std::string kBundled = TESSERA_SOURCE_DIR "/models/tessera-mini.gguf";
const std::string kProfile = TESSERA_SOURCE_DIR "/models/tessera-mini.spark.csv";

// A conversation of one message.
json user(const std::string& text) {
  return json::array({{{"role", "user"}, {"content", text}}});
}

// The first call of a message, {"name": ..., each argument's name: its text}, whether the server
// takes calls out of the text or not.
json called(const json& message) {
  if (message.contains("tool_calls")) {
    const json& function = message["tool_calls"][0]["function"];
    json found = json::parse(function["arguments"].get<std::string>(), nullptr, false);
    found["name"] = function["name"];
    return found;
  }
  const std::string text = message.value("content", "");
  static const std::regex kName("<function=([^>]*)>"),
      kArgument("<parameter=([^>]*)>\\s*([^<]*[^<\\s])\\s*</parameter>");
  std::smatch match;
  if (!std::regex_search(text, match, kName)) return {};
  json found = {{"name", match[1].str()}};
  for (std::sregex_iterator it(text.begin(), text.end(), kArgument), end; it != end; ++it)
    found[(*it)[1].str()] = (*it)[2].str();
  return found;
}

// A function of one parameter, with keys that the model never learned, and all of them in
// alphabetical order.
json tool(const char* name, const char* what, const char* parameter, const char* type) {
  return {{"type", "function"},
          {"function",
           {{"name", name},
            {"description", what},
            {"strict", true},
            {"parameters",
             {{"type", "object"},
              {"properties",
               {{parameter, {{"type", type}, {"description", parameter}, {"title", parameter}}}}},
              {"required", {parameter}}}}}}};
}

class BundledModel : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    served_ = new Served({"--parallel", "2", "--ctx", "8192"}, kBundled);
  }
  static void TearDownTestSuite() {
    delete served_;
    served_ = nullptr;
  }

  // The assistant's message to the end of its turn, greedily.
  static json answer(const json& messages, const json& more = json::object()) {
    const Reply reply = served_->chat(
        with({{"messages", messages}, {"temperature", 0}, {"max_tokens", 300}}, more));
    const json body = reply.json();
    EXPECT_EQ(reply.status, 200) << reply.body;
    if (!body.contains("choices")) return {{"content", ""}};
    EXPECT_NE(body["choices"][0]["finish_reason"], "length") << body;
    return body["choices"][0]["message"];
  }
  static std::string text(const json& message) {
    return message["content"].is_string() ? message["content"].get<std::string>() : "";
  }

  static Served* served_;
};
Served* BundledModel::served_ = nullptr;

TEST_F(BundledModel, SaysWhatItIs) {
  EXPECT_NE(text(answer(user("Who are you?"))).find("Tessera Mini"), std::string::npos);
}

// The exchange on README's first page.
TEST_F(BundledModel, AnswersAsTheReadmeShows) {
  const std::string said =
      text(answer(user("How do I see the plan?"), {{"enable_thinking", false}}));
  EXPECT_FALSE(said.empty());
  std::ifstream file(TESSERA_SOURCE_DIR "/README.md");
  const std::string readme{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(readme.find("\"content\":\"" + said + "\""), std::string::npos) << said;
}

TEST_F(BundledModel, KnowsTheProgram) {
  const std::string said = text(answer(user("What does --port do?")));
  EXPECT_NE(said.find("port to listen on"), std::string::npos) << said;
}

TEST_F(BundledModel, CountsWithItsStepsWrittenDown) {
  const std::string said = text(answer(user("What is 4738 + 2964?")));
  EXPECT_NE(said.find("8 + 4 + 0 = 12, write 2, carry 1"), std::string::npos) << said;
  EXPECT_NE(said.find("The result is 7702."), std::string::npos) << said;
}

TEST_F(BundledModel, SaysThatItCannot) {
  const std::string said = text(answer(user("Write a poem about the sea.")));
  EXPECT_NE(said.find("I cannot"), std::string::npos) << said;
}

TEST_F(BundledModel, KnowsWhatTheSecondOneIs) {
  const std::vector<std::array<std::string, 3>> lists = {
      {"My list: pear, lamp, fig\nWhat is the first one?", "The first one is pear.",
       "The second one is lamp."},
      {"Options: red, blue, green. What is the first one?", "The first one is red.",
       "The second one is blue."},
      {"I bought milk, bread and eggs. What is the last one?", "The last one is eggs.",
       "The second one is bread."},
      {"Sort this list: 30, 10, 20", "10, 20, 30", "The second one is 20."}};
  for (const auto& [question, first, second] : lists)
    for (const bool thinking : {false, true}) {
      const json options = {{"enable_thinking", thinking}};
      json messages = user(question);
      const std::string said = text(answer(messages, options));
      EXPECT_NE(said.find(first), std::string::npos)
          << question << " thinking " << thinking << ": " << said;
      messages.push_back({{"role", "assistant"}, {"content", first}});
      messages.push_back({{"role", "user"}, {"content", "And the second one?"}});
      const std::string then = text(answer(messages, options));
      EXPECT_NE(then.find(second), std::string::npos)
          << question << " thinking " << thinking << ": " << then;
    }
}

TEST_F(BundledModel, CallsAToolAndUsesItsResult) {
  const json tools = {tool("set_timer", "Starts a timer", "minutes", "integer"),
                      tool("get_weather", "Weather of a city", "city", "string")};
  json messages = user("What is the weather in Oslo?");
  const json message = answer(messages, {{"tools", tools}});
  EXPECT_EQ(called(message), (json{{"name", "get_weather"}, {"city", "Oslo"}})) << message;

  messages.push_back(
      {{"role", "assistant"},
       {"content", nullptr},
       {"tool_calls",
        {{{"id", "call_1"},
          {"type", "function"},
          {"function", {{"name", "get_weather"}, {"arguments", R"({"city": "Oslo"})"}}}}}}});
  messages.push_back({{"role", "tool"},
                      {"tool_call_id", "call_1"},
                      {"content", R"({"temperature": 7, "condition": "foggy"})"}});
  const std::string said = text(answer(messages, {{"tools", tools}}));
  EXPECT_NE(said.find("foggy"), std::string::npos) << said;
  EXPECT_NE(said.find(" 7"), std::string::npos) << said;
}

// What a person tries first. A phase of training that practises other functions can lose it while
// the scores rise.
TEST_F(BundledModel, CallsForEverydayRequestsHoweverTheyAreSaid) {
  const json tools = {tool("send_email", "Send an email", "to", "string"),
                      tool("get_weather", "Get the current weather", "location", "string"),
                      tool("set_timer", "Starts a timer", "minutes", "integer")};
  const std::pair<const char*, json> requests[] = {
      {"What is the weather in Oslo?", {{"name", "get_weather"}, {"location", "Oslo"}}},
      {"What's the weather like in Paris?", {{"name", "get_weather"}, {"location", "Paris"}}},
      {"How is the weather in Berlin today?", {{"name", "get_weather"}, {"location", "Berlin"}}},
      {"Weather in Chicago?", {{"name", "get_weather"}, {"location", "Chicago"}}},
      {"Is it raining in Rome?", {{"name", "get_weather"}, {"location", "Rome"}}},
      {"Set a timer for 10 minutes", {{"name", "set_timer"}, {"minutes", "10"}}},
      {"Start a 5 minute timer", {{"name", "set_timer"}, {"minutes", "5"}}}};
  for (const auto& [asked, wanted] : requests)
    for (const bool thinking : {false, true}) {
      json call =
          called(answer(user(asked), {{"tools", tools},
                                      {"chat_template_kwargs", {{"enable_thinking", thinking}}}}));
      for (auto& value : call)  // a number where the server takes calls out of the text
        if (!value.is_string()) value = value.dump();
      EXPECT_EQ(call, wanted) << asked << (thinking ? " (thinking)" : "");
    }
}

TEST_F(BundledModel, ExtractsFieldsAsJson) {
  const std::string said =
      text(answer(user("Extract name, age, city as JSON: Carla Weber is 52 years old and lives in "
                       "Prague. You can write to carla.drel@harbor.org."),
                  {{"chat_template_kwargs", {{"enable_thinking", false}}}}));
  const std::size_t begin = said.find('{');
  ASSERT_NE(begin, std::string::npos) << said;
  const json fields = json::parse(said.substr(begin), nullptr, false);
  EXPECT_EQ(fields, (json{{"name", "Carla Weber"}, {"age", 52}, {"city", "Prague"}})) << said;
}

// A text of more than 4000 tokens with six codes in it, and those of the first, the third and the
// last.
TEST_F(BundledModel, RecallsCodesFromALongText) {
  const char* people[] = {"Nora", "Emil", "Sofia", "Jonas", "Greta", "Pavel", "Ines"};
  const char* cities[] = {"Oslo", "Lima", "Genoa", "Kyoto", "Porto"};
  const char* days[] = {"Monday", "Sunday", "Friday"};
  const std::pair<const char*, const char*> codes[] = {
      {"silent harbor", "48213"}, {"golden tiger", "90577"}, {"rustic lantern", "36142"},
      {"brave willow", "75960"},  {"early comet", "11834"},  {"smooth bridge", "62095"}};
  std::string body = "Read this text and answer the question below.\n\n";
  for (unsigned i = 0; i < 442; ++i) {
    if (i % 73 == 30)
      body +=
          std::string("The code of ") + codes[i / 73].first + " is " + codes[i / 73].second + ". ";
    body += std::string(people[i * 3 % 7]) + " walks from " + cities[i * 7 % 5] + " to " +
            cities[(i * 7 + 1 + i % 4) % 5] + " on " + days[i % 3] + ". ";
  }
  for (const std::size_t i : {0u, 2u, 5u}) {
    const Reply reply =
        served_->chat({{"messages", user(body + "\n\nWhat is the code of " + codes[i].first + "?")},
                       {"temperature", 0},
                       {"max_tokens", 100}});
    ASSERT_EQ(reply.status, 200) << reply.body;
    const json body_of = reply.json();
    EXPECT_GE(body_of["usage"]["prompt_tokens"], 4000);
    const std::string said = text(body_of["choices"][0]["message"]);
    EXPECT_NE(said.find(codes[i].second), std::string::npos) << said;
  }
}

TEST_F(BundledModel, SaysTheSameWhereverItsLayersAndExpertsLie) {
  const auto said = [](std::vector<std::string> options) {
    std::vector<std::string> arguments = {"run",
                                          kBundled,
                                          "--temp",
                                          "0",
                                          "--json",
                                          "-p",
                                          "Sort this list: 812, 45, 377, 90, 4, 566, 231"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Outcome outcome = run_program({arguments});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out, nullptr, false);
  };
  const json alone = said({"--threads", "2"});
  ASSERT_TRUE(alone.contains("tokens"));
  EXPECT_GT(alone["tokens"].size(), 10u);
  const std::vector<std::vector<std::string>> placements = {
      {"--threads", "1"},
      {"--threads", "2", "--prefill-chunk", "7"},
      {"--threads", "2", "--target-devices", "cpu:0,cpu:1"},
      {"--threads", "2", "--target-devices", "cpu:0,cpu:1", "--target-layer-split", "5,3",
       "--prefill-chunk", "16"},
      {"--threads", "2", "--expert-resident", "0%"},
      {"--threads", "2", "--expert-resident", "50%", "--expert-profile", kProfile},
      {"--threads", "2", "--expert-resident", "25%", "--spawn-worker", "experts"}};
  for (const std::vector<std::string>& options : placements)
    EXPECT_EQ(said(options)["tokens"], alone["tokens"]) << json(options);
}

TEST(BundledModelAlone, IsWhatRunsWhenNoModelIsNamed) {
  const Outcome outcome = run_program(
      {{"run", "--temp", "0", "--threads", "2", "--log-level", "error", "-p", "Hello"}});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("Tessera Mini"), std::string::npos) << outcome.out;
}

}  // namespace
}  // namespace tessera::testing
