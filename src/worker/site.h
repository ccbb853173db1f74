// WorkerSite: where a worker is and how it comes to be there: started by this process, or listening
// at an address.
//
//   TESSERA_ASSIGN(const Probe probe, probe_site(site, after(10s)));   // before any weight is read
//   TESSERA_TRY(check_model(site, probe, model));
//   Supervisor supervisor(options, site_starter(site, ring_sizes(hello), metrics), metrics);
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/model.h"
#include "worker/address.h"
#include "worker/supervisor.h"

namespace tessera::worker {

enum class TransportChoice { automatic, shared, stream };

struct WorkerSite {
  std::string name;  // "worker:0", "worker:tcp:host:7000": in the plan, in logs and metrics
  Role role = Role::layers;
  std::optional<SpawnOptions> spawn;         // absent: `address`
  std::vector<std::string> probe_arguments;  // of `BINARY worker ... --probe`
  Address address;
  std::optional<WorkerBuild> build;  // that it is to have; absent: that of its first start
  std::uint16_t isa = 0;             // as WorkerBuild::isa: another one is refused; 0: none is
  std::string token;                 // tcp
  TransportChoice transport = TransportChoice::automatic;
  std::chrono::milliseconds job_limit{30'000};  // a job of role layers that takes longer is lost
  LifecycleOptions lifecycle;
  StopTimes stop;
};

// Whether shared memory is tried: the worker is on this machine, and nobody chose a socket.
bool wants_rings(const WorkerSite& site);

// Asks the worker; one that is spawned is started for that alone. That it speaks the protocol and
// knows the role is checked. The round trip is that of the connection to come: of shared memory
// where that is tried.
Result<SiteProbe> probe_site(const WorkerSite& site, Deadline deadline);

// Whether what answered can hold a part of this model, as far as it said.
Status check_model(const WorkerSite& site, const Probe& probe, const Model& model);

// With TransportChoice::automatic a socket takes the place of shared memory that cannot be had: a
// line of the log, and tessera_worker_transport_fallbacks_total{worker, reason} (memory: none, or
// more than there may be; refused: the worker takes less). `metrics` must outlive it.
Starter site_starter(const WorkerSite& site, AttachOptions attach, MetricsRegistry& metrics);

// Starts that may fail while its first is waited for: one at an address may still be coming up.
int awaited_starts(const WorkerSite& site);

// What the worker is sent when it has no file: one that is started here always has.
const gguf::File* sent_model(const WorkerSite& site, const Model& model);

// Whether it said so.
bool has_no_file(const Probe& probe);

}  // namespace tessera::worker
