#include "server/generation_exchange.h"

#include <utility>

#include "server/sse.h"

namespace tessera::server {
namespace {

// An engine error as the client of a submitted request sees it.
ApiError engine_error(const Error& error, Absence absence, bool healthy) {
  ApiError out = from_error(error);
  if (out.status != 503) return out;
  // What does not come back by itself is not a case for a retry.
  if (!healthy) return {.code = "engine_fault", .message = error.message};
  if (const char* reason = absence_name(absence)) out.extra["reason"] = reason;
  if (absence == Absence::failed) out.retry_after_s.reset();
  return out;
}

HttpResponse stream_head(const Headers& notes) {
  HttpResponse head{.headers = {{"Content-Type", "text/event-stream"},
                                {"Cache-Control", "no-cache"},
                                {"X-Accel-Buffering", "no"}}};
  head.headers.insert(head.headers.end(), notes.begin(), notes.end());
  return head;
}

}  // namespace

GenerationExchange::GenerationExchange(Setup setup, ResponseWriter& writer)
    : setup_(std::move(setup)), writer_(&writer) {}

void GenerationExchange::start(GenerationKind kind, std::string body) {
  const EngineStatus engine = setup_.engine.status();
  setup_.executors.worker(
      [self = weak_from_this(), model = setup_.model, limits = setup_.limits,
       fingerprint = setup_.fingerprint, io = setup_.executors.io, kind, context = engine.context,
       most_choices = engine.parallel + engine.max_queue, body = std::move(body)] {
        if (self.expired()) return;
        const PrepareContext prepare{*model, limits, context, most_choices, fingerprint};
        auto result = std::make_shared<Prepared>(kind == GenerationKind::chat
                                                     ? prepare_chat(body, prepare)
                                                     : prepare_completion(body, prepare));
        io([self, result] {
          if (const auto exchange = self.lock()) exchange->prepared(std::move(*result));
        });
      });
}

void GenerationExchange::prepared(Prepared result) {
  if (!writer_) return;
  if (const auto* error = std::get_if<ApiError>(&result)) return fail(*error);
  submit(std::get<PreparedGeneration>(std::move(result)));
}

void GenerationExchange::submit(PreparedGeneration prepared) {
  reply_ = std::move(prepared.reply);
  headers_ = std::move(prepared.headers);
  choices_.reserve(prepared.requests.size());
  for (std::size_t i = 0; i < prepared.requests.size(); ++i) {
    const auto id = setup_.engine.submit(
        std::move(prepared.requests[i]),
        [self = weak_from_this(), io = setup_.executors.io, i](GenerationEvent event) {
          io([self, i, event = std::move(event)]() mutable {
            if (const auto exchange = self.lock()) exchange->on_event(i, std::move(event));
          });
        });
    if (!id) {
      const EngineStatus status = setup_.engine.status();
      return fail(engine_error(id.error(), status.absence, status.healthy));
    }
    choices_.push_back({.id = *id});
  }
  if (!reply_->head().stream) return;
  streaming_ = true;
  writer_->begin_stream(stream_head(headers_), std::string(kSsePing));
}

void GenerationExchange::on_event(std::size_t index, GenerationEvent event) {
  if (!writer_) return;
  Choice& choice = choices_[index];
  if (event.error || event.finish) choice.open = false;
  // The part that was away may be back by now.
  if (event.error)
    return fail(engine_error(*event.error, event.absence, setup_.engine.status().healthy));
  if (event.finish && event.finish->reason == FinishReason::cancelled) {
    return fail(
        unavailable("the generation was cancelled: the server is shutting down", "cancelled"));
  }
  if (!event.tokens.empty() && !std::exchange(first_token_, true)) {
    setup_.metrics.ttft.observe(age());
  }
  const std::string bytes = reply_->feed(static_cast<int>(index), std::move(event));
  if (!bytes.empty()) writer_->write(bytes);
  // A reader that is too slow is dropped inside write().
  if (writer_ && reply_->finished()) finish();
}

double GenerationExchange::age() const {
  return std::chrono::duration<double>(Clock::now() - begin_).count();
}

void GenerationExchange::finish() {
  ResponseWriter& writer = *std::exchange(writer_, nullptr);
  setup_.metrics.e2e.observe(age());
  if (streaming_) {
    writer.write(reply_->stream_end());
    writer.end_stream();
    return;
  }
  HttpResponse response{.headers = std::move(headers_), .body = dump_json(reply_->whole())};
  response.headers.emplace_back("Content-Type", "application/json");
  writer.send(std::move(response));
}

void GenerationExchange::fail(const ApiError& error) {
  cancel_open();
  ResponseWriter& writer = *std::exchange(writer_, nullptr);
  if (!streaming_) return writer.send(error_response(error));
  setup_.metrics.stream_errors.add();
  writer.write(sse_data(dump_json(error_body(error))));
  writer.end_stream();
}

void GenerationExchange::cancel_open() {
  for (Choice& choice : choices_) {
    if (std::exchange(choice.open, false)) setup_.engine.cancel(choice.id);
  }
}

void GenerationExchange::disconnected() {
  if (!writer_) return;
  writer_ = nullptr;
  setup_.metrics.count_cancelled(choices_.empty() ? "parse" : first_token_ ? "decode" : "prefill");
  cancel_open();
}

void GenerationExchange::shut_down() {
  if (writer_) fail(unavailable("the server is shutting down", "draining"));
}

}  // namespace tessera::server
