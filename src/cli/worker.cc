// tessera worker: computes for another process, over the socket that it was started with or for
// whoever connects. A listening worker needs no model file: clients send what it is to hold.
#include <atomic>
#include <csignal>
#include <optional>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/within_memory.h"
#include "cli/commands.h"
#include "cli/machine_file.h"
#include "cli/output.h"
#include "cli/placement_options.h"
#include "cli/signals.h"
#include "cli/worker_sites.h"
#include "model/model.h"
#include "model/readers/readers.h"
#include "worker/auth.h"
#include "worker/connect.h"
#include "worker/process.h"
#include "worker/receiving_handler.h"
#include "worker/reception.h"
#include "worker/role_handler.h"
#include "worker/serve.h"

namespace tessera::cli {
namespace {

using namespace worker;

constexpr std::uint16_t kCredits = 16;
constexpr auto kAttach = std::chrono::seconds(10);
constexpr auto kRefuse = std::chrono::seconds(1);
constexpr auto kPatience = std::chrono::milliseconds(300);
// 200 heartbeats: a client that hangs, and none that is slow.
constexpr auto kClientSilence = std::chrono::milliseconds(10'000);
constexpr auto kMostEnd = std::chrono::seconds(10);

// Any step's: a chunk and a row of each sequence. A launch of some kernels has a row or more in
// each block.
constexpr std::uint32_t kMostGpuRows = kMostPrefillChunk + kMostParallel;

constexpr std::uint32_t kRoles = role_bit(Role::layers) | role_bit(Role::experts);

// The device that the worker computes on, with what it may use of it as its budget.
Result<DeviceInventory> worker_device(const Config& config) {
  TESSERA_ASSIGN(const Placement placement, worker_placement(config));
  TESSERA_ASSIGN(const Inventory inventory,
                 probe_inventory(placement, config.small("placement.threads")));
  DeviceInventory device = inventory.devices.front();
  device.budget = device.budget.value_or(device.memory_free);
  return device;
}

ShardPlan shard_on(const DeviceInventory& device) {
  return {.device = device.name,
          .kind = device.kind,
          .number = device.number,
          .threads = device.threads,
          .cpus = device.cpus,
          .budget_bytes = *device.budget};
}

// What was measured before, or a quick look: the planner gives more to the faster. Zeros where
// neither is there, or for what a GPU does not say.
MeasuredSpeed speed_of(const DeviceInventory& device, cpu::Isa isa) {
  if (device.kind != DeviceKind::cpu)
    return {.read_bytes_per_s = device.speed * kThreadBytesPerSecond};
  if (const auto saved = saved_speed(device.threads, isa)) return *saved;
  return quick_speed({.threads = device.threads, .cpus = device.cpus}, isa, *device.budget)
      .value_or(MeasuredSpeed());
}

Probe describe(const DeviceInventory& device, const Model* model, cpu::Isa isa) {
  const MeasuredSpeed speed = speed_of(device, isa);
  Probe probe{.roles = kRoles,
              .threads = static_cast<std::uint32_t>(device.threads),
              .memory_total = static_cast<std::uint64_t>(device.memory_total),
              .memory_free = static_cast<std::uint64_t>(*device.budget),
              .bytes_per_second = speed.read_bytes_per_s,
              .op_per_second = speed.op_per_s,
              .build = build_of(isa, device.kind),
              .architectures = supported_architectures()};
  if (model != nullptr) probe.model = model_digest(model->file());
  return probe;
}

std::string how_it_left(ServeEnd end) {
  if (end == ServeEnd::bye) return "the client said goodbye";
  if (end == ServeEnd::peer_gone) return "the client is gone";
  if (end == ServeEnd::lost) return "what this worker computes on is lost";
  return fmt::format("the client is given up: not even a heartbeat for {} s",
                     std::chrono::duration_cast<std::chrono::seconds>(kClientSilence).count());
}

// One worker's device and model, its own or its client's, for one client at a time.
class Host {
 public:
  // Without a model it takes the clients'. One that is given must outlive the host. A worker that
  // listens has clients after this one, and gives up one that is silent.
  Host(const Model* model, const DeviceInventory& device, const DeviceOptions& opening,
       cpu::Isa isa, const Probe& probe, std::optional<std::chrono::milliseconds> client_silence)
      : offer_{.roles = kRoles,
               .receives = model == nullptr,
               .max_rows = device.kind == DeviceKind::cpu ? kMaxWireRows : kMostGpuRows,
               .max_pairs = kMaxPairs,
               .max_page_changes = kMaxPageChanges,
               .credits = kCredits,
               .probe = probe,
               .client_silence = client_silence,
               .refusals = &refusals_} {
    const ShardPlan shard = shard_on(device);
    const LayersHandlerOptions layers{
        .device = shard, .budget = shard.budget_bytes, .opening = opening};
    const ExpertsHandlerOptions experts{
        .device = shard, .budget = shard.budget_bytes, .isa = isa, .opening = opening};
    if (model == nullptr) {
      receiving_ = std::make_unique<ReceivingHandler>(ReceivingHandlerOptions{
          .layers = layers, .experts = experts, .budget = shard.budget_bytes});
      return;
    }
    owning_ = std::make_unique<RoleHandler>(*model, layers, experts);
    offer_.model = model_digest(model->file());
    offer_.dims = model_dims(model->spec());
  }

  // Until the client leaves, or the device is lost: see usable() then.
  Status serve_one(Channel& channel) {
    if (receiving_) receiving_->connect(channel);
    JobHandler& handler = receiving_ ? static_cast<JobHandler&>(*receiving_) : *owning_;
    TESSERA_ASSIGN(const ServeEnd end, serve(channel, offer_, handler, stats_));
    log_info("{}: {}", channel.describe(), how_it_left(end));
    lost_ = end == ServeEnd::lost;
    return {};
  }
  Refusals& refusals() { return refusals_; }
  // Any thread. A device that failed stays so while this process lives.
  Status usable() const {
    if (!lost_) return {};
    return Error::make(ErrorCode::unavailable, "{}; start the worker again",
                       how_it_left(ServeEnd::lost));
  }

 private:
  Refusals refusals_;
  WorkerOffer offer_;
  std::unique_ptr<RoleHandler> owning_;  // one of the two
  std::unique_ptr<ReceivingHandler> receiving_;
  Stats stats_;
  std::atomic<bool> lost_{false};
};

// Serves those who connect, one at a time; others are told that it is busy.
class ListeningWorker {
 public:
  ListeningWorker(Listener listener, std::string token, Host& host)
      : listener_(std::move(listener)), host_(host) {
    options_.token = std::move(token);
    options_.refusals = &host.refusals();
  }
  ~ListeningWorker() {
    if (serving_.joinable()) serving_.join();
  }

  void run() {
    Reception reception(listener_, options_, [this](std::unique_ptr<Channel> client) {
      serve_in_thread(std::move(client));
    });
    reception.run();
  }
  // Any thread.
  void stop() {
    stopping_ = true;
    listener_.stop();
    const std::lock_guard lock(mutex_);
    if (client_) client_->close();
  }

 private:
  // The client before may be about to leave.
  bool claim() {
    const Deadline until = after(kPatience);
    while (busy_.exchange(true)) {
      if (Clock::now() >= until) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }

  // It asks first, and is answered: a connection that ended with its question unread would not
  // bring it the answer.
  void turn_away(Channel& client) {
    Frame question;
    (void)client.receive(question, after(kRefuse));
    log_warn(
        "{}: one is served, and another client was {}", client.describe(),
        refuse_client(client, {.reason = RefuseReason::busy}, after(kRefuse), options_.refusals));
  }

  // Called by several threads at a time; the first has it.
  void serve_in_thread(std::unique_ptr<Channel> client) {
    if (!claim()) return turn_away(*client);
    const std::lock_guard one_at_a_time(serving_mutex_);
    if (serving_.joinable()) serving_.join();
    {
      const std::lock_guard lock(mutex_);
      client_ = std::move(client);
      if (stopping_) client_->close();
    }
    const Status serving = within_memory([this]() -> Status {
      serving_ = std::thread(
          [this] { leave(within_memory([this] { return host_.serve_one(*client_); })); });
      return {};
    });
    if (!serving) leave(serving);
  }
  void leave(const Status& status) {
    if (!status) log_warn("{}", status.error().message);
    if (!host_.usable()) listener_.stop();
    const std::lock_guard lock(mutex_);
    client_.reset();
    busy_ = false;
  }

  Listener listener_;
  AcceptOptions options_;
  Host& host_;
  std::atomic<bool> busy_{false};
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::unique_ptr<Channel> client_;
  std::mutex serving_mutex_;  // of serving_
  std::thread serving_;
};

Status listen(const Config& config, Host& host) {
  TESSERA_ASSIGN(const Address address, Address::parse(config.text("worker.listen")));
  TESSERA_ASSIGN(std::string token, worker_token(config));
  TESSERA_ASSIGN(Listener listener, Listener::open(address));
  const std::string where = listener.address().text();
  ListeningWorker server(std::move(listener), std::move(token), host);
  // What a client has it load or compute may take longer than anybody waits. The second time at
  // once.
  SignalWatch watch([&, asked = false](int signal) mutable {
    if (std::exchange(asked, true)) end_at_once(signal);
    end_within(kMostEnd, signal);
    server.stop();
  });
  print_out("worker ready at {}\n", where);
  flush_out();
  server.run();
  if (const std::string refused = host.refusals().text(); !refused.empty())
    log_info("clients that were refused: {}", refused);
  return host.usable();
}

Status answer_parent(Host& host, Fd socket) {
  TESSERA_ASSIGN(const std::unique_ptr<Channel> channel,
                 attach_worker(std::move(socket), SocketKind::unix_socket, {}, after(kAttach)));
  TESSERA_TRY(host.serve_one(*channel));
  return host.usable();
}

Status run_worker(const Config& config) {
  const bool probing = config.flag("worker.probe");
  const bool listening = config.given("worker.listen");
  Fd parent;
  if (probing || !listening) {
    TESSERA_ASSIGN(parent, start_as_worker());
  }
  TESSERA_ASSIGN(const DeviceInventory device, worker_device(config));
  TESSERA_ASSIGN(const cpu::Isa isa, chosen_isa(config));
  if (probing) return answer_probe(std::move(parent), describe(device, nullptr, isa));
  std::optional<Model> model;
  if (!config.arguments().empty()) {
    TESSERA_ASSIGN(model, Model::open(config.arguments().front()));
  } else if (device.kind != DeviceKind::cpu) {
    return Error::make(ErrorCode::invalid, "--device {}: a worker on a GPU needs the model's file",
                       device.name);
  } else if (listening) {
    log_info("no model was named: servers that connect send what this worker is to hold");
  } else {
    return Error::make(ErrorCode::invalid, "a worker that a server starts needs the model's file");
  }
  const Model* held = model ? &*model : nullptr;
  if (!listening) {  // it was probed before it was started
    Host host(held, device, opening_options(config), isa, {.build = build_of(isa, device.kind)},
              std::nullopt);
    return answer_parent(host, std::move(parent));
  }
  Host host(held, device, opening_options(config), isa, describe(device, held, isa),
            kClientSilence);
  return listen(config, host);
}

}  // namespace

Status check_worker(const Config& config) {
  TESSERA_TRY(worker_placement(config));
  if (!config.given("worker.listen")) return started_as_worker();
  TESSERA_ASSIGN(const Address address, Address::parse(config.text("worker.listen")));
  TESSERA_ASSIGN(const std::string token, worker_token(config));
  return address.kind == Address::Kind::tcp ? check_token(token) : Status();
}

int worker_command(const Config& config) {
  std::signal(SIGPIPE, SIG_IGN);
  return exit_code(run_worker(config));
}

}  // namespace tessera::cli
