// GenerationExchange: one chat or completion request from its body to its answer.
//
// body -> (worker) prepare -> (I/O) submit each choice to the engine -> events, posted from the
// engine's thread to the I/O thread -> reply. A streamed answer's head goes out when every choice
// was admitted, so that all earlier failures keep their status. When the client goes away, or one
// choice fails, all choices are cancelled.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "server/executors.h"
#include "server/prepare.h"
#include "server/server_metrics.h"

namespace tessera::server {

enum class GenerationKind { chat, completion };

class GenerationExchange : public Exchange,
                           public std::enable_shared_from_this<GenerationExchange> {
 public:
  struct Setup {
    std::shared_ptr<const ServedModel> model;
    Engine& engine;
    const Executors& executors;
    ServerMetrics& metrics;
    RequestLimits limits;
    std::string fingerprint;
  };

  GenerationExchange(Setup setup, ResponseWriter& writer);
  void start(GenerationKind kind, std::string body);

  void disconnected() override;
  void shut_down() override;

 private:
  using Clock = std::chrono::steady_clock;
  struct Choice {
    RequestId id = 0;
    bool open = true;
  };

  void prepared(Prepared result);
  void submit(PreparedGeneration prepared);
  void on_event(std::size_t choice, GenerationEvent event);
  double age() const;  // seconds since the body was complete
  void finish();
  void fail(const ApiError& error);
  void cancel_open();

  Setup setup_;
  ResponseWriter* writer_;  // null once the response is complete or the client gone
  Clock::time_point begin_ = Clock::now();
  std::unique_ptr<Reply> reply_;
  Headers headers_;
  std::vector<Choice> choices_;
  bool streaming_ = false;  // the head was sent
  bool first_token_ = false;
};

}  // namespace tessera::server
