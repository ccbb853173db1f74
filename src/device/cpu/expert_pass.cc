#include "device/cpu/expert_pass.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace tessera::cpu {
namespace {

const TensorSlice& slice_of(const FileExperts& files, TensorRole role) {
  switch (role) {
    case TensorRole::moe_gate:
      return *files.gate;
    case TensorRole::moe_up:
      return *files.up;
    default:
      return *files.down;
  }
}

}  // namespace

std::int64_t pack_room_bytes(std::span<const TensorSlice> tensors) {
  std::int64_t bytes = kPackBytes;
  for (const TensorSlice& slice : tensors)
    if (slice.matrices > 1)
      bytes = std::max({bytes, packed_group_bytes(slice.type, slice.cols),
                        packed_group_bytes(BlockType::F32, slice.cols)});
  return bytes;
}

ExpertPass::Range ExpertPass::rows_of(int expert) const {
  const int first = expert == 0 ? first_ : buffers_.expert_ends[expert - 1];
  return {first, buffers_.expert_ends[expert] - first};
}

// Calls f(piece) for every matrix of `roles` of every active expert, cut into pieces.
template <typename F>
void ExpertPass::for_each_piece(TeamMember& member, std::span<const TensorRole> roles, F f) const {
  const std::vector<int>& active = *buffers_.active;
  const int groups = static_cast<int>(parts_.weights.matrix(roles[0]).groups());
  const int n_roles = static_cast<int>(roles.size());
  const int matrices = static_cast<int>(active.size()) * n_roles;
  // About eight pieces a member, but no smaller than what hides the cost of handing one out.
  const int wanted = std::max(1, matrices * groups / (member.size() * 8));
  const int piece = std::clamp(wanted, std::min(4, groups), groups);
  const int pieces = (groups + piece - 1) / piece;
  member.for_each(matrices * pieces, 1, [&](int begin, int end) {
    for (int i = begin; i < end; ++i) {
      const int matrix = i / pieces;
      const int first = i % pieces * piece;
      f(Piece{.expert = active[static_cast<std::size_t>(matrix / n_roles)],
              .role = roles[static_cast<std::size_t>(matrix % n_roles)],
              .groups = {first, std::min(groups, first + piece)}});
    }
  });
}

// `out` is where row 0 of the piece's matrix goes.
void ExpertPass::multiply(TeamMember& member, const Piece& piece, const Activations& x,
                          std::span<const std::int32_t> ids, int rows, float* out) const {
  const PackedMatrix& shape = parts_.weights.matrix(piece.role);
  if (parts_.weights.holds(piece.expert)) {
    matmul(parts_.matmul, parts_.weights.expert(piece.role, piece.expert), piece.groups, x, ids,
           rows, out, shape.rows());
    return;
  }
  CHECK(parts_.files != nullptr, "expert {} is not here", piece.expert);
  const TensorSlice& slice = slice_of(*parts_.files, piece.role);
  PackRoom& room = parts_.files->room[static_cast<std::size_t>(member.index())];
  for_each_part(slice, shape, {.matrix = piece.expert, .groups = piece.groups}, room,
                [&](const auto& part, GroupRange groups, std::int64_t first_row) {
                  matmul(parts_.matmul, part, groups, x, ids, rows, out + first_row, shape.rows());
                });
}

void ExpertPass::hidden(TeamMember& member, const Activations& x) const {
  constexpr std::array roles = {TensorRole::moe_gate, TensorRole::moe_up};
  for_each_piece(member, roles, [&](const Piece& piece) {
    const Range rows = rows_of(piece.expert);
    float* out = piece.role == TensorRole::moe_gate ? buffers_.gate : buffers_.up;
    multiply(member, piece, x,
             {buffers_.pair_rows + rows.first, static_cast<std::size_t>(rows.count)}, rows.count,
             out + std::int64_t{rows.first} * parts_.moe.n_ff);
  });
}

void ExpertPass::activate(int begin, int end, const Activations& hidden) const {
  const std::int64_t n_ff = parts_.moe.n_ff;
  for (std::int64_t i = begin; i < end; ++i) {
    float* gate = buffers_.gate + i * n_ff;
    const float* up = buffers_.up + i * n_ff;
    if (parts_.moe.activation == Activation::silu)
      parts_.ops.silu_mul(gate, up, n_ff, gate);
    else
      parts_.ops.gelu_tanh_mul(gate, up, n_ff, gate);
  }
  if (uses_records(parts_.weights.matrix(TensorRole::moe_down).type()))
    quantize_rows(parts_.matmul, hidden, begin, end);
}

void ExpertPass::output(TeamMember& member, const Activations& hidden) const {
  constexpr std::array roles = {TensorRole::moe_down};
  const std::int64_t n_embd = parts_.weights.matrix(TensorRole::moe_down).rows();
  for_each_piece(member, roles, [&](const Piece& piece) {
    const Range rows = rows_of(piece.expert);
    Activations x = hidden;
    x.rows += rows.first * x.stride;
    x.records += rows.first;
    multiply(member, piece, x, {}, rows.count, buffers_.out + std::int64_t{rows.first} * n_embd);
  });
}

void ExpertPass::run(TeamMember& member, const Activations& x) const {
  if (count_ == 0) return;
  const Activations between{.rows = buffers_.gate,
                            .stride = parts_.moe.n_ff,
                            .n_rows = buffers_.pairs,
                            .cols = parts_.moe.n_ff,
                            .records = buffers_.records};
  hidden(member, x);
  member.for_each(count_, 1,
                  [&](int begin, int end) { activate(first_ + begin, first_ + end, between); });
  output(member, between);
}

}  // namespace tessera::cpu
