// The bodies of /v1/models, /v1/models/{id} and /props.
#pragma once

#include "server/options.h"
#include "server/served_model.h"

namespace tessera::server {

Json model_json(const ServedModel& model, int context);
Json models_json(const ServedModel& model, int context);
Json props_json(const ServedModel& model, const EngineStatus& status, const ServerOptions& options);

}  // namespace tessera::server
