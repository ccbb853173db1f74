#include "device/gpu/plugin/expert_posts.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace tessera::gpu {
namespace {

// No GPU's clock is faster, and a wait may be longer where it is slower.
constexpr double kClocksPerSecond = 3e9;

using Word = std::atomic_ref<std::int32_t>;

}  // namespace

Result<ExpertPosts> ExpertPosts::create(const PostsLayout& layout, double wait_seconds) {
  ExpertPosts posts;
  posts.layout_ = layout;
  posts.most_clocks_ = static_cast<std::int64_t>(std::min(wait_seconds, 1e9) * kClocksPerSecond);
  TESSERA_ASSIGN(posts.memory_,
                 PinnedBuffer::allocate(layout.bytes, "experts asked for", Seen::at_once));
  // Steps count from 1 on.
  std::memset(posts.memory_.as<>(), 0, static_cast<std::size_t>(layout.bytes));
  return posts;
}

void ExpertPosts::divide_reads(std::span<const std::uint8_t> reads) {
  std::copy_n(reads.begin(), std::min(reads.size(), reads_.size()), reads_.begin());
}

bool ExpertPosts::reads_any() const {
  return std::any_of(reads_.begin(), reads_.end(), [](int n) { return n > 0; });
}

AwayArgs ExpertPosts::args(int layer, const std::int32_t* step) const {
  AwayArgs args{.step = step,
                .ids = at<std::int32_t>(layout_.ids) + pairs(layer),
                .weights = at<float>(layout_.weights) + pairs(layer),
                .x = x(),
                .posted = row(layout_.posted, layer),
                .sums = sums(),
                .answered = row(layout_.answered, layer),
                .given_up = at<std::int32_t>(layout_.given_up),
                .most_clocks = most_clocks_};
  std::copy(reads_.begin(), reads_.end(), args.reads);
  return args;
}

AwayArgs ExpertPosts::foresee_args(int layer, const std::int32_t* step) const {
  AwayArgs args{.step = step,
                .ids = at<std::int32_t>(layout_.foreseen_ids) + pairs(layer),
                .posted = row(layout_.foreseen, layer)};
  std::copy(reads_.begin(), reads_.end(), args.reads);
  return args;
}

bool ExpertPosts::all_at(std::int64_t offset, int layer, int rows, std::int32_t step) const {
  std::int32_t* first = row(offset, layer);
  return std::all_of(first, first + rows, [&](std::int32_t& word) {
    return Word(word).load(std::memory_order_acquire) == step;
  });
}

bool ExpertPosts::posted(int layer, int rows, std::int32_t step) const {
  return all_at(layout_.posted, layer, rows, step);
}

bool ExpertPosts::foreseen(int layer, int rows, std::int32_t step) const {
  return all_at(layout_.foreseen, layer, rows, step);
}

void ExpertPosts::answer(int layer, int rows, std::int32_t step) const {
  std::int32_t* answered = row(layout_.answered, layer);
  for (int i = 0; i < rows; ++i) Word(answered[i]).store(step, std::memory_order_release);
}

bool ExpertPosts::given_up(std::int32_t step) const {
  return Word(*at<std::int32_t>(layout_.given_up)).load(std::memory_order_acquire) == step;
}

void ExpertPosts::give_up(std::int32_t step) const {
  Word(*at<std::int32_t>(layout_.given_up)).store(step, std::memory_order_release);
}

}  // namespace tessera::gpu
