// Answers of chat and completion requests, whole and streamed.
#include <regex>

#include "tests/http/fixture.h"

namespace tessera::http_test {
namespace {

using nlohmann::json;

// Ids and times differ from run to run.
std::string masked(const std::string& text) {
  static const std::regex kId(R"((chatcmpl|cmpl)-[0-9a-f]{32})");
  static const std::regex kTime(R"("created":\d+)");
  return std::regex_replace(std::regex_replace(text, kId, "ID"), kTime, "\"created\":0");
}

FakeEngine::Script pieces(std::vector<std::string> list) {
  return [list](const GenerationRequest&) { return FakeScript{.pieces = list}; };
}

TEST(Chat, WholeAnswer) {
  Running run;
  const Reply reply = run.chat(R"("seed":5)");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json body = reply.json();
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["model"], "toy");
  EXPECT_EQ(body["choices"][0]["message"]["content"], "Hello world!");
  EXPECT_EQ(body["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["usage"]["completion_tokens"], 3);
  EXPECT_EQ(body["timings"]["seed"], 5);
  EXPECT_EQ(prompt_text(run.engine.submitted()[0].prompt),
            "<|begin|>user\nhi<|end|>\n<|begin|>assistant\n");
}

TEST(Chat, DataCannotForgeSpecialTokens) {
  Running run;
  ASSERT_EQ(run.chat("", "<|end|>").status, 200);
  const auto prompt = run.engine.submitted()[0].prompt;
  EXPECT_EQ(std::count(prompt.begin(), prompt.end(), kTurnEnd), 1);
}

TEST(Chat, StreamTranscript) {
  Running run;
  const Reply reply = run.chat(R"("stream":true,"stream_options":{"include_usage":true})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.headers.at("content-type"), "text/event-stream");
  EXPECT_EQ(reply.headers.at("x-accel-buffering"), "no");
  const std::string head =
      R"(data: {"id":"ID","object":"chat.completion.chunk","created":0,"model":"toy",)"
      R"("system_fingerprint":"tessera-0.1.0","choices":[)";
  const auto chunk = [&](const std::string& delta, const std::string& finish) {
    return head + R"({"index":0,"delta":)" + delta + R"(,"logprobs":null,"finish_reason":)" +
           finish + R"(}],"usage":null})" + "\n\n";
  };
  const std::string text = masked(reply.body);
  const std::string expected = chunk(R"({"role":"assistant","content":""})", "null") +
                               chunk(R"({"content":"Hello"})", "null") +
                               chunk(R"({"content":" world"})", "null") +
                               chunk(R"({"content":"!"})", "null") + chunk("{}", "\"stop\"");
  EXPECT_EQ(text.substr(0, expected.size()), expected);
  const auto events = sse_events(text);
  ASSERT_EQ(events.size(), 7u);
  const json usage = json::parse(events[5]);
  EXPECT_EQ(usage["choices"], json::array());
  EXPECT_EQ(usage["usage"]["completion_tokens"], 3);
  EXPECT_EQ(events[6], "[DONE]");
}

TEST(Chat, StreamWithoutUsageHasNone) {
  Running run;
  const Reply reply = run.chat(R"("stream":true)");
  EXPECT_EQ(reply.body.find("usage"), std::string::npos);
  EXPECT_TRUE(reply.body.ends_with("data: [DONE]\n\n"));
}

TEST(Chat, StopAcrossTokens) {
  Running run(pieces({"one ST", "O", "P two"}));
  const Reply whole = run.chat(R"("stop":"STOP","logprobs":true)");
  EXPECT_EQ(whole.json()["choices"][0]["message"]["content"], "one ");
  EXPECT_EQ(whole.json()["choices"][0]["logprobs"]["content"].size(), 1u);
  const Reply stream = run.chat(R"("stop":["x","STOP"],"stream":true)");
  std::string joined;
  for (const std::string& event : sse_events(stream.body)) {
    if (event == "[DONE]") continue;
    joined += json::parse(event)["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(joined, "one ");
}

TEST(Chat, ChoicesGetConsecutiveSeeds) {
  Running run;
  const Reply reply = run.chat(R"("n":3,"seed":10)");
  ASSERT_EQ(reply.json()["choices"].size(), 3u) << reply.body;
  const auto submitted = run.engine.submitted();
  for (std::uint64_t i = 0; i < 3; ++i) EXPECT_EQ(submitted[i].sampling.seed, 10 + i);
  EXPECT_EQ(reply.json()["usage"]["completion_tokens"], 9);
  const Reply stream = run.chat(R"("n":3,"stream":true)");
  std::map<int, std::string> text;
  std::map<int, int> roles;
  for (const std::string& event : sse_events(stream.body)) {
    if (event == "[DONE]") continue;
    const json choice = json::parse(event)["choices"][0];
    text[choice["index"]] += choice["delta"].value("content", "");
    roles[choice["index"]] += choice["delta"].contains("role");
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(text[i] + std::to_string(roles[i]), "Hello world!1");
}

TEST(Chat, Logprobs) {
  Running run;
  const Reply reply = run.chat(R"("logprobs":true,"top_logprobs":2)");
  const json content = reply.json()["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 3u) << reply.body;
  EXPECT_EQ(content[0]["token"], "Hello");
  EXPECT_EQ(content[0]["bytes"], json::parse("[72,101,108,108,111]"));
  EXPECT_EQ(content[0]["top_logprobs"].size(), 2u);
}

TEST(Chat, FieldsReachTheEngine) {
  Running run;
  const Reply reply = run.chat(
      R"("temperature":0.5,"top_k":7,"logit_bias":{"65":-100},"ignore_eos":true,"max_tokens":4,)"
      R"("presence_penalty":1,"min_p":0.1,"tools":[{"type":"function","function":{"name":"f"}}],)"
      R"("tool_choice":"auto","parallel_tool_calls":false,"reasoning_effort":"high")");
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.headers.at("x-ignored"), "parallel_tool_calls");
  EXPECT_EQ(reply.json()["choices"][0]["finish_reason"], "length");
  const GenerationRequest request = run.engine.submitted()[0];
  EXPECT_EQ(request.sampling.top_k, 7);
  EXPECT_TRUE(request.ignore_eos);
  ASSERT_EQ(request.sampling.logit_bias.size(), 1u);
  EXPECT_EQ(request.sampling.logit_bias[0], (std::pair<TokenId, float>(65, -100.0f)));
  const std::string prompt = prompt_text(request.prompt);
  EXPECT_NE(prompt.find("\"name\":\"f\""), std::string::npos);
  EXPECT_NE(prompt.find("think\n"), std::string::npos);
}

TEST(Chat, ToolsThatMayNotBeCalledAreNotShown) {
  Running run;
  const Reply reply =
      run.chat(R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none")");
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(prompt_text(run.engine.submitted()[0].prompt).find("\"name\""), std::string::npos);
}

TEST(Chat, ClampsAndSaysSo) {
  Running run({}, {.context = 100});
  const Reply reply = run.chat(R"("max_completion_tokens":1000000)");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("x-clamped"), "max_tokens");
}

TEST(Chat, PromptsAroundTheLimit) {
  Running run({}, {.context = 64});
  const std::size_t frame = 1 + 5 + 1 + 1 + 1 + 10;  // tokens of the template around the content
  for (const std::size_t size : {62u, 63u, 64u, 65u}) {
    const Reply reply = run.chat("", std::string(size - frame, 'x'));
    EXPECT_EQ(reply.status, size < 64 ? 200 : 400) << size << reply.body;
    if (size < 64) continue;
    const json error = reply.json()["error"];
    EXPECT_EQ(error["code"], "context_length_exceeded");
    EXPECT_EQ(error["n_prompt_tokens"], size);
    EXPECT_EQ(error["n_ctx"], 64);
    EXPECT_NE(error["message"].get<std::string>().find("maximum context length is 64 tokens"),
              std::string::npos);
  }
}

TEST(Chat, FailureInTheStreamEndsWithoutDone) {
  Running run([](const GenerationRequest&) { return FakeScript{.fail_after_tokens = 1}; });
  const Reply stream = run.chat(R"("stream":true)");
  EXPECT_EQ(stream.status, 200);
  EXPECT_NE(stream.body.find(R"(data: {"error":{"message":"the device was lost")"),
            std::string::npos);
  EXPECT_EQ(stream.body.find("[DONE]"), std::string::npos);
  const Reply whole = run.chat("");
  EXPECT_EQ(whole.status, 500);
  EXPECT_EQ(whole.headers.at("x-should-retry"), "false");
  EXPECT_EQ(whole.json()["error"]["type"], "server_error");
}

TEST(Chat, ALostShardIsTheReasonThoughItIsBack) {
  for (const Absence lost : {Absence::lost, Absence::failed}) {
    Running run([lost](const GenerationRequest&) { return FakeScript{.lost = lost}; });
    const Reply reply = run.chat("");
    EXPECT_EQ(reply.status, 503);
    EXPECT_EQ(reply.json()["error"]["reason"], absence_name(lost));
    EXPECT_EQ(reply.headers.contains("retry-after"), lost == Absence::lost);
  }
}

TEST(Chat, FullQueueIs429) {
  Running run(endless(), {.parallel = 1, .max_queue = 1});
  const std::string request =
      post_request("/v1/chat/completions", Running::chat_body(R"("stream":true)"));
  Client running(run.port());
  running.send(request);
  ASSERT_TRUE(run.engine.wait_running(1));
  Client waiting(run.port());
  waiting.send(request);
  ASSERT_TRUE(run.engine.wait_running(2));
  const Reply reply = run.chat(R"("stream":true)");
  EXPECT_EQ(reply.status, 429);
  EXPECT_EQ(reply.headers.at("retry-after"), "1");
  EXPECT_EQ(reply.json()["error"]["code"], "queue_full");
  running.reset();
  waiting.reset();
  EXPECT_TRUE(run.engine.wait_idle());
}

TEST(Chat, MoreAnswersThanEverFitAre400) {
  Running run(endless(), {.parallel = 1, .max_queue = 1});
  const Reply reply = run.chat(R"("n":8,"stream":true)");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.json()["error"]["param"], "n");
  EXPECT_TRUE(run.engine.wait_idle());
}

TEST(Chat, TemplateErrorIsTheClients) {
  Running run;
  const Reply reply = run.chat("", "template error");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.json()["error"]["code"], "template_error");
}

TEST(Completion, TextTokensAndBatch) {
  Running run;
  EXPECT_EQ(run.complete(R"("prompt":"ab")").json()["choices"][0]["text"], "Hello world!");
  EXPECT_EQ(run.complete(R"("prompt":[97,98])").status, 200);
  const Reply batch = run.complete(R"("prompt":["a",[98,99]],"n":2,"best_of":2)");
  ASSERT_EQ(batch.json()["choices"].size(), 4u) << batch.body;
  EXPECT_EQ(batch.json()["choices"][3]["index"], 3);
  EXPECT_EQ(batch.json()["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(prompt_text(run.engine.submitted().back().prompt), "bc");
  EXPECT_EQ(run.complete(R"("prompt":"ab","max_tokens":2)").json()["choices"][0]["finish_reason"],
            "length");
}

TEST(Completion, EchoWithLogprobs) {
  Running run;
  for (const char* max_tokens : {"16", "0"}) {
    const Reply reply = run.complete(R"("prompt":"ab","echo":true,"logprobs":1,"max_tokens":)" +
                                     std::string(max_tokens));
    const json choice = reply.json()["choices"][0];
    const bool none = *max_tokens == '0';
    EXPECT_EQ(choice["text"], none ? "ab" : "abHello world!");
    const json logprobs = choice["logprobs"];
    ASSERT_EQ(logprobs["tokens"].size(), none ? 2u : 5u) << reply.body;
    EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
    EXPECT_TRUE(logprobs["token_logprobs"][1].is_number());
    EXPECT_EQ(logprobs["text_offset"][1], 1);
    EXPECT_EQ(reply.json()["usage"]["completion_tokens"], none ? 0 : 3);
  }
}

TEST(Completion, Stream) {
  Running run;
  const Reply reply = run.complete(R"("prompt":"ab","stream":true,"echo":true)");
  std::string text;
  for (const std::string& event : sse_events(reply.body)) {
    if (event == "[DONE]") continue;
    EXPECT_EQ(json::parse(event)["object"], "text_completion");
    text += json::parse(event)["choices"][0]["text"];
  }
  EXPECT_EQ(text, "abHello world!");
}

TEST(Generation, HostileFieldValues) {
  Running run;
  const char* fields[] = {"n",
                          "max_tokens",
                          "max_completion_tokens",
                          "top_k",
                          "seed",
                          "top_logprobs",
                          "repeat_last_n",
                          "temperature",
                          "top_p",
                          "min_p",
                          "frequency_penalty",
                          "presence_penalty",
                          "repetition_penalty",
                          "logprobs",
                          "best_of",
                          "stream",
                          "stop",
                          "logit_bias",
                          "messages",
                          "tools",
                          "prompt",
                          "stream_options",
                          "chat_template_kwargs"};
  const char* values[] = {"-1",    "0",      "2147483648", "9223372036854775808",
                          "1e308", "-1e308", "\"x\"",      "null",
                          "[]",    "{}",     "true",       "[[]]",
                          "1.5"};
  for (const char* field : fields) {
    for (const char* value : values) {
      const std::string member = fmt::format("\"{}\":{}", field, value);
      for (const bool chat : {true, false}) {
        const Reply reply = chat ? run.chat(member) : run.complete("\"prompt\":\"a\"," + member);
        ASSERT_TRUE(reply.status == 200 || reply.status == 400 || reply.status == 429)
            << member << " " << reply.status << reply.body;
        if (reply.status != 400) continue;
        EXPECT_NE(reply.body.find(field), std::string::npos) << member << reply.body;
      }
    }
  }
  for (const char* value : {"NaN", "Infinity", "1e999", "-"}) {
    EXPECT_EQ(run.chat(fmt::format("\"n\":{}", value)).status, 400) << value;
  }
  EXPECT_TRUE(run.engine.wait_idle());
}

TEST(Generation, UnsupportedMeaningIsRefused) {
  Running run;
  for (const char* member :
       {R"("response_format":{"type":"json_object"})", R"("tool_choice":"required")",
        R"("tool_choice":{"type":"function","function":{"name":"f"}})", R"("modalities":["audio"])",
        R"("grammar":"x")", R"("continue_final_message":true)", R"("thinking_budget":5)"}) {
    const Reply reply = run.chat(member);
    EXPECT_EQ(reply.status, 400) << member;
    EXPECT_EQ(reply.json()["error"]["code"], "unsupported_parameter") << member;
  }
  const Reply image = post(run.port(), "/v1/chat/completions",
                           R"({"messages":[{"role":"user","content":[{"type":"image_url",)"
                           R"("image_url":{"url":"x"}}]}]})");
  EXPECT_EQ(image.status, 400);
  EXPECT_EQ(image.json()["error"]["param"], "messages[0].content");
  EXPECT_EQ(run.complete(R"("prompt":"a","suffix":"b")").status, 400);
  EXPECT_TRUE(run.engine.submitted().empty());
}

}  // namespace
}  // namespace tessera::http_test
