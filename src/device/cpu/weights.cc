#include "device/cpu/weights.h"

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "base/checked.h"
#include "device/cpu/gated_delta.h"
#include "device/cpu/matmul.h"

namespace tessera::cpu {
namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{1}
                                     << 20;  // of the file, handed to one thread at a time

// A run of row groups of one matrix, or a whole small vector.
struct Piece {
  const WeightEntry* entry;
  std::int64_t matrix;
  std::int64_t place;  // of the matrix among the entry's
  GroupRange groups{};

  std::int64_t first_row() const { return groups.begin * kGroupRows; }
  std::int64_t end_row() const {
    return std::min<std::int64_t>(groups.end * kGroupRows, entry->slice->rows);
  }
  std::int64_t file_bytes() const { return (end_row() - first_row()) * entry->slice->row_stride; }
};

bool is_matrix(WeightForm form) {
  return form == WeightForm::packed || form == WeightForm::packed_f32;
}

void cut_matrix(Piece whole, std::vector<Piece>& pieces) {
  const TensorSlice& slice = *whole.entry->slice;
  const std::int64_t groups = group_count(slice.rows);
  const std::int64_t step =
      is_matrix(whole.entry->form)
          ? std::max<std::int64_t>(1, kPieceBytes / (kGroupRows * slice.row_stride))
          : groups;
  for (std::int64_t begin = 0; begin < groups; begin += step) {
    whole.groups = {begin, std::min(groups, begin + step)};
    pieces.push_back(whole);
  }
}

bool is_partial(const WeightEntry& entry, const ShardLayout& shard) {
  return entry.slice->matrices > 1 && shard.layer_experts(entry.slice->layer) != nullptr;
}

std::vector<Piece> cut(const WeightLayout& layout, const ShardLayout& shard) {
  std::vector<Piece> pieces;
  for (const WeightEntry& entry : layout.entries) {
    if (entry.in_file) continue;
    if (!is_partial(entry, shard)) {
      for (std::int64_t matrix = 0; matrix < entry.slice->matrices; ++matrix)
        cut_matrix({.entry = &entry, .matrix = matrix, .place = matrix}, pieces);
      continue;
    }
    const std::vector<std::int32_t> places =
        expert_places(*shard.layer_experts(entry.slice->layer));
    for (std::size_t i = 0; i < places.size(); ++i)
      if (places[i] >= 0)
        cut_matrix({.entry = &entry, .matrix = places[i], .place = static_cast<std::int64_t>(i)},
                   pieces);
  }
  return pieces;
}

// Whether the matrix multiplies the normed residual, rather than what a mixer or an FFN made of it.
bool reads_normed_rows(TensorRole role) {
  switch (role) {
    case TensorRole::attn_output:
    case TensorRole::gdn_out:
    case TensorRole::dense_down:
    case TensorRole::moe_down:
      return false;
    default:
      return true;
  }
}

const std::byte* source_of(const Piece& piece) {
  return piece.entry->slice->data + piece.matrix * piece.entry->slice->matrix_stride;
}

// Rows that are stored as f32 whatever their type in the file.
void pack_as_f32(const TensorSlice& slice, const PackRange& range, std::byte* destination,
                 std::vector<float>& rows) {
  const std::byte* from = slice.data + range.matrix * slice.matrix_stride;
  rows.resize(static_cast<std::size_t>(kGroupRows * slice.cols));
  const std::int64_t group_bytes = packed_group_bytes(BlockType::F32, slice.cols);
  for (std::int64_t group = range.groups.begin; group < range.groups.end; ++group) {
    const std::int64_t first = group * kGroupRows;
    const std::int64_t count = std::min<std::int64_t>(kGroupRows, slice.rows - first);
    for (std::int64_t row = 0; row < count; ++row)
      dequantize_row(slice.type, from + (first + row) * slice.row_stride, slice.cols,
                     rows.data() + row * slice.cols);
    const MatrixSource source{.type = BlockType::F32,
                              .rows = count,
                              .cols = slice.cols,
                              .data = reinterpret_cast<const std::byte*>(rows.data()),
                              .row_stride_bytes = slice.cols * std::int64_t{sizeof(float)}};
    pack_groups(source, {0, 1}, destination + (group - range.groups.begin) * group_bytes);
  }
}

void pack_piece(const Piece& piece, std::byte* arena, std::vector<float>& scratch) {
  const WeightEntry& entry = *piece.entry;
  const TensorSlice& slice = *entry.slice;
  std::byte* destination = arena + entry.offset + piece.place * entry.matrix_bytes;
  switch (entry.form) {
    case WeightForm::packed:
    case WeightForm::packed_f32:
      pack_range(slice, entry.type, {piece.matrix, piece.groups},
                 destination + piece.groups.begin * packed_group_bytes(entry.type, slice.cols),
                 scratch);
      break;
    case WeightForm::vector:
      for (std::int64_t row = 0; row < slice.rows; ++row)
        dequantize_row(slice.type, source_of(piece) + row * slice.row_stride, slice.cols,
                       reinterpret_cast<float*>(destination) + row * slice.cols);
      break;
    case WeightForm::conv_taps:
      scratch.resize(static_cast<std::size_t>(slice.rows * slice.cols));
      for (std::int64_t row = 0; row < slice.rows; ++row)
        dequantize_row(slice.type, source_of(piece) + row * slice.row_stride, slice.cols,
                       scratch.data() + row * slice.cols);
      transpose_taps(scratch.data(), {.channels = slice.rows, .width = slice.cols},
                     reinterpret_cast<float*>(destination));
      break;
  }
}

void release_source(const gguf::File& file, const Piece& piece) {
  const TensorSlice& slice = *piece.entry->slice;
  const std::byte* begin = source_of(piece) + piece.first_row() * slice.row_stride;
  file.release(*slice.tensor, static_cast<std::uint64_t>(begin - slice.tensor->data),
               static_cast<std::uint64_t>(piece.file_bytes()));
}

}  // namespace

MatrixSource file_rows(const TensorSlice& slice, const PackRange& range) {
  const std::int64_t first = range.groups.begin * kGroupRows;
  return {.type = slice.type,
          .rows = std::min(range.groups.end * kGroupRows, slice.rows) - first,
          .cols = slice.cols,
          .data = slice.data + range.matrix * slice.matrix_stride + first * slice.row_stride,
          .row_stride_bytes = slice.row_stride};
}

void pack_range(const TensorSlice& slice, BlockType type, const PackRange& range,
                std::byte* destination, std::vector<float>& rows) {
  if (type != slice.type) return pack_as_f32(slice, range, destination, rows);
  pack_groups(file_rows(slice, range), {0, range.groups.end - range.groups.begin}, destination);
}

PackedMatrix LayerWeights::expert(TensorRole role, int expert) const {
  const PackedMatrix& first = matrix(role);
  const std::int64_t place =
      expert_place.empty() ? expert : expert_place[static_cast<std::size_t>(expert)];
  CHECK(place >= 0, "expert {} is not here", expert);
  return {first.type(), first.rows(), first.cols(),
          first.data() + matrix_stride[static_cast<std::size_t>(role)] * place};
}

Result<Weights> Weights::load(const Model& model, const ShardLayout& shard, ThreadTeam& team,
                              const LoadProgress& progress) {
  return load(model, model.tensors(), shard, team, progress);
}

Result<Weights> Weights::load(const Model& model, std::span<const TensorSlice> tensors,
                              const ShardLayout& shard, ThreadTeam& team,
                              const LoadProgress& progress) {
  const WeightLayout layout = weight_layout(tensors, model.spec(), shard);
  Weights weights;
  TESSERA_ASSIGN(weights.arena_, AlignedBuffer::allocate(static_cast<std::size_t>(layout.bytes)));
  weights.first_layer_ = shard.first_layer;
  weights.layers_.resize(static_cast<std::size_t>(shard.end_layer - shard.first_layer));
  for (const WeightEntry& entry : layout.entries) {
    weights.place(entry, shard);
    if (is_partial(entry, shard))
      weights.expert_entries_.push_back(entry);
    else if (!entry.in_file)
      model.file().will_need(*entry.slice->tensor);
  }

  const std::vector<Piece> pieces = cut(layout, shard);
  std::int64_t total = 0;
  for (const Piece& piece : pieces) total += piece.file_bytes();
  std::atomic<std::int64_t> done{0};
  std::atomic<bool> wanted{true};
  team.run([&](TeamMember& member) {
    std::vector<float> scratch;
    member.for_each(static_cast<int>(pieces.size()), 1, [&](int begin, int end) {
      for (int i = begin; i < end && wanted; ++i) {
        const Piece& piece = pieces[static_cast<std::size_t>(i)];
        pack_piece(piece, weights.arena_.data(), scratch);
        release_source(model.file(), piece);
        const std::int64_t sum = done.fetch_add(piece.file_bytes()) + piece.file_bytes();
        if (member.index() == 0 && progress && !progress(sum, total)) wanted = false;
      }
    });
  });
  if (!wanted) return load_cancelled();
  TESSERA_TRY(model.file().check_intact());
  if (progress) progress(total, total);
  return weights;
}

void Weights::place(const WeightEntry& entry, const ShardLayout& shard) {
  const TensorSlice& slice = *entry.slice;
  LayerWeights& layer =
      slice.layer < 0 ? global_ : layers_[static_cast<std::size_t>(slice.layer - first_layer_)];
  const auto role = static_cast<std::size_t>(slice.role);
  if (is_matrix(entry.form)) {
    const std::byte* const data = entry.in_file ? nullptr : arena_.data() + entry.offset;
    layer.matrices[role] = {PackedMatrix(entry.type, slice.rows, slice.cols, data),
                            entry.in_file ? &slice : nullptr};
    layer.matrix_stride[role] = entry.matrix_bytes;
    layer.reads_records |= reads_normed_rows(slice.role) && uses_records(entry.type);
  } else {
    layer.vectors[role] = arena_.as<float>(static_cast<std::size_t>(entry.offset));
  }
  if (!is_partial(entry, shard)) return;
  const LayerExperts& experts = *shard.layer_experts(slice.layer);
  layer.place_expert = expert_places(experts);
  layer.expert_place.assign(experts.home.size(), -1);
  for (std::size_t place = 0; place < layer.place_expert.size(); ++place)
    if (const std::int32_t expert = layer.place_expert[place]; expert >= 0)
      layer.expert_place[static_cast<std::size_t>(expert)] = static_cast<std::int32_t>(place);
}

std::size_t Weights::expert_rows_room() const {
  std::int64_t floats = 0;
  for (const WeightEntry& entry : expert_entries_)
    if (entry.form == WeightForm::packed_f32)
      floats = std::max(floats, kGroupRows * entry.slice->cols);
  return static_cast<std::size_t>(floats);
}

std::int32_t Weights::vacate(const ExpertMove& move) {
  LayerWeights& layer = layers_[static_cast<std::size_t>(move.layer - first_layer_)];
  CHECK(!layer.holds(move.expert), "expert {} is resident already", move.expert);
  const auto found = std::find(layer.place_expert.begin(), layer.place_expert.end(), move.evicted);
  CHECK(found != layer.place_expert.end(), "no place for expert {}", move.expert);
  if (move.evicted >= 0) layer.expert_place[static_cast<std::size_t>(move.evicted)] = -1;
  *found = -1;
  return static_cast<std::int32_t>(found - layer.place_expert.begin());
}

void Weights::pack_expert(const ExpertMove& move, std::int32_t place, std::vector<float>& rows) {
  for (const WeightEntry& entry : expert_entries_) {
    if (entry.slice->layer != move.layer) continue;
    const Piece whole{.entry = &entry,
                      .matrix = move.expert,
                      .place = place,
                      .groups = {0, group_count(entry.slice->rows)}};
    pack_piece(whole, arena_.data(), rows);
  }
}

void Weights::admit(const ExpertMove& move, std::int32_t place) {
  LayerWeights& layer = layers_[static_cast<std::size_t>(move.layer - first_layer_)];
  layer.place_expert[static_cast<std::size_t>(place)] = move.expert;
  layer.expert_place[static_cast<std::size_t>(move.expert)] = place;
}

}  // namespace tessera::cpu
