// ExpertPosts: the pinned memory by which a step of few rows asks the host for experts that are not
// on the device, while it runs (AwayArgs in kernels/kernels.h).
//
//   device: row chooses -> ids, weights, x, posted = step | resident experts | waits | adds sums
//   host:                       sees posted -> computes -> sums, answered = step
//
//   while (!posts.posted(layer, rows, step)) look_elsewhere();
//   add_up(posts.ids(layer), posts.weights(layer), posts.x(), posts.sums());
//   posts.answer(layer, rows, step);
//
// `layer` counts from the shard's first one. Rows and sums are of one layer at a time: the next one
// posts when this one was answered. One thread uses it beside the device. It never waits.
#pragma once

#include <array>
#include <span>

#include "device/gpu/gpu_layout.h"
#include "device/gpu/plugin/driver.h"

namespace tessera::gpu {

class ExpertPosts {
 public:
  // Nobody waits longer than `wait_seconds`.
  static Result<ExpertPosts> create(const PostsLayout& layout, double wait_seconds);

  // AwayArgs::reads of the kernels that are enqueued from then on.
  void divide_reads(std::span<const std::uint8_t> reads);
  bool reads_any() const;

  bool ready() const { return memory_.as<>() != nullptr; }
  AwayArgs args(int layer, const std::int32_t* step) const;

  // Of a layer that is not computed yet.
  AwayArgs foresee_args(int layer, const std::int32_t* step) const;

  bool posted(int layer, int rows, std::int32_t step) const;
  void answer(int layer, int rows, std::int32_t step) const;
  // From either side. It knows one step, the last: kernels of one that was given up before and that
  // has not ended wait for its answers again, as long as `wait_seconds`. So a step is given up
  // where it has posted, since those before it have ended then, or where none of those was given
  // up.
  bool given_up(std::int32_t step) const;
  void give_up(std::int32_t step) const;

  // Of the rows, [rows][used of the layer].
  const std::int32_t* ids(int layer) const { return at<std::int32_t>(layout_.ids) + pairs(layer); }
  const float* weights(int layer) const { return at<float>(layout_.weights) + pairs(layer); }
  // Whether the layer's rows were foreseen in this step; [rows][used of the layer].
  bool foreseen(int layer, int rows, std::int32_t step) const;
  const std::int32_t* foreseen_ids(int layer) const {
    return at<std::int32_t>(layout_.foreseen_ids) + pairs(layer);
  }
  float* x() const { return at<float>(layout_.x); }
  float* sums() const { return at<float>(layout_.sums); }

 private:
  template <typename T>
  T* at(std::int64_t offset) const {
    return reinterpret_cast<T*>(memory_.as<>() + offset);
  }
  std::int64_t pairs(int layer) const { return std::int64_t{layer} * layout_.rows * layout_.used; }
  // The first of a layer's rows.
  std::int32_t* row(std::int64_t offset, int layer) const {
    return at<std::int32_t>(offset) + std::int64_t{layer} * layout_.rows;
  }
  bool all_at(std::int64_t offset, int layer, int rows, std::int32_t step) const;

  PostsLayout layout_;
  PinnedBuffer memory_;
  std::int64_t most_clocks_ = 0;
  std::array<std::uint8_t, kMaxUsed + 1> reads_{};
};

}  // namespace tessera::gpu
