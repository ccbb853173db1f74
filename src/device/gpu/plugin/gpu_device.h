// GpuDevice: the Device contract on one GPU.
//
// The calls of a step are noted and go to the GPU together, when something needs their result or
// the step ends: a step of few rows whose shape was seen before is then one launch of a captured
// graph, or a few of kernels. A step that may_begin() is on the queue before its forerunner's
// tokens are read: the kernels take them from device memory, this GPU's or that of the one with the
// head, and each has its own rows of pinned memory to leave its tokens in. Nothing in a step waits
// for the host, but for the sums of experts that it asks it for (next_post()); for another GPU's
// rows and tokens the queue waits. The host waits in logits(), choose(), read_hidden(),
// await_kept(), routed_pairs() and next_post(), at most `wait_seconds`. A device that reports an
// error or does not answer in time is lost: fault() says why, and every further call does nothing.
// A load, and the end of a device, wait as long at most for each thing that is under way there;
// what does not end is left to the driver with all that it may use. For a thread that reads an
// expert from the model's file the end of a device waits as long as the file takes.
//
// A step allocates nothing, but where it is of a shape that was not seen before (or long ago): what
// is kept of that one, and its graph.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/gpu/plugin/expert_posts.h"
#include "device/gpu/plugin/expert_stream.h"
#include "device/gpu/plugin/gpu_step.h"
#include "device/gpu/plugin/gpu_weights.h"
#include "device/gpu/plugin/step_inputs.h"
#include "device/gpu/plugin/step_order.h"

namespace tessera::gpu {

class GpuDevice final : public Device {
 public:
  GpuDevice(std::string name, const GpuDeviceOptions& options, const GpuHost& host,
            const GpuTraits& traits);
  ~GpuDevice() override;

  std::string name() const override { return name_; }
  Status load(const Model& model, const ShardLayout& layout, const LoadProgress& progress) override;

  void begin(const BatchView& batch) override;
  // Of few rows, with every expert of the layers here and every token chosen on a card.
  bool may_begin(const BatchView& batch) override { return !lost() && goes_ahead(batch); }
  void take_tokens(const Device& last) override;
  void embed() override { note({Block::embed}); }
  void mixer(int layer) override { note({Block::mixer, layer}); }
  void route(int layer) override;
  // Whichever pairs come in whichever calls, they are those of the routing whose experts are here:
  // dense() or finish_ffn() computes them all.
  void experts(int, std::span<const RoutedPair>) override {}
  void all_experts(int) override {}
  // Begins with what is computed here, so that it runs while the rest is computed elsewhere.
  void dense(int layer) override;
  std::span<const float> expert_rows(int layer) override;
  void add_expert_sums(int layer, std::span<const std::int32_t> rows,
                       std::span<const double> sums) override;
  void finish_ffn(int layer) override;
  // Steps of up to kDecodeRows rows are the host's, so that a row of theirs has the same bits alone
  // and among others.
  std::span<const std::uint8_t> streamable(int layer) override;
  int least_streamed_rows() const override { return kDecodeRows + 1; }
  double stream_us(int layer, int experts) override;
  void stream_experts(int layer, std::span<const RoutedPair> pairs) override;
  StreamedExperts streamed() const override;
  void divide_reads(std::span<const std::uint8_t> reads) override { posts_.divide_reads(reads); }
  bool foresee_experts() override { return foresees_ = posts_.ready(); }
  ForeseenExperts foreseen() override;
  // Steps of up to kDecodeRows rows.
  bool posts_experts(int layer) const override {
    return shape_.rows <= kDecodeRows && lacks_experts(layer);
  }
  int next_post() override;
  void answer_post(int layer) override;
  void drop_posts() override;
  Status posts_answered() override;
  void head() override;

  std::span<const float> logits() override;
  // Not the rows of host_chooses().
  bool choose(std::span<ChosenToken> chosen) override;
  std::span<const RoutedPair> routed_pairs() override;
  Status fault() override { return fault_; }
  void abandon(const Error& why) override;
  void read_hidden(std::span<float> out) override;
  void write_hidden(std::span<const float> rows) override;
  // Rows where the vendor's driver copies from one to the other directly, tokens where kernels here
  // can read the other's memory.
  bool takes_from(Device& other) override;
  void keep_hidden(int place) override;
  void await_kept(int place) override;
  void take_hidden(const Device& from, int place) override;

  void reset_slot(int slot) override;
  void copy_slot(const StateCopy& slots) override;
  void copy_page(int kv_group, const StateCopy& pages) override;
  void begin_replace_expert(const ExpertMove& move) override;
  Result<bool> expert_replaced() override;

 private:
  Status begin_move();
  Status begin_reading();
  Result<bool> moved();
  Error late_move() const;
  using Clock = std::chrono::steady_clock;
  // Steps of one shape: from the second one on as a graph, where one can be made.
  struct Replay {
    std::uint64_t used = 0;  // the last time, by uses_
    bool ran = false;        // its kernels are in memory, which a capture cannot bring there
    bool captured = false;
    int failures = 0;         // to make its graph,
    std::uint64_t again = 0;  // which is tried again then, by uses_
    Graph graph;
  };
  // By shape and calls, found without a copy of them.
  struct ReplayKey {
    StepShape shape;
    std::vector<BlockCall> calls;
  };
  struct ReplayView {
    const StepShape& shape;
    std::span<const BlockCall> calls;
  };
  struct ReplayOrder {
    using is_transparent = void;
    static ReplayView view(const ReplayKey& key) { return {key.shape, key.calls}; }
    static ReplayView view(const ReplayView& key) { return key; }
    bool operator()(const auto& a, const auto& b) const { return less(view(a), view(b)); }
    static bool less(const ReplayView& a, const ReplayView& b) {
      if (a.shape != b.shape) return a.shape < b.shape;
      return std::lexicographical_compare(a.calls.begin(), a.calls.end(), b.calls.begin(),
                                          b.calls.end());
    }
  };

  LoadOptions load_options() const {
    return {.device = options_.index,
            .threads = options_.load_threads,
            .wait_seconds = options_.longest_wait(),
            .host = host_};
  }
  LoadQueue load_queue() const { return {stream_.get(), finished_, options_.longest_wait()}; }
  void close();
  Status load_all(const Model& model, const LoadProgress& progress);
  Status allocate(const WeightLayout& weights);
  void reserve();
  Status upload_constants();
  Status load_weights(const Model& model, const WeightLayout& layout, const LoadProgress& progress);
  Status prepare_experts(const Model& model);
  Status link_experts(int layer);
  Status begin_runs();
  void begin_branches(int layer);
  void post(int layer);
  bool joins_what_it_begins() const;
  // What is asked for and not answered never is, where the caller goes on to something else.
  void end_step() {
    if (answered_ < posting_.size()) drop_posts();
  }
  void finish_with_sums(int layer);
  void use();  // makes this device the thread's
  void note(const BlockCall& call) { program_.push_back(call); }
  void flush();
  Status run_program(std::size_t calls, std::int32_t number = 0);
  Status launch_program();
  struct UnderWay {
    std::size_t choices = 0;
    std::int32_t step = 0;
  };
  bool goes_ahead(const BatchView& batch) const;
  const Event& done_event(const UnderWay& step) const {
    return chosen_[static_cast<std::size_t>(step.step) % std::size_t{kMostUnderWay}];
  }
  void take_oldest(std::span<ChosenToken> chosen);
  void read_chosen(std::int32_t step, std::span<ChosenToken> chosen);
  Result<Replay*> replay();
  void capture(Replay& replay);
  Result<Graph> captured_graph();
  Status launch(const Replay& replay);
  Status enqueue_to_post(int layer);
  Status await_post(int layer);
  std::span<const RoutedPair> take_pairs(const std::int32_t* ids, const float* weights);
  bool lost() const { return !fault_.ok(); }
  bool takes_rows_from(GpuDevice& other);
  Status copy_rows(float* to, const float* from) const;
  const Event& kept_event(int place) const {
    return kept_[static_cast<std::size_t>(place < 0 ? layout_.kept_pieces + unmoved(place)
                                                    : place)];
  }
  const Event& taken_event(int place) const { return taken_[static_cast<std::size_t>(place)]; }
  float* kept(int place) const {
    if (place < 0) return scratch_.hidden;
    return scratch_.kept + std::int64_t{place} * layout_.max_rows * spec_.n_embd;
  }
  std::size_t hidden_bytes() const {
    return static_cast<std::size_t>(shape_.rows) * static_cast<std::size_t>(spec_.n_embd) *
           sizeof(float);
  }
  void check(Status status);
  Status wait();  // until the queue is empty
  Status too_late() const;
  Status fetch(void* to, const void* from, std::size_t bytes);
  Status settle_states();
  void enqueue_copy(std::byte* to, const std::byte* from, std::int64_t bytes);

  std::optional<LeftBehind> left_behind_;  // first, so that it goes last
  const std::string name_;
  const GpuDeviceOptions options_;
  const GpuHost host_;
  const GpuTraits traits_;

  ModelSpec spec_;
  ShardLayout layout_;
  StateLayout state_;
  Stream stream_;
  Event finished_;
  StepOrder order_;
  GpuWeights weights_;
  Scratch scratch_;
  DeviceBuffer scratch_memory_, slots_;
  std::vector<DeviceBuffer> pools_;
  PinnedBuffer host_logits_, host_chosen_, host_hidden_, host_routing_;
  Event hidden_sent_;
  std::vector<Event> kept_;          // by place: the rows are there
  std::vector<Event> taken_;         // by place of the device before: its rows are here
  bool reads_peer_ = false;          // kernels here can read that one's memory
  const GpuDevice* next_ = nullptr;  // that takes what is kept here
  bool hands_to_next_ = false;       // kernels here can write its memory, while its own run
  bool hands_rows_ = false;          // of the step under way
  std::unique_ptr<StepInputs> inputs_;
  std::unique_ptr<GpuStep> step_;

  // Steps under way whose tokens are all chosen here, oldest first.
  std::array<UnderWay, kMostUnderWay> under_way_;
  std::size_t n_under_way_ = 0;
  std::array<Event, kMostUnderWay> chosen_;  // by the step's number: behind it on the queue

  // The step under way that was begun last.
  StepShape shape_;
  StepRow row_;  // where the step has one
  bool goes_ahead_ = false;
  std::span<const TokenChoice> choices_;
  std::vector<BlockCall> program_;  // noted and not yet enqueued
  struct Routing {
    int layer = -1;
    bool enqueued = false;
    bool branches = false;  // enqueued, or noted
  };
  Routing routing_;
  std::vector<RoutedPair> pairs_;

  // Where experts are away from the device.
  const Model* model_ = nullptr;                  // its file is read for experts that come
  std::vector<std::vector<float>> expert_norms_;  // by layer of the shard: before the experts
  std::vector<std::vector<bool>> here_;           // by layer of the shard and expert
  std::vector<bool> lacks_;                       // by layer: ShardLayout::layer_lacking()
  bool lacks_experts(int layer) const {
    return !lacks_.empty() && lacks_[static_cast<std::size_t>(layer - layout_.first_layer)];
  }
  PinnedBuffer host_rows_, host_sums_;  // [max_rows][n_embd]
  bool sums_given_ = false;
  ExpertPosts posts_;
  SideQueue side_;
  bool foresees_ = false;
  std::vector<std::int32_t> foreseen_;
  std::vector<int> posting_;  // layers of the step under way, answered ones too
  int coming_ = -1;           // the layer of it that was foreseen last, until it posts
  std::size_t answered_ = 0;  // of them
  bool answering_ = false;    // the next one
  Replay* first_ = nullptr;   // of the step, where it goes without a graph
  ExpertStream streams_;
  std::vector<std::int32_t> streamed_;  // pairs by expert, of the layer under way; empty: none
  StreamedExperts read_;                // over the link, without a copy
  bool logits_here_ = false;
  Status fault_;

  std::map<ReplayKey, Replay, ReplayOrder> replays_;
  std::uint64_t uses_ = 0;
  bool told_of_graphs_ = false;  // that one was not made

  // The expert that is on its way, or came last. Behind all that its thread uses: that ends first.
  Event vacated_;  // no kernel uses its place any more
  struct Moving {
    ExpertMove move;
    Status begun;
    bool pinned = false;  // it comes from there, else a thread reads it
    std::byte* place = nullptr;
    Clock::time_point since;
    std::future<Status> read;
  } moving_;
};

}  // namespace tessera::gpu
