// RoleHandler: a worker that takes the role which its client asks for, one at a time. What it
// loaded for one role is given back when the next client asks for the other.
#pragma once

#include "worker/experts_handler.h"
#include "worker/layers_handler.h"

namespace tessera::worker {

class RoleHandler final : public JobHandler {
 public:
  RoleHandler(const Model& model, const LayersHandlerOptions& layers,
              const ExpertsHandlerOptions& experts)
      : layers_(model, layers), experts_(model, experts) {}

  Result<Prepared> prepare(const Hello& hello, const HelloAck& ack) override {
    if (hello.role == Role::layers) {
      experts_.release();
      current_ = &layers_;
    } else {
      layers_.release();
      current_ = &experts_;
    }
    return current_->prepare(hello, ack);
  }
  Result<JobOutput> run(const FrameHeader& header, std::span<const std::byte> body,
                        const WireLimits& limits, const Near& near) override {
    return current_->run(header, body, limits, near);
  }
  ExpertCounts expert_counts() const override { return current_->expert_counts(); }
  Status routed(std::uint16_t layer, std::vector<std::byte>& body) override {
    return current_->routed(layer, body);
  }
  bool lost() const override { return current_->lost(); }

 private:
  LayersHandler layers_;
  ExpertsHandler experts_;
  JobHandler* current_ = nullptr;
};

}  // namespace tessera::worker
