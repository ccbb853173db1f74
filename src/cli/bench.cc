#include "cli/commands.h"
namespace tessera::cli { int bench_command(const Config&) { return 1; } }
