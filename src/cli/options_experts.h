// Options of routed experts. Part of option_table.cc.
#pragma once

#include <array>

#include "cli/option_table.h"

namespace tessera::cli {

inline constexpr auto kExpertOptions = [] {
  using enum OptionType;
  return std::to_array<Option>({
      {.key = "experts.resident",
       .flags = "--expert-resident",
       .type = text,
       .fallback = "auto",
       .commands = kModelCommands,
       .value = "auto|all|N%",
       .help = "experts that stay on their layers' devices; auto: as many as the budgets allow"},
      {.key = "experts.cache",
       .flags = "--expert-cache",
       .type = text,
       .fallback = "0",
       .commands = kModelCommands,
       .value = "N|BYTES",
       .help =
           "places a layer, or bytes of a device, for experts that become resident while serving"},
      {.key = "experts.prefault",
       .flags = "--expert-prefault",
       .type = text,
       .fallback = "off",
       .commands = kModelCommands,
       .value = "WHEN",
       .help = "read the host's experts into memory at start (on), and keep them there (lock)",
       .choices = "off|on|lock"},
      {.key = "experts.stream",
       .flags = "--expert-stream",
       .type = text,
       .fallback = "auto",
       .commands = kModelCommands,
       .value = "WHEN",
       .help = "let a GPU fetch the host's experts from a packed copy in pinned memory: where that "
               "is faster (auto), always, or never",
       .choices = "auto|on|off"},
      {.key = "experts.profile",
       .flags = "--expert-profile",
       .type = text,
       .commands = kModelCommands,
       .value = "FILE",
       .help = "routing profile that decides who stays; serve keeps it up to date"},
      {.key = "experts.ipc_mode",
       .flags = "--expert-ipc-mode",
       .type = text,
       .fallback = "auto",
       .commands = kModelCommands,
       .value = "MODE",
       .help = "jobs for workers: all tokens of a step (auto, batched) or at most 4 (stream)",
       .choices = "auto|batched|stream",
       .alias = "DFLASH_MOE_EXPERT_COMPUTE_IPC_MODE"},
      {.key = "experts.ipc_batch_capacity",
       .flags = "--expert-ipc-batch-capacity",
       .type = integer,
       .fallback = "1024",
       .commands = kModelCommands,
       .value = "N",
       .help = "tokens of one job for a worker, at most",
       .min = 1,
       .max = 4096,
       .alias = "DFLASH_MOE_EXPERT_COMPUTE_IPC_BATCH_CAPACITY"},
      {.key = "experts.ipc_transport",
       .flags = "--expert-ipc-transport",
       .type = text,
       .fallback = "auto",
       .commands = kModelCommands,
       .value = "KIND",
       .help = "memory shared with a worker of this host, or a socket",
       .choices = "auto|shared|stream",
       .alias = "DFLASH_MOE_EXPERT_COMPUTE_IPC_TRANSPORT"},
      {.key = "experts.ipc_dtype",
       .flags = "--expert-ipc-dtype",
       .type = text,
       .fallback = "f32",
       .commands = kModelCommands,
       .value = "TYPE",
       .help = "how activations travel to and from workers; with f32 their sums in f64",
       .choices = "f32|f16|bf16|int16",
       .alias = "DFLASH_MOE_EXPERT_COMPUTE_IPC_DTYPE"},
      {.key = "experts.ipc_required",
       .flags = "--expert-ipc-required",
       .type = boolean,
       .fallback = "false",
       .commands = kModelCommands,
       .help = "never compute experts of workers here: wait for them for --worker-timeout, fail "
               "requests "
               "whose worker fails, and refuse a plan whose workers have no room",
       .alias = "DFLASH_MOE_EXPERT_COMPUTE_IPC_REQUIRED"},
  });
}();

}  // namespace tessera::cli
