#include "cli/answer.h"

#include "base/log.h"
#include "cli/loading.h"
#include "cli/output.h"

namespace tessera::cli {
namespace {

double per_second(int count, double seconds) {
  return seconds > 0.0 ? count / seconds : 0.0;
}

}  // namespace

Result<RequestId> CancellableEngine::submit(GenerationRequest request, EventSink sink) {
  // Under the lock, so that a signal finds either no answer or its id.
  std::lock_guard lock(mutex_);
  TESSERA_ASSIGN(const RequestId id, engine_.submit(std::move(request), std::move(sink)));
  current_ = id;
  return id;
}

bool CancellableEngine::cancel_current() {
  std::lock_guard lock(mutex_);
  if (!current_) return false;
  engine_.cancel(*current_);
  current_.reset();
  return true;
}

void CancellableEngine::end_answer() {
  std::lock_guard lock(mutex_);
  current_.reset();
}

GenerationRequest request_for(const Config& config, std::vector<TokenId> prompt) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = config.small("run.n");
  request.sampling = sampling_params(config);
  request.ignore_eos = config.flag("run.ignore_eos");
  request.show_special = config.flag("run.show_special");
  return request;
}

Result<Generated> answer(CancellableEngine& engine, GenerationRequest request, bool stream) {
  Result<Generated> generated =
      generate(engine, std::move(request), [stream](std::string_view text) {
        if (stream) {
          print_out(text);
          flush_out();
        }
        return true;
      });
  engine.end_answer();
  if (stream) {
    print_out("\n");
    flush_out();  // ahead of what the log says next, also in a pipe
  }
  return generated;
}

void log_speed(const Finish& finish) {
  const Usage& usage = finish.usage;
  log_info("{} prompt tokens in {:.2f} s ({:.1f}/s), {} tokens in {:.2f} s ({:.1f}/s); {}",
           usage.prompt_tokens, usage.prompt_s, per_second(usage.prompt_tokens, usage.prompt_s),
           usage.generated_tokens, usage.generate_s,
           per_second(usage.generated_tokens, usage.generate_s), finish_name(finish.reason));
  if (!usage.experts) return;
  const ExpertUse& use = *usage.experts;
  log_info(
      "pairs: {:.0f} resident, {:.0f} streamed, {:.0f} by the host, {:.0f} by workers; waited "
      "{:.1f} ms, {:.1f} "
      "ms hidden",
      use.pairs_resident, use.pairs_streamed, use.host.pairs, use.worker.pairs,
      (use.host.wait_us + use.worker.wait_us) / 1e3,
      (use.host.hidden_us + use.worker.hidden_us) / 1e3);
}

}  // namespace tessera::cli
