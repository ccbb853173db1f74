#include "worker/connection_bytes.h"

#include "plan/footprint.h"
#include "worker/experts_handler.h"
#include "worker/job_layout.h"
#include "worker/layers_handler.h"
#include "worker/remote_experts.h"

namespace tessera::worker {
namespace {

// Of rings, which this process makes and the worker maps; none where the connection is a socket's.
std::int64_t shared_bytes(const WorkerSite& site, const Hello& hello) {
  if (!wants_rings(site)) return 0;
  const AttachOptions sizes = ring_sizes(hello);
  return static_cast<std::int64_t>(sizes.to_worker_bytes + sizes.to_client_bytes);
}

}  // namespace

ConnectionBytes layers_connection_bytes(const WorkerSite& site, const ModelSpec& spec,
                                        const ShardLayout& layout) {
  // Whether the routing is counted is not the plan's to know, and takes little.
  const Hello hello =
      layers_terms(spec, layout, {.context = layout.context, .count_routing = true});
  // The rows that wait for the worker, the answer that comes and the one that is read, which are
  // tokens of the shard with the head. Logits come besides, where the choices are too many for the
  // wire or somebody wants to see them.
  return {.here = shared_bytes(site, hello) + (layout.head ? 2 : 3) * handoff_bytes(spec, layout),
          .there = serving_bytes(hello, all_granted(hello)).value_or(0)};
}

ConnectionBytes experts_connection_bytes(const WorkerSite& site, const ModelSpec& spec,
                                         const ExpertJobs& jobs, ExpertPayload payload) {
  const Hello hello = experts_terms(
      spec, {.max_rows = jobs.max_rows, .payload = payload, .credits = jobs.under_way});
  const auto rows = [&](WireType type) {
    return static_cast<std::int64_t>(rows_bytes(hello.max_rows, hello.dims.n_embd, type));
  };
  const WireType sent = wire_type(payload);
  const std::int64_t pairs = hello.max_pairs * static_cast<std::int64_t>(kPairBytes);
  // Each shard's pairs twice, in numbers and as they go out with its rows, which are narrowed first
  // where they are.
  const std::int64_t outgoing = 2 * pairs + (sent == WireType::f32 ? 0 : rows(sent));
  // The sums that each shard reads, and those that come for any of them.
  const std::int64_t sums = (jobs.shards + jobs.under_way) * rows(sum_type(sent));
  const std::int64_t shared = shared_bytes(site, hello);
  // What a socket does not take at once waits here.
  const std::int64_t waiting = shared == 0 ? pairs + rows(sent) : 0;
  return {.here = shared + waiting + sums + jobs.shards * outgoing,
          .there = experts_serving_bytes(hello, all_granted(hello))};
}

}  // namespace tessera::worker
