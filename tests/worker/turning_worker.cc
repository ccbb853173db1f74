#include "tests/worker/turning_worker.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <thread>

#include "base/environment.h"
#include "base/log.h"
#include "device/cpu/isa.h"
#include "worker/connect.h"
#include "worker/process.h"
#include "worker/receiving_handler.h"
#include "worker/role_handler.h"

namespace tessera::worker {
namespace {

using namespace std::chrono_literals;

// Less than any deadline.
constexpr auto kLag = 30ms;

volatile std::sig_atomic_t turned = 0;

// SIGUSR2 turns it back.
void turn(int signal) {
  turned = signal == SIGUSR1 ? 1 : 0;
}

// A channel whose results are good until the worker turns.
class TurningChannel final : public Channel {
 public:
  TurningChannel(std::unique_ptr<Channel> inner, std::string how)
      : inner_(std::move(inner)), how_(std::move(how)) {}

  Status put(const FrameHeader& sealed, Parts parts, Deadline deadline) override {
    FrameHeader header = sealed;
    if (header.op != Op::result || turned == 0) return inner_->put(header, parts, deadline);
    if (how_ == "exit") ::_exit(77);
    if (how_ == "silence") return {};
    if (how_ == "lags") std::this_thread::sleep_for(kLag);
    if (how_ == "refusal")
      return inner_->send({.version = header.version, .op = Op::error, .sequence = header.sequence},
                          encode(ErrorReply{.code = WireError::internal, .text = "no"}), deadline);
    if (how_ == "unasked") header.sequence += 1000;
    if (how_ == "boasts") header.compute_us = 0xffffffff;
    if (how_ == "absurd") header.rows = 60'000;
    if (how_ == "few") {
      header.rows = header.items = 0;
      return inner_->send(header, deadline);
    }
    std::vector<std::byte> body;
    for (const std::span<const std::byte> part : parts)
      body.insert(body.end(), part.begin(), part.end());
    if (how_ == "nan") {
      for (std::size_t i = 0; i < body.size(); ++i)
        body[i] = i % 2 == 0 ? std::byte{0xff} : std::byte{0x7f};  // of each type a NaN
      return inner_->send(header, body, deadline);
    }
    if (how_ == "garbled" && !body.empty()) body.back() ^= std::byte{1};
    const std::span<const std::byte> part = body;
    return inner_->put(header, Parts(&part, 1), deadline);
  }
  Result<bool> get(Frame& frame, Deadline deadline) override {
    inner_->set_limits(limits());
    Result<bool> came = inner_->get(frame, deadline);
    const bool job = came && *came && is_job(frame.header.op);
    if (!job || turned == 0 || how_ != "garbledjob") return came;
    const std::vector<std::byte> body(frame.body().begin(), frame.body().end());
    TESSERA_ASSIGN(const std::span<std::byte> spoilt, frame.prepare(body.size()));
    std::copy(body.begin(), body.end(), spoilt.begin());
    spoilt.back() ^= std::byte{1};
    return true;
  }
  bool reserves_room() const override { return inner_->reserves_room(); }
  void take_while_sending(FrameTaker* taker) override { inner_->take_while_sending(taker); }
  void close() override { inner_->close(); }
  bool closed() const override { return inner_->closed(); }
  int descriptor() const override { return inner_->descriptor(); }
  std::string describe() const override { return inner_->describe(); }

 private:
  static bool is_job(Op op) { return op == Op::compute_experts || op == Op::forward_layers; }

  std::unique_ptr<Channel> inner_;
  std::string how_;
};

// What a worker computes with, its own or its client's.
class Owner {
 public:
  // Null: the clients'.
  Owner(const Model* model, const LayersHandlerOptions& layers,
        const ExpertsHandlerOptions& experts) {
    if (model == nullptr)
      receiving_.emplace(
          ReceivingHandlerOptions{.layers = layers, .experts = experts, .budget = layers.budget});
    else
      owning_.emplace(*model, layers, experts);
  }
  JobHandler& handler() { return receiving_ ? static_cast<JobHandler&>(*receiving_) : *owning_; }
  // Before each client.
  void connect(Channel& channel) {
    if (receiving_) receiving_->connect(channel);
  }

 private:
  std::optional<RoleHandler> owning_;  // one of the two
  std::optional<ReceivingHandler> receiving_;
};

// As long as there is such a file.
class SlowlyLoading final : public JobHandler {
 public:
  SlowlyLoading(JobHandler& inner, std::string file) : inner_(inner), file_(std::move(file)) {}
  Result<Prepared> prepare(const Hello& hello, const HelloAck& ack) override {
    while (std::filesystem::exists(file_)) std::this_thread::sleep_for(5ms);
    return inner_.prepare(hello, ack);
  }
  Result<JobOutput> run(const FrameHeader& header, std::span<const std::byte> body,
                        const WireLimits& limits, const worker::Near& near) override {
    return inner_.run(header, body, limits, near);
  }
  ExpertCounts expert_counts() const override { return inner_.expert_counts(); }
  Status routed(std::uint16_t layer, std::vector<std::byte>& body) override {
    return inner_.routed(layer, body);
  }

 private:
  JobHandler& inner_;
  std::string file_;
};

int fail(const Error& error) {
  fmt::print(stderr, "{}\n", error.message);
  return 1;
}

struct Turning {
  std::string how;
  Owner& owner;
  JobHandler& handler;  // over the owner's
  WorkerOffer offer;
  Stats stats{};

  int serve_one(std::unique_ptr<Channel> channel) {
    turned = 0;
    TurningChannel turning(std::move(channel), how);
    owner.connect(turning);
    const Result<ServeEnd> end = serve(turning, offer, handler, stats);
    return end ? 0 : 1;
  }
};

int listen_at(const std::string& text, Turning& worker) {
  const AcceptOptions options{.token = environment_variable("TESSERA_WORKER_TOKEN").value_or("")};
  Result<Listener> listener = Listener::open(*Address::parse(text));
  if (!listener) return fail(listener.error());
  fmt::print("worker ready at {}\n", listener->address().text());
  std::fflush(stdout);
  for (;;) {
    auto channel = listener->accept(options, after(60s));
    if (!channel) continue;
    if (*channel == nullptr) return 0;
    worker.serve_one(*std::move(channel));
  }
}

int answer_parent(Turning& worker) {
  Result<Fd> socket = start_as_worker();
  if (!socket) return fail(socket.error());
  auto channel = attach_worker(std::move(*socket), SocketKind::unix_socket, {}, after(10s));
  if (!channel) return fail(channel.error());
  return worker.serve_one(*std::move(channel));
}

}  // namespace

int turning_worker(const std::string& how, std::span<char*> words) {
  std::signal(SIGUSR1, turn);
  std::signal(SIGUSR2, turn);
  std::signal(SIGPIPE, SIG_IGN);
  std::map<std::string, std::string> options;
  std::optional<Model> model;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string word = words[i];
    if (word.starts_with("--") && i + 1 < words.size()) {
      options[word] = words[++i];
      continue;
    }
    Result<Model> opened = Model::open(word);
    if (!opened) return fail(opened.error());
    model = *std::move(opened);
  }
  ShardPlan device{.device = "cpu", .threads = 1};
  if (options.contains("--threads")) device.threads = std::stoi(options["--threads"]);
  cpu::Isa isa = cpu::detect_isa();
  if (options.contains("--cpu-isa") && options["--cpu-isa"] != "auto")
    isa = *cpu::parse_isa(options["--cpu-isa"]);
  std::int64_t budget = std::int64_t{1} << 30;
  if (options.contains("--budget")) budget = std::stoll(options["--budget"]);
  Owner owner(model ? &*model : nullptr,
              {.device = device, .budget = budget, .opening = {.cpu_isa = cpu::isa_name(isa)}},
              {.device = device, .budget = budget, .isa = isa});
  SlowlyLoading slow(owner.handler(),
                     how.starts_with(kLoadsWithout) ? how.substr(kLoadsWithout.size()) : "");
  Turning worker{.how = how.substr(how.find('_') + 1),
                 .owner = owner,
                 .handler = slow,
                 .offer = {.roles = role_bit(Role::layers) | role_bit(Role::experts),
                           .receives = !model,
                           .max_rows = kMaxWireRows,
                           .max_pairs = kMaxPairs,
                           .max_page_changes = kMaxPageChanges,
                           .credits = 16,
                           .progress = 20ms}};
  if (model) {
    worker.offer.model = model_digest(model->file());
    worker.offer.dims = model_dims(model->spec());
  }
  return options.contains("--listen") ? listen_at(options["--listen"], worker)
                                      : answer_parent(worker);
}

}  // namespace tessera::worker
