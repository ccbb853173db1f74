// The options of the HTTP server as values.
#pragma once

#include <chrono>
#include <string>

#include "cli/config.h"
#include "cli/loading.h"
#include "server/server.h"

namespace tessera::cli {

// Reads the file of keys, if one is named.
Result<server::ServerOptions> server_options(const Config& config);

// What clients call the model.
std::string served_id(const Config& config, const ModelPath& path);

std::chrono::milliseconds drain_time(const Config& config);

}  // namespace tessera::cli
