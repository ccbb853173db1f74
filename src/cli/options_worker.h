// Options of worker processes, for those who start or use them and for the worker itself. Part of
// option_table.cc.
#pragma once

#include <array>

#include "cli/option_table.h"

namespace tessera::cli {

inline constexpr auto kWorkerOptions = [] {
  using enum OptionType;
  return std::to_array<Option>({
      {.key = "worker.spawn",
       .flags = "--spawn-worker",
       .type = list,
       .commands = kModelCommands,
       .value = "ROLE[,KEY=VALUE]",
       .help = "start a process that computes layers (device worker:0, ...) or experts; keys: "
               "device, bin, threads, budget (of all its process takes) (repeatable)"},
      {.key = "worker.experts",
       .flags = "--expert-worker",
       .type = list,
       .commands = kModelCommands,
       .value = "ADDRESS",
       .help = "let the worker at unix:/path or tcp:host:port compute experts (repeatable)"},
      {.key = "worker.expert_bin",
       .flags = "",
       .type = text,
       .commands = kModelCommands,
       .value = "PATH",
       .help = "start this program as a worker of experts, as --spawn-worker experts,bin=PATH does",
       .alias = "DFLASH_MOE_EXPERT_COMPUTE_IPC_BIN"},
      {.key = "worker.transport",
       .flags = "--worker-transport",
       .type = text,
       .fallback = "auto",
       .commands = kModelCommands,
       .value = "KIND",
       .help = "how rows travel to workers on this machine; auto: shared memory",
       .choices = "auto|shared|stream"},
      {.key = "worker.timeout",
       .flags = "--worker-timeout",
       .type = seconds,
       .fallback = "30s",
       .commands = kModelCommands,
       .value = "TIME",
       .help = "give a worker up that computes one piece of a step for so long",
       .min = 0.05,
       .max = 3600},
      {.key = "worker.listen",
       .flags = "--listen",
       .type = text,
       .commands = kWorker,
       .value = "ADDRESS",
       .help = "wait for a server there: unix:/path or tcp:host:port"},
      {.key = "worker.device",
       .flags = "--device",
       .type = text,
       .fallback = "cpu",
       .commands = kWorker,
       .value = "NAME",
       .help = "compute on this device: cpu, cpu:0, cuda:1"},
      {.key = "worker.token_file",
       .flags = "--token-file",
       .type = text,
       .commands = kModelCommands | kWorker,
       .value = "PATH",
       .help = "the token that a server and its workers over tcp both know"},
      {.key = "worker.token",
       .flags = "",
       .type = text,
       .commands = kModelCommands | kWorker,
       .value = "TOKEN",
       .help = "the same as a value, in the environment or the file"},
      {.key = "worker.probe",
       .flags = "--probe",
       .type = boolean,
       .fallback = "false",
       .commands = kWorker,
       .help = "tell the process that started this one what it is, and end",
       .file = false},
  });
}();

}  // namespace tessera::cli
