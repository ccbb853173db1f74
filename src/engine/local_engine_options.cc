#include "engine/local_engine_options.h"

#include <algorithm>

namespace tessera {
namespace {

Status check_options(const LocalEngineOptions& options, const SequencePool& pool) {
  const auto fits = [&](const char* what, int limit) -> Status {
    if (options.parallel <= limit) return {};
    return Error::make(ErrorCode::invalid, "parallel is {}, but there are {} {}", options.parallel,
                       limit, what);
  };
  if (options.parallel < 1)
    return Error::make(ErrorCode::invalid, "parallel is {}; it must be at least 1",
                       options.parallel);
  TESSERA_TRY(fits("sequence slots", pool.layout().slots));
  TESSERA_TRY(fits("rows in a step", options.max_rows));
  TESSERA_TRY(fits("logit rows in a step", options.max_logit_rows));
  if (options.max_queue < 0)
    return Error::make(ErrorCode::invalid, "max_queue is {}; it must not be negative",
                       options.max_queue);
  if (options.prefill_chunk < 1)
    return Error::make(ErrorCode::invalid, "prefill_chunk is {}; it must be at least 1",
                       options.prefill_chunk);
  if (options.context < 0 || options.context > pool.max_positions())
    return Error::make(ErrorCode::invalid,
                       "context is {}; the KV pool holds at most {} positions of one sequence",
                       options.context, pool.max_positions());
  return {};
}

int resolve_context(const LocalEngineOptions& options, const SequencePool& pool,
                    const ModelSpec& spec) {
  if (options.context > 0) return options.context;
  return spec.context_length > 0 ? std::min(spec.context_length, pool.max_positions())
                                 : pool.max_positions();
}

}  // namespace

Result<LocalEngineOptions> resolved_options(const LocalEngineOptions& options,
                                            const SequencePool& pool, const ModelSpec& spec) {
  TESSERA_TRY(check_options(options, pool));
  LocalEngineOptions resolved = options;
  resolved.context = resolve_context(options, pool, spec);
  return resolved;
}

}  // namespace tessera
