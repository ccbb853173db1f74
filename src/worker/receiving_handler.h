// ReceivingHandler: a worker of either role that has no model file and takes the model from its
// client (received_model.h). It keeps the model, and what it loaded of it, for the next client.
//
//   ReceivingHandler handler({.layers = ..., .experts = ..., .budget = bytes});
//   handler.connect(channel);                    // each time, before
//   serve(channel, offer, handler, stats);       // with offer.receives
//
// `budget` is for all: what of the model's files is kept besides the weights, and the rest.
#pragma once

#include <memory>

#include "worker/received_model.h"
#include "worker/role_handler.h"

namespace tessera::worker {

struct ReceivingHandlerOptions {
  LayersHandlerOptions layers;  // their budgets and sources are set here
  ExpertsHandlerOptions experts;
  std::int64_t budget = 0;
  std::chrono::milliseconds patience = kTransferPatience;
};

class ReceivingHandler final : public JobHandler {
 public:
  explicit ReceivingHandler(const ReceivingHandlerOptions& options) : options_(options) {}

  // The client of the next prepare(). The channel must live until then.
  void connect(Channel& channel) { channel_ = &channel; }
  const ReceivedModel* received() const { return received_.get(); }  // null: none yet

  Result<Prepared> prepare(const Hello& hello, const HelloAck& ack) override;
  Result<JobOutput> run(const FrameHeader& header, std::span<const std::byte> body,
                        const WireLimits& limits, const Near& near) override {
    return role_->run(header, body, limits, near);
  }
  ExpertCounts expert_counts() const override { return role_->expert_counts(); }
  Status routed(std::uint16_t layer, std::vector<std::byte>& body) override {
    return role_->routed(layer, body);
  }
  bool lost() const override { return role_->lost(); }

 private:
  Status receive(const Hello& hello);

  ReceivingHandlerOptions options_;
  Channel* channel_ = nullptr;
  std::unique_ptr<ReceivedModel> received_;
  std::unique_ptr<RoleHandler> role_;  // over received_'s model
};

}  // namespace tessera::worker
