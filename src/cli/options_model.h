// Options of the model and its memory: the same on every command that loads a model. Part of
// option_table.cc.
#pragma once

#include <array>

#include "cli/option_table.h"
#include "plan/plan.h"

namespace tessera::cli {

inline constexpr auto kModelOptions = [] {
  using enum OptionType;
  return std::to_array<Option>({
      {.key = "placement.threads",
       .flags = "-t,--threads",
       .type = integer,
       .fallback = "0",
       .commands = kModelCommands | kWorker,
       .value = "N",
       .help =
           "CPU threads to compute with; 0: one per core this process may use, but one for each "
           "GPU",
       .max = 1024},
      {.key = "placement.budget",
       .flags = "--budget",
       .type = list,
       .commands = kModelCommands | kWorker,
       .value = "[DEVICE=]BYTES",
       .help = "memory the process may take on the device; default: what is free; weights over it "
               "leave a CPU for the file (repeatable)"},
      {.key = "placement.target_devices",
       .flags = "--target-devices",
       .type = text,
       .commands = kModelCommands,
       .value = "LIST",
       .help = "devices that share the layers, in order: cpu, cuda:0, hip:0, or cpu:0,cpu:1,... "
               "with cores of each; worker:0, ... (--spawn-worker), worker:ADDRESS (tessera worker "
               "--listen)"},
      {.key = "placement.target_layer_split",
       .flags = "--target-layer-split",
       .type = text,
       .commands = kModelCommands,
       .value = "W,...",
       .help = "a weight for each device's part of the layers; default: the fastest cut within "
               "budgets"},
      {.key = "placement.target_turns",
       .flags = "--target-turns",
       .type = integer,
       .fallback = "0",
       .commands = kModelCommands,
       .value = "N",
       .help =
           "ranges of layers for each GPU, in turns with the others', so that a prompt keeps all "
           "of them busy; 0: up to 5 where a token pays next to nothing for it",
       .max = 64},
      {.key = "placement.layer_times",
       .flags = "--layer-times",
       .type = text,
       .fallback = "auto",
       .commands = kModelCommands,
       .value = "HOW",
       .help = "what the layers are cut by: auto: their times, which serve, run and bench measure "
               "on each device once; measure: afresh, by any command; bytes: their bytes",
       .choices = "auto|measure|bytes"},
      {.key = "placement.prompt_ratio",
       .flags = "--prompt-ratio",
       .type = number,
       .fallback = "8",
       .commands = kModelCommands,
       .value = "R",
       .help = "prompt tokens expected for one that is generated; weighs the two when layers are "
               "cut",
       .max = 1000000},
      {.key = "placement.cpu_isa",
       .flags = "--cpu-isa",
       .type = text,
       .fallback = "auto",
       .commands = kModelCommands | kWorker,
       .value = "NAME",
       .help = "instruction set of the CPU kernels",
       .choices = "auto|portable|avx2|avx512"},
      {.key = "placement.compute",
       .flags = "--compute",
       .type = text,
       .fallback = "auto",
       .commands = kModelCommands,
       .value = "TYPE",
       .help = "arithmetic of weight products; f32: dequantise at load, no 8-bit activations, more "
               "memory",
       .choices = "auto|f32"},
      {.key = "placement.delta_form",
       .flags = "--delta-form",
       .type = text,
       .fallback = "recurrent",
       .commands = kModelCommands,
       .value = "FORM",
       .help = "prefill of gated-delta layers: token by token, or in chunks of 64",
       .choices = "recurrent|chunked"},
      {.key = "placement.gpu_plugins",
       .flags = "--gpu-plugins",
       .type = text,
       .commands = kModelCommands | kDevices | kWorker,
       .value = "FOLDER",
       .help = "where libtessera-cuda.so and libtessera-hip.so are; default: beside the program"},
      {.key = "placement.embedding",
       .flags = "--embedding",
       .type = text,
       .fallback = "auto",
       .commands = kModelCommands,
       .value = "WHERE",
       .help =
           "memory of a GPU's embedding table: its own, pinned memory of the host, or there those "
           "of its rows that the GPU lacks room for (auto)",
       .choices = "auto|device|host"},
      {.key = "placement.gpu_graphs",
       .flags = "--gpu-graphs",
       .type = text,
       .fallback = "chained",
       .commands = kModelCommands | kWorker,
       .value = "FORM",
       .help = "a GPU's decode steps: captured graphs of kernels that overlap, with a row's layers "
               "as one kernel where they can; graphs of kernels that do not; no graphs",
       .choices = "chained|plain|off"},
      {.key = "placement.gpu_wait",
       .flags = "--gpu-wait",
       .type = seconds,
       .fallback = "60s",
       .commands = kModelCommands | kWorker,
       .value = "TIME",
       .help = "a GPU that takes longer for one step counts as failed",
       .min = 0.1,
       .max = 86400},
      {.key = "kv.ctx",
       .flags = "-c,--ctx",
       .type = integer,
       .fallback = "0",
       .commands = kModelCommands,
       .value = "N",
       .help = "tokens one sequence may have; 0: the model's, at most 32768 and as memory allows",
       .max = 16777216},
      {.key = "kv.type",
       .flags = "--kv-type",
       .type = text,
       .fallback = "auto",
       .commands = kModelCommands,
       .value = "TYPE",
       .help = "element type of the KV cache; auto: f32 for unquantised models, else f16",
       .choices = "auto|f16|f32|q8_0"},
      {.key = "engine.parallel",
       .flags = "--parallel",
       .type = integer,
       .fallback = "0",
       .commands = kModelCommands,
       .value = "N",
       .help = "sequences that run at the same time; 0: 4 for serve, the largest batch for bench, "
               "else 1",
       .max = kMostParallel},
      {.key = "engine.prefill_chunk",
       .flags = "--prefill-chunk",
       .type = integer,
       .fallback = "0",
       .commands = kModelCommands,
       .value = "N",
       .help = "prompt tokens computed in one step; 0: 2048 where GPUs have all layers (to 16384 "
               "where experts cross to one), else 256",
       .max = kMostPrefillChunk},
  });
}();

}  // namespace tessera::cli
