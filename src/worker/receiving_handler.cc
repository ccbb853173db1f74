#include "worker/receiving_handler.h"

#include <algorithm>

#include "base/check.h"

namespace tessera::worker {

// The model that HELLO names; the one before is forgotten.
Status ReceivingHandler::receive(const Hello& hello) {
  role_.reset();
  received_.reset();
  TESSERA_ASSIGN(received_,
                 ReceivedModel::receive(*channel_, hello.model,
                                        {.budget = static_cast<std::uint64_t>(options_.budget),
                                         .patience = options_.patience}));
  LayersHandlerOptions layers = options_.layers;
  ExpertsHandlerOptions experts = options_.experts;
  const auto kept = static_cast<std::int64_t>(received_->opening_bytes());
  layers.budget = experts.budget = std::max<std::int64_t>(0, options_.budget - kept);
  layers.source = experts.source = received_.get();
  role_ = std::make_unique<RoleHandler>(received_->model(), layers, experts);
  return {};
}

Result<Prepared> ReceivingHandler::prepare(const Hello& hello, const HelloAck& ack) {
  CHECK(channel_ != nullptr);
  if (!role_ || received_->digest() != hello.model) TESSERA_TRY(receive(hello));
  received_->connect(*channel_);
  if (model_dims(received_->model().spec()) != hello.dims)
    return Error::make(ErrorCode::not_found,
                       "the client's model has other dimensions than it says");
  return role_->prepare(hello, ack);
}

}  // namespace tessera::worker
