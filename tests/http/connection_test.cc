// Hostile and unlucky clients: limits, slow ones, those that go away in each phase, pipelining,
// drain.
#include <thread>

#include "tests/http/fixture.h"

namespace tessera::http_test {
namespace {

using std::chrono::milliseconds;

server::ServerOptions quick_options() {
  server::ServerOptions options;
  options.timeouts.header = milliseconds(300);
  options.timeouts.body_idle = milliseconds(300);
  options.timeouts.keep_alive = milliseconds(400);
  return options;
}

const std::string kStream =
    post_request("/v1/chat/completions", Running::chat_body("\"stream\":true"));
const std::string kWhole = post_request("/v1/chat/completions", Running::chat_body(""));

TEST(Connection, KeepAliveAndPipelining) {
  Running run;
  Client client(run.port());
  std::string all;
  for (int i = 0; i < 50; ++i) all += get_request("/v1/models") + kWhole;
  ASSERT_TRUE(client.send(all));
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(client.read_reply().json()["object"], "list");
    EXPECT_EQ(client.read_reply().json()["object"], "chat.completion");
  }
}

TEST(Connection, HeadAndBodyInSingleBytes) {
  Running run;
  Client client(run.port());
  for (const char c : kWhole) ASSERT_TRUE(client.send({&c, 1}));
  EXPECT_EQ(client.read_reply().status, 200);
}

TEST(Connection, ChunkedBody) {
  Running run;
  Client client(run.port());
  client.send(
      "POST /tokenize HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
      "5\r\n{\"con\r\ne\r\ntent\":\"abcde\"}\r\n0\r\n\r\n");
  EXPECT_EQ(client.read_reply().json()["count"], 5);
}

TEST(Connection, ExpectContinue) {
  Running run;
  Client client(run.port());
  client.send(
      "POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 15\r\nExpect: 100-continue\r\n\r\n");
  ASSERT_TRUE(client.read_until("100 Continue\r\n\r\n"));
  client.send("{\"content\":\"a\"}");
  EXPECT_EQ(client.read_reply().status, 200);
}

TEST(Connection, HugeContentLengthIsRefusedUnread) {
  Running run;
  Client client(run.port());
  client.send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 1073741824\r\n\r\n{");
  const Reply reply = client.read_reply();
  EXPECT_EQ(reply.status, 413);
  EXPECT_EQ(reply.json()["error"]["code"], "request_too_large");
  EXPECT_EQ(reply.headers.at("connection"), "close");
}

TEST(Connection, ChunkedBodyOverTheLimit) {
  server::ServerOptions options;
  options.max_body = 1000;
  Running run({}, {}, options);
  Client client(run.port());
  client.send("POST /tokenize HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 20; ++i) client.send("64\r\n" + std::string(100, 'x') + "\r\n");
  EXPECT_EQ(client.read_reply().status, 413);
}

TEST(Connection, HugeHeadIs431) {
  Running run;
  const Reply reply = get(run.port(), "/v1/models", "X-Long: " + std::string(70'000, 'x') + "\r\n");
  EXPECT_EQ(reply.status, 431);
}

TEST(Connection, NotHttp) {
  Running run;
  Client client(run.port());
  client.send("\x16\x03\x01 hello\r\n\r\n");
  EXPECT_EQ(client.read_reply().status, 400);
  EXPECT_TRUE(client.closed_by_peer());
}

TEST(Connection, DeepNestingAndManyMembers) {
  Running run;
  const std::string deep(100'000, '[');
  EXPECT_EQ(post(run.port(), "/v1/completions", deep).status, 400);
  std::string wide = "{\"a\":0";
  for (int i = 0; i < 30'000; ++i) wide += ",\"a" + std::to_string(i) + "\":0";
  EXPECT_EQ(post(run.port(), "/v1/completions", wide + "}").status, 400);
}

TEST(Connection, SlowHeadAndSlowBodyTimeOut) {
  Running run({}, {}, quick_options());
  Client head(run.port());
  head.send("GET /v1/mod");
  EXPECT_EQ(head.read_reply().status, 408);
  EXPECT_TRUE(head.closed_by_peer());
  Client body(run.port());
  body.send("POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\n{");
  EXPECT_EQ(body.read_reply().status, 408);
  Client idle(run.port());
  EXPECT_TRUE(idle.closed_by_peer());
}

TEST(Connection, PingsWhilePrefilling) {
  server::ServerOptions options;
  options.timeouts.ping = milliseconds(50);
  Running run([](const GenerationRequest&) { return FakeScript{.prefill_steps = 300}; }, {},
              options);
  Client client(run.port());
  client.send(kStream);
  const Reply reply = client.read_reply();
  EXPECT_TRUE(reply.body.starts_with(": ping\n\n")) << reply.body;
  EXPECT_TRUE(reply.body.ends_with("data: [DONE]\n\n"));
}

// Each phase: the client closes, and the engine is free at once.
TEST(Disconnect, FreesTheSlotInEveryPhase) {
  for (const int prefill : {1, 1'000'000}) {
    for (const std::string& request : {kStream, kWhole}) {
      for (const bool reset : {false, true}) {
        Running run(endless(prefill));
        {
          Client client(run.port());
          client.send(request);
          ASSERT_TRUE(run.engine.wait_running(1));
          if (reset) client.reset();
        }
        EXPECT_TRUE(run.engine.wait_idle()) << prefill << reset << request;
        EXPECT_EQ(run.engine.cancelled(), 1);
      }
    }
  }
}

TEST(Disconnect, FreesTheQueueAndAllChoices) {
  Running run(endless(), {.parallel = 1});
  Client first(run.port());
  first.send(kStream);
  ASSERT_TRUE(run.engine.wait_running(1));
  {
    Client second(run.port());
    second.send(post_request("/v1/chat/completions", Running::chat_body("\"n\":3")));
    ASSERT_TRUE(run.engine.wait_running(4));
    first.reset();
  }
  EXPECT_TRUE(run.engine.wait_idle());
  EXPECT_EQ(run.engine.cancelled(), 4);
}

TEST(Disconnect, HalfCloseIsNotOne) {
  server::ServerOptions options;
  options.timeouts.linger = milliseconds(200);
  Running run([](const GenerationRequest&) { return FakeScript{.prefill_steps = 1000}; }, {},
              options);
  for (const std::string& request : {kStream, kWhole}) {
    Client client(run.port());
    client.send(request);
    ASSERT_TRUE(run.engine.wait_running(1));
    client.shut_down_sending();
    const Reply reply = client.read_reply();
    EXPECT_EQ(reply.status, 200);
    EXPECT_TRUE(reply.complete);
    EXPECT_NE(reply.body.find("!"), std::string::npos);
    EXPECT_TRUE(client.closed_by_peer());
  }
  EXPECT_EQ(run.engine.cancelled(), 0);
}

TEST(Disconnect, CancelStorm) {
  Running run(endless(), {.max_queue = 1000});
  for (int i = 0; i < 200; ++i) {
    Client client(run.port());
    client.send(i % 2 ? kStream : kWhole);
    if (i % 3 == 0) client.reset();
  }
  EXPECT_TRUE(run.engine.wait_idle());
  EXPECT_EQ(get(run.port(), "/health").status, 200);
}

TEST(Connection, SlowReaderIsDropped) {
  server::ServerOptions options;
  options.max_output = 64 << 10;
  options.timeouts.send_stall = std::chrono::minutes(10);
  Running run(
      [](const GenerationRequest&) {
        return FakeScript{.pieces = {std::string(100'00, 'x')}, .repeat = true};
      },
      {}, options);
  Client client(run.port(), 4096);
  client.send(kStream);
  ASSERT_TRUE(run.engine.wait_running(1));
  for (int i = 0; i < 600 && run.engine.cancelled() == 0; ++i) {
    std::this_thread::sleep_for(milliseconds(100));
  }
  EXPECT_EQ(run.engine.cancelled(), 1);
}

TEST(Connection, LimitMakesRoomFromIdleOnes) {
  server::ServerOptions options;
  options.max_connections = 4;
  Running run(endless(), {}, options);
  Client idle(run.port());
  idle.send(get_request("/health"));
  EXPECT_EQ(idle.read_reply().status, 200);
  std::vector<std::unique_ptr<Client>> busy;
  for (int i = 0; i < 4; ++i) {
    busy.push_back(std::make_unique<Client>(run.port()));
    busy.back()->send(kStream);
    EXPECT_TRUE(busy.back()->read_until("data: "));
  }
  EXPECT_TRUE(idle.closed_by_peer());
  Client extra(run.port());
  EXPECT_EQ(extra.read_reply().status, 503);
}

TEST(Drain, LetsRunningOnesEndThenCutsThem) {
  for (const bool ends : {true, false}) {
    Running run(ends ? [](const GenerationRequest&) { return FakeScript{.prefill_steps = 100}; }
                     : endless());
    Client client(run.port());
    client.send(kStream);
    ASSERT_TRUE(client.read_until("\r\n\r\n"));
    Client idle(run.port());
    run.server->drain(milliseconds(ends ? 60'000 : 100));
    run.server->wait();
    const Reply reply = client.read_reply();
    EXPECT_EQ(reply.body.ends_with("data: [DONE]\n\n"), ends) << reply.body;
    EXPECT_EQ(reply.body.find("shutting down") == std::string::npos, ends);
    EXPECT_TRUE(idle.closed_by_peer());
    EXPECT_TRUE(run.engine.wait_idle());
  }
}

// Who asks meanwhile is told, on an old connection or a new one, and that the answer is the last.
TEST(Drain, RefusesNewRequestsWhileOthersEnd) {
  Running run(endless());
  Client running(run.port()), idle(run.port()), half(run.port());
  running.send(kStream);
  ASSERT_TRUE(run.engine.wait_running(1));
  half.send("POST /tokenize HTTP/1.1\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n");
  ASSERT_TRUE(half.read_until("100 Continue\r\n\r\n"));
  std::thread drainer([&] { run.server->drain(std::chrono::minutes(1)); });
  for (int i = 0; i < 6000 && get(run.port(), "/health").status == 200; ++i)
    std::this_thread::sleep_for(milliseconds(10));
  for (const char* path : {"/health", "/ready"}) {
    const Reply reply = get(run.port(), path);
    EXPECT_EQ(reply.status, 503);
    EXPECT_EQ(reply.json()["status"], "draining");
    EXPECT_EQ(reply.headers.at("connection"), "close");
  }
  EXPECT_EQ(get(run.port(), "/metrics").status, 200);
  idle.send(kWhole);
  for (const Reply& reply :
       {half.read_reply(), idle.read_reply(), post(run.port(), "/v1/completions", "{}")}) {
    EXPECT_EQ(reply.status, 503);
    EXPECT_EQ(reply.json()["error"]["message"], "the server is shutting down");
  }
  EXPECT_EQ(run.engine.cancelled(), 0) << "what runs goes on";
  Client silent(run.port());
  running.reset();
  drainer.join();
  EXPECT_TRUE(silent.closed_by_peer()) << "is not waited for";
  EXPECT_EQ(get(run.port(), "/health").status, 0);
}

}  // namespace
}  // namespace tessera::http_test
