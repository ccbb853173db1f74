#include "worker/site.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/log.h"
#include "worker/ring_round_trip.h"

namespace tessera::worker {
namespace {

// Why a start has no shared memory; null: it has, or something else is wrong.
const char* lacks_memory(const Result<StartedWorker>& started) {
  if (!started) return started.error().code == ErrorCode::exhausted ? "memory" : nullptr;
  const bool less = started->refused && started->refused->reason == RefuseReason::limits;
  return less ? "refused" : nullptr;
}

Starter rings_or_stream(const std::string& name, const Starter& rings, const Starter& stream,
                        MetricsRegistry& metrics) {
  return [name, rings, stream, &metrics](Deadline deadline,
                                         Interrupter& interrupter) -> Result<StartedWorker> {
    Result<StartedWorker> started = rings(deadline, interrupter);
    const char* const reason = lacks_memory(started);
    if (reason == nullptr) return started;
    log_warn("{}: a socket takes the place of shared memory: {}", name,
             started ? refusal_text(*started->refused) : started.error().message);
    metrics
        .counter("tessera_worker_transport_fallbacks_total",
                 "Starts with a socket since there was no shared memory.",
                 {{"worker", name}, {"reason", reason}})
        .add();
    interrupter.forget();
    if (started) started->process.reset();
    return stream(deadline, interrupter);
  };
}

Result<SiteProbe> ask(const WorkerSite& site, Deadline deadline) {
  if (site.spawn) return probe_worker(site.spawn->binary, site.probe_arguments, deadline);
  TESSERA_ASSIGN(
      const std::unique_ptr<Channel> channel,
      connect_to(site.address, {.kind = AttachKind::stream, .token = site.token}, deadline));
  TESSERA_ASSIGN(const Probe probe, client_probe(*channel, deadline));
  // Without an answer to PING it has said what it is all the same.
  const Result<std::chrono::nanoseconds> round_trip = client_round_trip(*channel, deadline);
  (void)channel->send({.op = Op::bye}, deadline);
  return SiteProbe{probe, round_trip ? *round_trip : std::chrono::nanoseconds(0)};
}

}  // namespace

bool wants_rings(const WorkerSite& site) {
  const bool here = site.spawn || site.address.kind == Address::Kind::unix_path;
  return here && site.transport != TransportChoice::stream;
}

Result<SiteProbe> probe_site(const WorkerSite& site, Deadline deadline) {
  if (site.transport == TransportChoice::shared && !site.spawn &&
      site.address.kind == Address::Kind::tcp)
    return Error::make(ErrorCode::invalid, "{}: there is no shared memory over tcp", site.name);
  Result<SiteProbe> probe = ask(site, deadline);
  if (!probe) return std::move(probe).error().in(site.name);
  if (!probe->speaks_our_version())
    return Error::make(ErrorCode::unsupported,
                       "{} speaks versions {} to {} of the worker protocol, this program {} to {}",
                       site.name, probe->version_min, probe->version_max, kVersionMin, kVersionMax);
  if ((probe->roles & role_bit(site.role)) == 0)
    return Error::make(ErrorCode::unsupported, "{} is no worker of {}", site.name,
                       role_name(site.role));
  if (wants_rings(site))
    if (const auto call = ring_round_trip(deadline)) probe->round_trip = *call;
  return probe;
}

Status check_model(const WorkerSite& site, const Probe& probe, const Model& model) {
  const std::string& needed = model.spec().architecture;
  const std::vector<std::string>& known = probe.architectures;
  if (!known.empty() && std::find(known.begin(), known.end(), needed) == known.end())
    return Error::make(ErrorCode::unsupported,
                       "{} reads no models of architecture {}, but of {}; start it with the "
                       "program that this one is",
                       site.name, needed, fmt::join(known, ", "));
  // One without a file is sent the model, and one that is spawned is given it.
  if (site.spawn || has_no_file(probe) || probe.model == model_digest(model.file())) return {};
  return Error::make(ErrorCode::invalid,
                     "{} has the file of another model; start it with this one, or without a file",
                     site.name);
}

int awaited_starts(const WorkerSite& site) {
  return site.spawn ? 1 : 3;
}

const gguf::File* sent_model(const WorkerSite& site, const Model& model) {
  return site.spawn ? nullptr : &model.file();
}

bool has_no_file(const Probe& probe) {
  return probe.model == ModelDigest{};
}

Starter site_starter(const WorkerSite& site, AttachOptions attach, MetricsRegistry& metrics) {
  attach.token = site.token;
  const auto starter = [&](AttachKind kind) {
    attach.kind = kind;
    return site.spawn ? spawn_starter(*site.spawn, attach) : connect_starter(site.address, attach);
  };
  switch (site.transport) {
    case TransportChoice::stream:
      return starter(AttachKind::stream);
    case TransportChoice::shared:
      return starter(AttachKind::rings);
    case TransportChoice::automatic:
      break;
  }
  return rings_or_stream(site.name, starter(AttachKind::rings), starter(AttachKind::stream),
                         metrics);
}

}  // namespace tessera::worker
