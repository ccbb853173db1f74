#include "device/cpu/expert_pass.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "base/check.h"
#include "base/pause.h"

namespace tessera::cpu {
namespace {

constexpr std::array kHidden = {TensorRole::moe_gate, TensorRole::moe_up};
constexpr std::array kOutput = {TensorRole::moe_down};

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

// What was counted is seen by who waits for it. Nobody begins to wait before all that he could wait
// for is somebody's.
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

// About eight pieces a member, but none so small that handing it out would take as long. Of few
// pairs every member has as many pieces of each matrix, whatever other experts there are.
ExpertPass::Cut ExpertPass::cut(std::span<const TensorRole> roles, int members) const {
  constexpr std::int64_t kLeastBytes = 16 << 10;
  constexpr int kPieces = 8, kFewPairs = 64;
  const PackedMatrix& shape = parts_.weights.matrix(roles[0]);
  const int groups = static_cast<int>(shape.groups());
  const int matrices = static_cast<int>(buffers_.active->size() * roles.size());
  const auto most = static_cast<int>(
      std::clamp<std::int64_t>(shape.group_bytes() * groups / kLeastBytes, 1, groups));
  Cut cut{.roles = roles, .members = members, .groups = groups, .pieces = 1, .each = 1};
  if (count_ <= kFewPairs) {
    cut.each = std::max(1, std::min(kPieces / matrices, most / members));
    cut.pieces = std::min(most, members * cut.each);
  } else {
    cut.pieces = std::clamp(members * kPieces / matrices, 1, most);
    cut.each = (cut.pieces + members - 1) / members;
  }
  cut.count = matrices * cut.each;
  return cut;
}

// Members take turns to begin, by the experts' numbers: pieces differ by a group. None where there
// are fewer pieces than members.
std::optional<ExpertPass::Piece> ExpertPass::piece_of(const Cut& cut, int owner, int item) const {
  const auto matrix = static_cast<std::size_t>(item / cut.each);
  const auto role = matrix % cut.roles.size();
  const int expert = (*buffers_.active)[matrix / cut.roles.size()];
  const int begin = (expert * static_cast<int>(cut.roles.size()) + static_cast<int>(role));
  const int turn = (owner + cut.members - begin % cut.members) % cut.members;
  const int piece = turn * cut.each + item % cut.each;
  if (piece >= cut.pieces) return std::nullopt;
  return Piece{.expert = expert,
               .role = cut.roles[role],
               .groups = {piece * cut.groups / cut.pieces, (piece + 1) * cut.groups / cut.pieces}};
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
  const Cut hidden_cut = cut(kHidden, member.size()), output_cut = cut(kOutput, member.size());
  std::int32_t* const multiplied = buffers_.done;
  std::int32_t* const activated = buffers_.done + parts_.moe.n_expert;
  const Activations between{.rows = buffers_.gate,
                            .stride = parts_.moe.n_ff,
                            .n_rows = buffers_.pairs,
                            .cols = parts_.moe.n_ff,
                            .records = buffers_.records};
  member.for_each_own(0, hidden_cut.count, [&](int owner, int item) {
    const std::optional<Piece> piece = piece_of(hidden_cut, owner, item);
    if (!piece) return;
    hidden(member, *piece, x);
    count(multiplied[piece->expert]);
  });
  member.for_each_nowait(count_, 1, [&](int i, int) {
    const int place = first_ + i, expert = expert_at(place);
    await(multiplied[expert], static_cast<int>(kHidden.size()) * hidden_cut.pieces);
    activate(place, between);
    count(activated[expert]);
  });
  member.for_each_own(1, output_cut.count, [&](int owner, int item) {
    const std::optional<Piece> piece = piece_of(output_cut, owner, item);
    if (!piece) return;
    await(activated[piece->expert], rows_of(piece->expert).count);
    output(member, *piece, between);
  });
  member.barrier();
}

bool ExpertPass::fetch(const Piece& piece, const std::function<bool()>& enough) const {
  constexpr std::int64_t kLine = 64, kLook = 4096;
  const TensorSlice& slice = slice_of(*parts_.files, piece.role);
  const std::byte* matrix = slice.data + piece.expert * slice.matrix_stride;
  const std::int64_t end = std::min(piece.groups.end * kGroupRows, slice.rows) * slice.row_stride;
  for (std::int64_t at = piece.groups.begin * kGroupRows * slice.row_stride; at < end;) {
    if (enough()) return false;
    for (const std::int64_t stop = std::min(end, at + kLook); at < stop; at += kLine)
      __builtin_prefetch(matrix + at);
  }
  return true;
}

void ExpertPass::fetch(const TeamMember& member, const std::function<bool()>& enough) const {
  constexpr std::int64_t kMostBytes = 1 << 20;  // what a core's second-level cache keeps
  if (count_ == 0 || parts_.files == nullptr) return;
  std::int64_t bytes = 0;
  for (const auto roles :
       {std::span<const TensorRole>(kHidden), std::span<const TensorRole>(kOutput)}) {
    const Cut own = cut(roles, member.size());
    for (int item = 0; item < own.count; ++item)
      if (const auto piece = piece_of(own, member.index(), item);
          piece && !parts_.weights.holds(piece->expert)) {
        if (bytes > kMostBytes || !fetch(*piece, enough)) return;
        bytes += (piece->groups.end - piece->groups.begin) * kGroupRows *
                 slice_of(*parts_.files, piece->role).row_stride;
      }
  }
}

}  // namespace tessera::cpu
