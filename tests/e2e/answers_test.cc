// What the server answers, with the real engine behind it.
#include "tests/e2e/served_model.h"

namespace tessera::testing {
namespace {

class Answers : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    served_ = new Served({"--parallel", "8", "--prefill-chunk", "32", "--ctx", "4096"});
  }
  static void TearDownTestSuite() {
    delete served_;
    served_ = nullptr;
  }
  static Served* served_;
};
Served* Answers::served_ = nullptr;

TEST_F(Answers, ChatStreamedAndWhole) {
  const json body = {{"messages", {{{"role", "user"}, {"content", "Hello"}}}},
                     {"max_tokens", 24},
                     {"temperature", 0},
                     {"ignore_eos", true}};
  const json whole = served_->chat(body).json();
  ASSERT_TRUE(whole.contains("choices")) << whole;
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(whole["usage"]["completion_tokens"], 24);
  EXPECT_GT(whole["usage"]["prompt_tokens"], 1);

  const Reply reply =
      served_->chat(with(body, {{"stream", true}, {"stream_options", {{"include_usage", true}}}}));
  EXPECT_TRUE(reply.complete);
  std::vector<std::string> events = http_test::sse_events(reply.body);
  ASSERT_GT(events.size(), 3u);
  EXPECT_EQ(events.back(), "[DONE]");
  events.pop_back();
  std::string text;
  json usage;
  for (const std::string& event : events) {
    const json chunk = json::parse(event, nullptr, false);
    for (const json& choice : chunk["choices"]) text += choice["delta"].value("content", "");
    if (!chunk["usage"].is_null()) usage = chunk["usage"];
  }
  EXPECT_EQ(text, whole["choices"][0]["message"]["content"]);
  EXPECT_EQ(usage, whole["usage"]);
}

TEST_F(Answers, LogprobsOfThePromptAreThoseOfTheAnswer) {
  const json ids = some_ids(40);
  const json answer = served_->complete(with(greedy(ids, 12), {{"logprobs", 2}})).json();
  ASSERT_TRUE(answer.contains("choices")) << answer;
  const json& generated = answer["choices"][0]["logprobs"];
  ASSERT_EQ(generated["tokens"].size(), 12u);

  std::string list;
  for (const json& id : ids) list += (list.empty() ? "" : ",") + id.dump();
  const Outcome outcome = run_program({{"run", tiny_model(), "--ids", list, "-n", "12", "--temp",
                                        "0", "--ignore-eos", "--json", "--threads", "2"}});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json ran = json::parse(outcome.out, nullptr, false);
  EXPECT_EQ(ran["text"], answer["choices"][0]["text"]);

  json all = ids;
  for (const json& id : ran["tokens"]) all.push_back(id);
  const json echoed =
      served_->complete(with(greedy(all, 1), {{"echo", true}, {"logprobs", 2}})).json();
  const json& prompt = echoed["choices"][0]["logprobs"];
  ASSERT_EQ(prompt["tokens"].size(), all.size() + 1);
  EXPECT_TRUE(prompt["token_logprobs"][0].is_null());
  for (std::size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(prompt["tokens"][ids.size() + i], generated["tokens"][i]) << i;
    EXPECT_NEAR(prompt["token_logprobs"][ids.size() + i].get<double>(),
                generated["token_logprobs"][i].get<double>(), 2e-2)
        << i;
  }
}

TEST_F(Answers, StopTextEndsTheAnswer) {
  const json body = greedy("Once", 60);
  const std::string text = served_->complete(body).json()["choices"][0]["text"];
  std::string stop;
  for (std::size_t i = 8; i + 1 < text.size() && stop.empty(); ++i) {
    if (std::isalpha(static_cast<unsigned char>(text[i])) != 0 &&
        std::isalpha(static_cast<unsigned char>(text[i + 1])) != 0) {
      stop = text.substr(i, 2);
    }
  }
  ASSERT_FALSE(stop.empty()) << text;
  const json cut = served_->complete(with(body, {{"stop", {stop}}})).json()["choices"][0];
  EXPECT_EQ(cut["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(cut["finish_reason"], "stop");
}

TEST_F(Answers, SeedsRepeatAndChoicesDiffer) {
  const json body = with(greedy("Once", 24), {{"temperature", 1.0}, {"seed", 7}});
  const json first = served_->complete(body).json()["choices"][0]["text"];
  EXPECT_EQ(served_->complete(body).json()["choices"][0]["text"], first);
  const json next = served_->complete(with(body, {{"seed", 8}})).json()["choices"][0]["text"];
  EXPECT_NE(next, first);
  const json pair = served_->complete(with(body, {{"n", 2}})).json()["choices"];
  ASSERT_EQ(pair.size(), 2u);
  EXPECT_EQ(pair[0]["text"], first);
  EXPECT_EQ(pair[1]["text"], next);
}

TEST_F(Answers, TogetherTheSameAsAlone) {
  std::vector<json> bodies;
  std::vector<json> alone;
  for (int i = 0; i < 8; ++i) {
    bodies.push_back(with(greedy(some_ids(5 + i * 37, i), 150), {{"logprobs", 0}}));
    alone.push_back(served_->complete(bodies.back()).json()["choices"]);
  }
  std::vector<std::unique_ptr<Client>> clients;
  for (const json& body : bodies) {
    clients.push_back(std::make_unique<Client>(served_->port()));
    clients.back()->send(http_test::post_request("/v1/completions", body.dump()));
  }
  for (std::size_t i = 0; i < clients.size(); ++i) {
    const json together = clients[i]->read_reply().json()["choices"];
    ASSERT_EQ(together.size(), 1u);
    EXPECT_EQ(together[0]["text"], alone[i][0]["text"]) << i;
    EXPECT_EQ(together[0]["logprobs"]["tokens"], alone[i][0]["logprobs"]["tokens"]) << i;
  }
}

}  // namespace
}  // namespace tessera::testing
