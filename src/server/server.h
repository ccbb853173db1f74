// Server: the OpenAI-compatible HTTP interface of one engine.
//
//   TESSERA_ASSIGN(auto server, Server::start(options, metrics));   // listens; /health says
//   "loading"
//   ... load the model ...
//   server->set_ready(std::move(served_model), engine);             // /health says "ok"
//   ... on SIGTERM ...
//   server->drain(std::chrono::seconds(10));
//
// Threads: one for all I/O and a few workers that parse and tokenise, so that a huge prompt does
// not hold others up. All functions may be called from any thread but the server's own. The engine
// and the registry must outlive the server; the engine is not drained by it.
//
// Errors of start(): invalid (the address cannot be resolved, or it is not loopback and there is
// neither a key nor `insecure`), io (it cannot be bound).
//
// A client that goes away has its generations cancelled at once, in every phase. Output that waits
// for a slow reader is bounded; beyond the bound, or when the client takes no byte for
// `send_stall`, it is dropped.
#pragma once

#include <chrono>
#include <memory>

#include "base/metrics.h"
#include "base/result.h"
#include "engine/engine.h"
#include "server/options.h"
#include "server/served_model.h"

namespace tessera::server {

class Server {
 public:
  static Result<std::unique_ptr<Server>> start(ServerOptions options, MetricsRegistry& metrics);
  ~Server();  // drain(0)
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::uint16_t port() const;
  void set_ready(ServedModel model, Engine& engine);

  // Refuses new requests (503; /health says "draining"), lets running ones end within `grace`, ends
  // the others with an error, and returns when all is closed. Later calls wait for the first.
  void drain(std::chrono::milliseconds grace);
  // Returns when the server has been drained.
  void wait();

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::server
