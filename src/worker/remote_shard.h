// RemoteShard: a shard of the pipeline that a worker holds (role layers).
//
//   auto shard = RemoteShard::create(site, {.layout = shard.layout, .context = plan.context},
//                                    model, metrics);            // the worker loads from now on
//   TESSERA_TRY(shard->load(model, progress));                   // until it has, or why not
//
// Rows, tokens, state changes and changes of page tables go to the worker as FORWARD_LAYERS jobs,
// residual rows come back, in f32, or from the shard with the head the tokens that were chosen
// there: what a local shard gives. Logits come where they were asked for, and where the choices are
// more than the wire takes (token_wire.h); then the choosing is done here. As many pieces as the
// worker grants credits are under way at once.
//
// A worker at an address that has no file of the model is sent it, so the model must outlive the
// shard.
//
// A lost worker (dead, hung past the site's job limit, or wrong) makes every call fail with
// ErrorCode::unavailable until restart(), which takes up the worker that the supervisor has started
// or connected to meanwhile. What the old one knew is gone with it. A worker that dies again after
// kMostRestarts within ten minutes has failed: a spawned one is not started again.
//
// Metrics besides the supervisor's: tessera_worker_jobs_total, tessera_worker_lost_total{reason},
// tessera_worker_bytes_total{direction}, tessera_worker_wait_microseconds_total,
// tessera_worker_logits_total{reason}, all with the label worker. What the worker's layers count of
// experts away comes with each result, what they count of their routing some time after
// (session.h): the last of it comes before a shard that is destroyed is gone, where its worker
// answers within half a second.
//
// Threads: as Shard. The supervisor has its own.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/fixed_queue.h"
#include "base/metrics.h"
#include "pipeline/shard.h"
#include "worker/page_tables.h"
#include "worker/site.h"

namespace tessera::worker {

struct RemoteShardOptions {
  ShardLayout layout;
  int context = 0;  // positions of a sequence
  bool chunked_delta = false;
  int credits = kPiecesPerBoundary;  // jobs under way at once
  ExpertMetrics* experts = nullptr;  // gets what the worker counts of experts away; may be null
  PlacedCost expert_cost{};          // that its host was reckoned to have
  // Gets what the worker counts of its layers' routing; may be null. Must outlive the shard.
  RoutingCounts* counts = nullptr;
};

class RemoteShard final : public Shard {
 public:
  static Result<std::unique_ptr<RemoteShard>> create(const WorkerSite& site,
                                                     const RemoteShardOptions& options,
                                                     const Model& model, MetricsRegistry& metrics);

  Status load(const Model& model, const LoadProgress& progress) override;
  int depth() const override { return depth_; }
  bool elsewhere() const override { return true; }
  Status prepare(Piece& piece) override;
  Status start(Piece& piece) override;
  Status finish(Piece& piece, const std::function<void()>& near) override;
  std::span<const float> logits() override { return logits_; }
  Status ready() const override;
  Absence absence() const override { return supervisor_->absence(); }
  bool await_failed() const override { return supervisor_->await_failed(); }
  std::vector<std::string> away() const override;
  Status restart() override;
  void hurry() override { supervisor_->hurry(); }
  void give_up() override { supervisor_->begin_stop(); }

 private:
  // Why a job was lost.
  enum class Loss { worker, deadline, refused, size };
  struct UnderWay {
    Ticket ticket;
    Deadline submitted;  // when that began
  };

  RemoteShard(const WorkerSite& site, const RemoteShardOptions& options, const Model& model,
              const Hello& hello, MetricsRegistry& metrics);
  Status adopt(std::shared_ptr<Session> session);
  void count_experts();
  Error lost(Loss reason, const std::string& detail);
  bool asks_for_tokens(const Piece& piece) const;
  std::uint16_t flags_of(const Piece& piece) const;
  Status check_reply(const Piece& piece, const JobReply& reply);
  Deadline limit(const UnderWay& job) const;
  Status take_rows(Piece& piece, const JobReply& reply);
  Status take_tokens(Piece& piece, const JobReply& reply);

  WorkerSite site_;
  RemoteShardOptions options_;
  Hello hello_;
  int n_vocab_;
  std::optional<TokenChooser> chooser_;  // with the head: for choices that the wire does not take

  Counter& jobs_;
  std::array<Counter*, 4> losses_{};
  Counter& bytes_sent_;
  Counter& bytes_received_;
  Counter& wait_us_;
  Counter& logits_instead_;  // of tokens

  std::shared_ptr<Session> session_;  // null after a loss
  int depth_ = 1;
  PageTables pages_;  // what the worker was told
  ForwardBody job_;
  std::vector<std::byte> head_;
  FixedQueue<UnderWay> under_way_;
  Deadline finished_{};  // when the last job was
  JobReply reply_;
  std::span<const float> logits_;  // of reply_

  std::unique_ptr<Supervisor> supervisor_;
};

}  // namespace tessera::worker
