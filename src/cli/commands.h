// The subcommands. Each returns the program's exit code; errors are already printed.
#pragma once

#include "cli/config.h"

namespace tessera::cli {

int serve_command(const Config& config);
int run_command(const Config& config);
int logits_command(const Config& config);
int tokenize_command(const Config& config);
int detokenize_command(const Config& config);
int template_command(const Config& config);
int inspect_command(const Config& config);
int plan_command(const Config& config);
int devices_command(const Config& config);
int bench_command(const Config& config);
int synth_command(const Config& config);
int worker_command(const Config& config);
Status check_worker(const Config& config);  // its options, before it is run
int calibrate_command(const Config& config);

}  // namespace tessera::cli
