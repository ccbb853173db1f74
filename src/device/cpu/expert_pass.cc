#include "device/cpu/expert_pass.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "base/check.h"
#include "base/pause.h"

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

// What was counted is seen by who waits for it. The list is handed out in its order, so that nobody
// waits for a piece that nobody has.
void count(std::int32_t& done) {
  std::atomic_ref(done).fetch_add(1, std::memory_order_acq_rel);
}
void await(std::int32_t& done, int wanted) {
  constexpr int kLooks = 512;  // then another thread may need the core
  for (int looks = 1; std::atomic_ref(done).load(std::memory_order_acquire) != wanted; ++looks) {
    pause();
    if (looks % kLooks == 0) std::this_thread::yield();
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

// Of a pair's place.
int ExpertPass::expert_at(int place) const {
  const std::int32_t* ends = buffers_.expert_ends;
  return static_cast<int>(std::upper_bound(ends, ends + parts_.moe.n_expert, place) - ends);
}

// About eight pieces a member, but none so small that handing it out would take as long.
ExpertPass::Cut ExpertPass::cut(std::span<const TensorRole> roles, int members) const {
  constexpr std::int64_t kLeastBytes = 16 << 10;
  const PackedMatrix& shape = parts_.weights.matrix(roles[0]);
  const int groups = static_cast<int>(shape.groups());
  const int matrices = static_cast<int>(buffers_.active->size() * roles.size());
  const auto least = static_cast<int>(
      std::min<std::int64_t>(groups, std::max<std::int64_t>(1, kLeastBytes / shape.group_bytes())));
  const int piece = std::clamp(matrices * groups / (members * 8), least, groups);
  const int pieces = (groups + piece - 1) / piece;
  return {roles, groups, piece, pieces, matrices * pieces};
}

ExpertPass::Piece ExpertPass::piece_of(const Cut& cut, int index) const {
  const auto matrix = static_cast<std::size_t>(index / cut.pieces);
  const int first = index % cut.pieces * cut.piece;
  return {.expert = (*buffers_.active)[matrix / cut.roles.size()],
          .role = cut.roles[matrix % cut.roles.size()],
          .groups = {first, std::min(cut.groups, first + cut.piece)}};
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

void ExpertPass::hidden(TeamMember& member, const Piece& piece, const Activations& x) const {
  const Range rows = rows_of(piece.expert);
  float* out = piece.role == TensorRole::moe_gate ? buffers_.gate : buffers_.up;
  multiply(member, piece, x,
           {buffers_.pair_rows + rows.first, static_cast<std::size_t>(rows.count)}, rows.count,
           out + std::int64_t{rows.first} * parts_.moe.n_ff);
}

void ExpertPass::activate(int place, const Activations& hidden) const {
  const std::int64_t n_ff = parts_.moe.n_ff;
  float* gate = buffers_.gate + place * n_ff;
  const float* up = buffers_.up + place * n_ff;
  if (parts_.moe.activation == Activation::silu)
    parts_.ops.silu_mul(gate, up, n_ff, gate);
  else
    parts_.ops.gelu_tanh_mul(gate, up, n_ff, gate);
  if (uses_records(parts_.weights.matrix(TensorRole::moe_down).type()))
    quantize_rows(parts_.matmul, hidden, place, place + 1);
}

void ExpertPass::output(TeamMember& member, const Piece& piece, const Activations& hidden) const {
  const std::int64_t n_embd = parts_.weights.matrix(TensorRole::moe_down).rows();
  const Range rows = rows_of(piece.expert);
  Activations x = hidden;
  x.rows += rows.first * x.stride;
  x.records += rows.first;
  multiply(member, piece, x, {}, rows.count, buffers_.out + std::int64_t{rows.first} * n_embd);
}

void ExpertPass::run(TeamMember& member, const Activations& x) const {
  if (count_ == 0) return;
  constexpr std::array kHidden = {TensorRole::moe_gate, TensorRole::moe_up};
  constexpr std::array kOutput = {TensorRole::moe_down};
  const Cut hidden_cut = cut(kHidden, member.size()), output_cut = cut(kOutput, member.size());
  std::int32_t* const multiplied = buffers_.done;
  std::int32_t* const activated = buffers_.done + parts_.moe.n_expert;
  const Activations between{.rows = buffers_.gate,
                            .stride = parts_.moe.n_ff,
                            .n_rows = buffers_.pairs,
                            .cols = parts_.moe.n_ff,
                            .records = buffers_.records};
  const auto item = [&](int i) {
    if (i < hidden_cut.count) {
      const Piece piece = piece_of(hidden_cut, i);
      hidden(member, piece, x);
      count(multiplied[piece.expert]);
    } else if (i < hidden_cut.count + count_) {
      const int place = first_ + i - hidden_cut.count, expert = expert_at(place);
      await(multiplied[expert], 2 * hidden_cut.pieces);
      activate(place, between);
      count(activated[expert]);
    } else {
      const Piece piece = piece_of(output_cut, i - hidden_cut.count - count_);
      await(activated[piece.expert], rows_of(piece.expert).count);
      output(member, piece, between);
    }
  };
  member.for_each(hidden_cut.count + count_ + output_cut.count, 1, [&](int begin, int end) {
    for (int i = begin; i < end; ++i) item(i);
  });
}

}  // namespace tessera::cpu
