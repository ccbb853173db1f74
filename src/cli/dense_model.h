// Options that only routed experts have a use for, where the model has none.
#pragma once

#include "cli/config.h"
#include "model/model.h"

namespace tessera::cli {

// An error that names the first such option that was given. What a configuration file says may be
// meant for other models and is told as a warning; a worker of experts is an error there too.
Status check_dense_model(const Config& config, const Model& model);

}  // namespace tessera::cli
