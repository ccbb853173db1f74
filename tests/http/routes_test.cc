// Routes, keys, origins, health, metrics, models and text conversion.
#include "tests/http/fixture.h"

namespace tessera::http_test {
namespace {

TEST(Routes, ErrorsHaveTheOpenAiShape) {
  Running run;
  const Reply unknown = get(run.port(), "/v1/nothing");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(unknown.json()["error"]["type"], "not_found_error");
  const Reply method = get(run.port(), "/v1/chat/completions");
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(method.headers.at("allow"), "POST, OPTIONS");
  for (const char* path : {"/v1/responses", "/v1/messages", "/v1/embeddings", "/rerank"}) {
    const Reply reply = post(run.port(), path, "{}");
    EXPECT_EQ(reply.status, 501) << path;
    EXPECT_EQ(reply.json()["error"]["code"], "not_supported");
  }
  EXPECT_EQ(post(run.port(), "/v1/completions", "{").status, 400);
  EXPECT_EQ(post(run.port(), "/v1/completions", "[]").status, 400);
}

TEST(Routes, PrefixSlashAndQueryAreOptional) {
  Running run;
  for (const char* path : {"/v1/models", "/models", "/v1/models/", "/models?beta=true"}) {
    EXPECT_EQ(get(run.port(), path).json()["data"][0]["id"], "toy") << path;
  }
  EXPECT_EQ(get(run.port(), "/v1/models/toy").json()["context_length"], 4096);
  EXPECT_EQ(get(run.port(), "/v1/models/t%6Fy").status, 200);
  EXPECT_EQ(get(run.port(), "/v1/models/x").json()["error"]["code"], "model_not_found");
  EXPECT_EQ(get(run.port(), "/props").json()["plan"]["device"], "none");
}

TEST(Routes, RequestIds) {
  Running run;
  EXPECT_EQ(get(run.port(), "/health", "X-Request-Id: abc-1\r\n").headers.at("x-request-id"),
            "abc-1");
  const Reply odd = get(run.port(), "/health", "X-Request-Id: a b\r\n");
  EXPECT_TRUE(odd.headers.at("x-request-id").starts_with("req_"));
}

TEST(Routes, KeysAreChecked) {
  server::ServerOptions options;
  options.api_keys = {"one", "secret"};
  Running run({}, {}, options);
  EXPECT_EQ(get(run.port(), "/health").status, 200);
  EXPECT_EQ(get(run.port(), "/metrics").status, 200);
  for (const char* header : {"", "Authorization: Bearer wrong\r\n", "x-api-key: secre\r\n",
                             "Authorization: Bearer\r\n", "x-api-key: secretsecret\r\n"}) {
    const Reply reply = get(run.port(), "/v1/models", header);
    EXPECT_EQ(reply.status, 401) << header;
    EXPECT_EQ(reply.json()["error"]["code"], "invalid_api_key");
  }
  EXPECT_EQ(get(run.port(), "/v1/models", "Authorization: Bearer secret\r\n").status, 200);
  EXPECT_EQ(get(run.port(), "/v1/models", "x-api-key: one\r\n").status, 200);
}

TEST(Routes, OpenAddressesNeedAKey) {
  MetricsRegistry metrics;
  server::ServerOptions options;
  options.host = "0.0.0.0";
  options.port = 0;
  const auto refused = server::Server::start(options, metrics);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("API key"), std::string::npos);
  options.insecure = true;
  EXPECT_TRUE(server::Server::start(options, metrics).ok());
}

TEST(Routes, CrossOrigin) {
  server::ServerOptions options;
  options.cors_origins = {"http://a.test"};
  options.api_keys = {"k"};
  Running run({}, {}, options);
  Client client(run.port());
  client.send(
      "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: t\r\nOrigin: http://a.test\r\n"
      "Access-Control-Request-Headers: Authorization, X-Evil, x-stainless-os\r\n\r\n");
  Reply reply = client.read_reply();
  EXPECT_EQ(reply.status, 204);
  EXPECT_EQ(reply.headers.at("access-control-allow-origin"), "http://a.test");
  EXPECT_EQ(reply.headers.at("access-control-allow-headers"), "authorization, x-stainless-os");
  reply = get(run.port(), "/health", "Origin: http://b.test\r\n");
  EXPECT_FALSE(reply.headers.contains("access-control-allow-origin"));
  EXPECT_EQ(reply.headers.at("vary"), "Origin");
}

TEST(Routes, HealthFollowsTheState) {
  Running run({}, {}, {}, false);
  Reply reply = get(run.port(), "/health");
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.json()["status"], "loading");
  reply = run.chat("");
  EXPECT_EQ(reply.status, 503);
  EXPECT_TRUE(reply.headers.contains("retry-after"));
  EXPECT_EQ(reply.json()["error"]["code"], "loading");
  run.server->set_ready(toy_model(), run.engine);
  EXPECT_EQ(get(run.port(), "/v1/health").json()["status"], "ok");
  EXPECT_EQ(get(run.port(), "/ready").status, 200);
  const std::string line = "worker:0 is away (backoff): signal 9 (Killed)";
  run.engine.set_away({line}, false);
  reply = get(run.port(), "/health");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.json()["status"], "degraded");
  EXPECT_EQ(reply.json()["away"][0], line);
  EXPECT_FALSE(reply.json().contains("fault"));
  EXPECT_EQ(get(run.port(), "/ready").status, 200);
  EXPECT_EQ(get(run.port(), "/props").json()["away"][0], line);
  run.engine.set_away({line}, true);
  reply = get(run.port(), "/health");
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.json()["status"], "recovering");
  EXPECT_EQ(reply.json()["fault"], line);
  EXPECT_TRUE(reply.headers.contains("retry-after"));
  EXPECT_EQ(get(run.port(), "/ready").status, 503);
  reply = run.chat("");
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.json()["error"]["code"], "unavailable");
  EXPECT_EQ(reply.json()["error"]["reason"], "shard_lost");
  EXPECT_EQ(reply.json()["error"]["message"], line);
  EXPECT_TRUE(reply.headers.contains("retry-after"));
  run.engine.set_away({line}, true, Absence::mismatch);
  EXPECT_EQ(run.chat("").json()["error"]["reason"], "handshake_mismatch");
  run.engine.set_away({line}, true, Absence::failed);
  reply = run.chat("");
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.json()["error"]["reason"], "shard_failed");
  EXPECT_FALSE(reply.headers.contains("retry-after"));
  reply = get(run.port(), "/health");
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.json()["status"], "error");
  EXPECT_EQ(reply.json()["fault"], line);
  EXPECT_FALSE(reply.headers.contains("retry-after"));
  run.engine.set_away({}, true);
  EXPECT_EQ(get(run.port(), "/health").json(), nlohmann::json::parse(R"({"status":"ok"})"));
  run.engine.break_down("the GPU fell off the bus");
  reply = get(run.port(), "/health");
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.json()["fault"], "the GPU fell off the bus");
  EXPECT_EQ(run.chat("").status, 500);
}

TEST(Routes, Metrics) {
  Running run;
  ASSERT_EQ(run.chat("").status, 200);
  const std::string page = get(run.port(), "/metrics").body;
  for (const char* line :
       {"tessera_requests_total{route=\"/v1/chat/completions\",status=\"200\"} 1\n",
        "tessera_requests_running 0\n", "tessera_e2e_seconds_count 1\n",
        "tessera_http_ttft_seconds_count 1\n"}) {
    EXPECT_NE(page.find(line), std::string::npos) << line << page;
  }
}

TEST(Text, TokenizeDetokenizeTemplate) {
  Running run;
  EXPECT_EQ(post(run.port(), "/tokenize", R"({"content":"a<|end|>"})").json()["tokens"],
            nlohmann::json::parse("[97,257]"));
  EXPECT_EQ(post(run.port(), "/tokenize", R"({"content":"é","with_pieces":true})")
                .json()["tokens"][0]["piece"],
            nlohmann::json::parse("[195]"));
  EXPECT_EQ(post(run.port(), "/tokenize", R"({"messages":[{"role":"user","content":"x"}]})").status,
            200);
  EXPECT_EQ(post(run.port(), "/detokenize", R"({"tokens":[97,98]})").json()["content"], "ab");
  EXPECT_EQ(post(run.port(), "/detokenize", R"({"tokens":[-1]})").status, 400);
  EXPECT_EQ(post(run.port(), "/detokenize", R"({"tokens":[99999]})").status, 400);
  EXPECT_EQ(post(run.port(), "/detokenize", "{}").status, 400);
  EXPECT_EQ(post(run.port(), "/apply-template",
                 R"({"messages":[{"role":"developer","content":[{"type":"text","text":"x"}]}]})")
                .json()["prompt"],
            "<|begin|>system\nx<|end|>\n<|begin|>assistant\n");
}

}  // namespace
}  // namespace tessera::http_test
