#include "worker/connection_bytes.h"

#include "plan/footprint.h"
#include "worker/job_layout.h"
#include "worker/layers_handler.h"
#include "worker/remote_experts.h"

namespace tessera::worker {
namespace {

// Of rings, once they were used all over; none where the connection is a socket's.
std::int64_t shared_bytes(const WorkerSite& site, const Hello& hello) {
  const bool here = site.spawn || site.address.kind == Address::Kind::unix_path;
  if (!here || site.transport == TransportChoice::stream) return 0;
  const AttachOptions sizes = ring_sizes(hello);
  return static_cast<std::int64_t>(sizes.to_worker_bytes + sizes.to_client_bytes);
}

}  // namespace

ConnectionBytes layers_connection_bytes(const WorkerSite& site, const ModelSpec& spec,
                                        const ShardLayout& layout) {
  // Whether the routing is counted is not the plan's to know, and takes little.
  const Hello hello =
      layers_terms(spec, layout, {.context = layout.context, .count_routing = true});
  const std::int64_t shared = shared_bytes(site, hello);
  // The rows that wait for the worker, the answer that comes and the one that is read, which are
  // tokens of the shard with the head. Logits come besides, where the choices are too many for the
  // wire or somebody wants to see them.
  return {.here = shared + (layout.head ? 2 : 3) * handoff_bytes(spec, layout),
          .there = shared + serving_bytes(hello, all_granted(hello)).value_or(0)};
}

ConnectionBytes experts_connection_bytes(const WorkerSite& site, const ModelSpec& spec,
                                         const ExpertJobSize& job) {
  const Hello hello = experts_terms(spec, {.max_rows = job.max_rows, .payload = job.payload});
  const auto bytes = [&](WireType type) {
    return static_cast<std::int64_t>(rows_bytes(hello.max_rows, hello.dims.n_embd, type));
  };
  const WireType payload = wire_type(job.payload), sums = sum_type(payload);
  // The sums that come and those that are read; and the rows, as they go out, where they are
  // narrowed first.
  std::int64_t here = 2 * bytes(sums) + (payload == WireType::f32 ? 0 : bytes(payload));
  const std::int64_t shared = shared_bytes(site, hello);
  // What a socket does not take at once waits here. The worker counts what it receives among its
  // scratch.
  if (shared == 0) here += bytes(payload);
  return {.here = shared + here, .there = shared};
}

}  // namespace tessera::worker
