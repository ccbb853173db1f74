// A JobHandler for tests: "experts" that scale, so that results are known without weights. The
// result of a row is the sum over its pairs of weight x (expert + 1) x row.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <vector>

#include "worker/jobs.h"
#include "worker/serve.h"

namespace tessera::worker {

inline ModelDims scale_dims() {
  return {.n_layer = 4,
          .n_embd = 64,
          .n_vocab = 100,
          .n_expert = 8,
          .n_expert_used = 2,
          .n_ff_expert = 16};
}

inline WorkerOffer scale_offer() {
  WorkerOffer offer{.roles = role_bit(Role::experts), .dims = scale_dims()};
  offer.model[0] = std::byte{42};
  return offer;
}

inline Hello scale_hello() {
  Hello hello{.role = Role::experts,
              .dims = scale_dims(),
              .first_layer = 0,
              .end_layer = 4,
              .max_rows = 64,
              .max_pairs = 256,
              .credits = 4,
              .owned = std::vector<std::byte>(4, std::byte{0xff})};
  hello.model[0] = std::byte{42};
  return hello;
}

class ScaleHandler final : public JobHandler {
 public:
  void set_before_job(std::function<void(const FrameHeader&)> function) {
    const std::lock_guard lock(mutex_);
    before_job_ = std::move(function);
  }

  void say_near() { says_near_ = true; }

  Result<Prepared> prepare(const Hello&, const HelloAck&) override {
    return Prepared{.memory_used = 1};
  }
  Result<JobOutput> run(const FrameHeader& header, std::span<const std::byte> body,
                        const WireLimits& limits, const Near& near) override {
    std::function<void(const FrameHeader&)> before;
    {
      const std::lock_guard lock(mutex_);
      before = before_job_;
    }
    if (before) before(header);
    if (says_near_) near();
    ExpertsBody job;
    TESSERA_TRY(decode_experts(header, body, limits, job));
    if (header.layer == 3) return Error::make(ErrorCode::not_found, "layer 3 is not here");
    std::vector<float> in(std::size_t{header.rows} * limits.n_embd), out(in.size());
    unpack_rows(job.rows, header.in_type, in);
    for (const WirePair& pair : job.pairs)
      for (std::size_t c = 0; c < limits.n_embd; ++c)
        out[pair.row * limits.n_embd + c] +=
            pair.weight * static_cast<float>(pair.expert + 1) * in[pair.row * limits.n_embd + c];
    result_.resize(wire_bytes(header.out_type, out.size()));
    pack_rows(out, header.out_type, result_);
    return JobOutput{header.rows, limits.n_embd, header.out_type, result_};
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> says_near_{false};
  std::function<void(const FrameHeader&)> before_job_;
  std::vector<std::byte> result_;
};

// One row of ones to expert 1 with weight 0.5, and to expert 3 with weight 2: a row of nines.
struct ScaleJob {
  FrameHeader header{.op = Op::compute_experts,
                     .layer = 1,
                     .rows = 1,
                     .items = 2,
                     .in_type = WireType::f32,
                     .out_type = WireType::f32};
  std::vector<std::byte> head, rows;

  ScaleJob() {
    encode_experts_head(std::vector<WirePair>{{0, 1, 0.5f}, {0, 3, 2.0f}}, head);
    rows.resize(64 * 4);
    pack_rows(std::vector<float>(64, 1.0f), WireType::f32, rows);
  }
  std::array<std::span<const std::byte>, 2> parts() const { return {head, rows}; }
};

inline bool all_nines(std::span<const std::byte> body) {
  std::vector<float> out(64);
  if (body.size() != 64 * 4) return false;
  unpack_rows(body, WireType::f32, out);
  return out == std::vector<float>(64, 9.0f);
}

}  // namespace tessera::worker
