// What every option means on every topology: data that the capability tests hold against the
// program.
//
// A new option needs a line in kEntries; without one the test fails. Its effect says what it may
// change and so what has to be shown of it. Where it is not taken at all, kRefusals has a line.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera::testing {

// Where layers and experts lie.
enum class Topology : std::uint8_t {
  one,              // one device of this process
  split,            // two of this process
  split_three,      // three
  layers_spawned,   // the second half of the layers in a worker that is started
  layers_unix,      // in one that listens at unix:
  layers_tcp,       // and at tcp:
  layers_sent,      // in one that listens and has no file, so that it is sent its weights
  layers_chain,     // a shard of this process, two in workers that are started, one here again
  layers_first,     // the first half of the layers in a worker that is started
  experts_here,     // experts away from their device, computed by this process
  experts_spawned,  // by a worker that is started
  experts_unix,     // by one that listens at unix:
  experts_tcp,      // and at tcp:
  experts_sent,     // by one that listens and has no file, so that it is sent its weights
  experts_two,      // by two that are started
  experts_split,    // by one that is started, which two devices of this process share
  both_roles,       // a worker of layers and one of experts, both started
};
inline constexpr Topology kTopologies[] = {
    Topology::one,
    Topology::split,
    Topology::split_three,
    Topology::layers_spawned,
    Topology::layers_unix,
    Topology::layers_tcp,
    Topology::layers_sent,
    Topology::layers_chain,
    Topology::layers_first,
    Topology::experts_here,
    Topology::experts_spawned,
    Topology::experts_unix,
    Topology::experts_tcp,
    Topology::experts_sent,
    Topology::experts_two,
    Topology::experts_split,
    Topology::both_roles,
};

using Topologies = std::uint32_t;  // a set
constexpr Topologies of(Topology topology) {
  return 1u << static_cast<unsigned>(topology);
}
inline constexpr Topologies kLayersAtAddress =
    of(Topology::layers_unix) | of(Topology::layers_tcp) | of(Topology::layers_sent);
inline constexpr Topologies kLayerWorkers = of(Topology::layers_spawned) | kLayersAtAddress |
                                            of(Topology::layers_chain) |
                                            of(Topology::layers_first) | of(Topology::both_roles);
inline constexpr Topologies kExpertsAtAddress =
    of(Topology::experts_unix) | of(Topology::experts_tcp) | of(Topology::experts_sent);
inline constexpr Topologies kExpertWorkers =
    of(Topology::experts_spawned) | of(Topology::experts_two) | of(Topology::experts_split) |
    kExpertsAtAddress | of(Topology::both_roles);
inline constexpr Topologies kExpertsAway = of(Topology::experts_here) | kExpertWorkers;
inline constexpr Topologies kWorkers = kLayerWorkers | kExpertWorkers;
inline constexpr Topologies kOverTcp = of(Topology::layers_tcp) | of(Topology::experts_tcp);
inline constexpr Topologies kOneDevice =
    of(Topology::one) | (kExpertsAway & ~of(Topology::experts_split) & ~of(Topology::both_roles));

enum class Effect : std::uint8_t {
  logits,    // what is computed
  plan,      // who holds how much of what
  layers,    // how workers of layers are reached; nothing where there are none
  workers,   // how workers of either role are reached, in the same way
  experts,   // how workers of experts are reached and what they are sent; nothing without any
  topology,  // is where layers and experts lie
  pages,     // what is locked in memory of the file, where experts are away
  gpu,       // how GPUs compute, of which these topologies have none: nothing
  process,   // HTTP, sampling, text, logging: nothing of the plan, the logits or the workers
  call,      // one call of a command, beside the model or instead of it
};

struct Entry {
  std::string_view key;
  Effect effect;
  // Not the default. Several values of a list are separated by spaces; {file}, {token}, {template}
  // and {profile} stand for what the test makes, {nowhere} for a path that nobody made, {split} for
  // a layer to each device and the others to the first, {last} for the others to the last, and one
  // with {device} is one for each device.
  std::string_view value = {};
  // Further values, separated by bars: of what can be chosen all but the default, of others one.
  std::string_view others = {};
};

inline constexpr Entry kEntries[] = {
    {"placement.threads", Effect::plan, "4", "5"},
    {"placement.budget", Effect::plan, "{device}=1GiB", "{device}=1536MiB"},
    {"placement.target_devices", Effect::topology},
    {"placement.target_layer_split", Effect::plan, "{split}", "{last}"},
    {"placement.target_turns", Effect::gpu, "1"},
    {"placement.cpu_isa", Effect::logits, "portable", "avx2|avx512"},
    {"placement.compute", Effect::plan, "f32"},
    {"placement.delta_form", Effect::logits, "chunked"},
    {"placement.gpu_plugins", Effect::gpu, "{nowhere}"},
    {"placement.embedding", Effect::gpu, "host", "device"},
    {"placement.gpu_graphs", Effect::gpu, "off", "plain"},
    {"placement.gpu_wait", Effect::gpu, "5s", "7s"},
    {"placement.layer_times", Effect::plan, "measure", "bytes"},
    {"placement.prompt_ratio", Effect::plan, "0.5", "0.25"},
    {"kv.ctx", Effect::plan, "200", "100"},
    {"kv.type", Effect::logits, "q8_0", "f16|f32"},
    {"engine.parallel", Effect::plan, "3", "2"},
    {"engine.prefill_chunk", Effect::plan, "16", "32"},

    {"experts.resident", Effect::plan, "50%", "25%"},
    {"experts.prefault", Effect::pages, "lock", "on"},
    {"experts.stream", Effect::gpu, "off", "on"},
    {"experts.foresee", Effect::gpu, "off"},
    {"experts.cache", Effect::plan, "2", "1"},
    {"experts.profile", Effect::plan, "{profile}"},
    {"experts.ipc_mode", Effect::experts, "stream", "batched"},
    {"experts.ipc_batch_capacity", Effect::experts, "2", "3"},
    {"experts.ipc_transport", Effect::experts, "stream", "shared"},
    {"experts.ipc_dtype", Effect::experts, "f16", "bf16|int16"},
    {"experts.ipc_required", Effect::experts, "true"},

    {"worker.spawn", Effect::topology},
    {"worker.experts", Effect::topology},
    {"worker.expert_bin", Effect::topology},
    {"worker.transport", Effect::layers, "stream", "shared"},
    {"worker.timeout", Effect::workers, "7s", "9s"},
    {"worker.token_file", Effect::topology},
    {"worker.token", Effect::topology},
    {"worker.listen", Effect::call},
    {"worker.device", Effect::call},
    {"worker.probe", Effect::call},

    {"sampling.temperature", Effect::process, "0.3", "1.2"},
    {"sampling.top_k", Effect::process, "3", "40"},
    {"sampling.top_p", Effect::process, "0.4", "0.9"},
    {"sampling.min_p", Effect::process, "0.2", "0.05"},
    {"sampling.repetition_penalty", Effect::process, "1.5", "1.1"},
    {"sampling.presence_penalty", Effect::process, "1", "0.5"},
    {"sampling.frequency_penalty", Effect::process, "1", "0.5"},
    {"sampling.seed", Effect::process, "3", "12"},
    {"server.host", Effect::process, "127.0.0.2", "::1"},
    {"server.port", Effect::process, "1", "8081"},
    {"server.api_key", Effect::process, "key", "other"},
    {"server.api_key_file", Effect::process, "{file}", "{token}"},
    {"server.cors_origin", Effect::process, "http://localhost", "https://a.example"},
    {"server.insecure", Effect::process, "true"},
    {"server.alias", Effect::process, "name", "other"},
    {"server.max_queue", Effect::process, "3", "5"},
    {"server.max_body", Effect::process, "2048", "4096"},
    {"server.max_header", Effect::process, "2048", "4096"},
    {"server.max_connections", Effect::process, "3", "5"},
    {"server.header_timeout", Effect::process, "3s", "5s"},
    {"server.idle_timeout", Effect::process, "3s", "5s"},
    {"server.drain", Effect::process, "3s", "5s"},
    {"text.chat_template_file", Effect::process, "{template}"},
    {"log.level", Effect::process, "error", "debug|warn|off"},

    {"run.prompt", Effect::call},
    {"run.ids", Effect::call},
    {"run.raw", Effect::call},
    {"run.system", Effect::call},
    {"run.n", Effect::call},
    {"run.ignore_eos", Effect::call},
    {"run.show_special", Effect::call},
    {"logits.ids_file", Effect::call},
    {"logits.out", Effect::call},
    {"text.text", Effect::call},
    {"text.special", Effect::call},
    {"text.messages", Effect::call},
    {"bench.prompt", Effect::call},
    {"bench.generate", Effect::call},
    {"bench.depth", Effect::call},
    {"bench.repeat", Effect::call},
    {"bench.batch", Effect::call},
    {"calibrate.text", Effect::call},
    {"calibrate.out", Effect::call},
    {"plan.draft", Effect::call},
    {"synth.preset", Effect::call},
    {"synth.types", Effect::call},
    {"synth.hollow", Effect::call},
    {"synth.seed", Effect::call},
    {"synth.set", Effect::call},
    {"output.json", Effect::call},
};

// Refused at start, in one line with this part. No value: whatever the entry has.
struct Refusal {
  std::string_view key;
  std::string_view value;
  Topologies where;
  std::string_view part;
};

inline constexpr Refusal kRefusals[] = {
    {"placement.target_layer_split", {}, kOneDevice, "--target-devices"},
    {"placement.target_turns", "2", ~Topologies{}, "--target-turns 2"},
    {"placement.cpu_isa", {}, kLayersAtAddress | kExpertsAtAddress, "start it with --cpu-isa"},
    {"placement.compute", "f32", kWorkers, "workers compute in the file's own formats"},
    {"experts.resident", {}, of(Topology::layers_sent), "has no model file"},
    {"experts.prefault", {}, of(Topology::both_roles), "from its own file"},
    {"worker.transport", "shared", of(Topology::layers_tcp), "no shared memory over tcp"},
    {"experts.ipc_transport", "shared", of(Topology::experts_tcp), "no shared memory over tcp"},
    {"experts.ipc_required", "true", ~kExpertWorkers, "no worker of experts is named"},
    {"worker.token_file", "{file}", kOverTcp, "authentication"},
};

}  // namespace tessera::testing
