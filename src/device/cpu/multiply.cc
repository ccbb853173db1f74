#include <algorithm>

#include "device/cpu/step_context.h"

namespace tessera::cpu {
namespace {

// Rows of activations that stay in a core's cache while the groups of a piece pass over them.
constexpr int kRowBlock = 128;

// Groups of `w`, packed or of a file, whose row 0 gives the first of `out`.
template <typename Matrix>
void multiply_groups(const StepContext& context, const Product& p, const Matrix& w,
                     GroupRange groups, float* out) {
  for (int row = 0; row < p.n_rows; row += kRowBlock) {
    const int n = std::min(kRowBlock, p.n_rows - row);
    Activations x = p.x;
    std::span<const std::int32_t> ids;
    if (!p.row_ids.empty()) {
      ids = p.row_ids.subspan(static_cast<std::size_t>(row), static_cast<std::size_t>(n));
    } else {
      x.rows += row * x.stride;
      if (x.records != nullptr) x.records += row;
    }
    matmul(context.matmul, w, groups, x, ids, n, out + row * p.out_stride, p.out_stride);
  }
}

void multiply_piece(const StepContext& context, const TeamMember& member, const Product& p,
                    GroupRange groups) {
  if (p.w->file == nullptr) return multiply_groups(context, p, *p.w, groups, p.out);
  PackRoom& room = context.rooms[static_cast<std::size_t>(member.index())];
  for_each_part(*p.w->file, *p.w, {.groups = groups}, room,
                [&](const auto& part, GroupRange of_part, std::int64_t first_row) {
                  multiply_groups(context, p, part, of_part, p.out + first_row);
                });
}

}  // namespace

void multiply(const StepContext& context, TeamMember& member, std::span<const Product> products) {
  std::int64_t total = 0;
  for (const Product& p : products) total += p.w->groups();
  // Several pieces a member, so that one that is held up costs little.
  const std::int64_t grain = std::max<std::int64_t>(1, total / (member.size() * 8));
  member.for_each(static_cast<int>(total), static_cast<int>(grain), [&](int begin, int end) {
    std::int64_t first = 0;  // group of the phase at which the product starts
    for (const Product& p : products) {
      const std::int64_t groups = p.w->groups();
      const std::int64_t from = std::max<std::int64_t>(begin - first, 0);
      const std::int64_t to = std::min<std::int64_t>(end - first, groups);
      if (from < to) multiply_piece(context, member, p, {from, to});
      first += groups;
      if (first >= end) break;
    }
  });
}

void norm_rows(const StepContext& context, TeamMember& member, const LayerWeights& weights,
               TensorRole norm) {
  const Scratch& s = context.scratch;
  const Activations x = activations(s.normed, context.max_rows, context.n_embd(), s.normed_records);
  member.for_each(context.rows(), 1, [&](int begin, int end) {
    for (int row = begin; row < end; ++row)
      context.ops.rms_norm(context.hidden_row(row), weights.vector(norm), context.spec.norm_eps,
                           context.n_embd(), s.normed + row * x.stride);
    if (weights.reads_records) quantize_rows(context.matmul, x, begin, end);
  });
}

void add_branch(const StepContext& context, const LayerWeights& weights, int begin, int end) {
  const float* post_norm = weights.vector(TensorRole::mixer_post_norm);
  for (int row = begin; row < end; ++row) {
    float* branch = context.branch_row(row);
    float* hidden = context.hidden_row(row);
    if (post_norm != nullptr)
      context.ops.rms_norm(branch, post_norm, context.spec.norm_eps, context.n_embd(), branch);
    context.ops.add(hidden, branch, context.n_embd(), hidden);
  }
}

}  // namespace tessera::cpu
