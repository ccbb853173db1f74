#include "device/cpu/weights.h"

#include <algorithm>
#include <atomic>

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
  std::int64_t group_begin;
  std::int64_t group_end;

  std::int64_t first_row() const { return group_begin * kGroupRows; }
  std::int64_t end_row() const {
    return std::min<std::int64_t>(group_end * kGroupRows, entry->slice->rows);
  }
  std::int64_t file_bytes() const { return (end_row() - first_row()) * entry->slice->row_stride; }
};

bool is_matrix(WeightForm form) {
  return form == WeightForm::packed || form == WeightForm::packed_f32;
}

std::vector<Piece> cut(const WeightLayout& layout) {
  std::vector<Piece> pieces;
  for (const WeightEntry& entry : layout.entries) {
    const TensorSlice& slice = *entry.slice;
    const std::int64_t groups = group_count(slice.rows);
    const std::int64_t step =
        is_matrix(entry.form)
            ? std::max<std::int64_t>(1, kPieceBytes / (kGroupRows * slice.row_stride))
            : groups;
    for (std::int64_t matrix = 0; matrix < slice.matrices; ++matrix)
      for (std::int64_t begin = 0; begin < groups; begin += step)
        pieces.push_back({&entry, matrix, begin, std::min(groups, begin + step)});
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
void pack_as_f32(const Piece& piece, std::byte* destination, std::vector<float>& rows) {
  const TensorSlice& slice = *piece.entry->slice;
  rows.resize(static_cast<std::size_t>(kGroupRows * slice.cols));
  const std::int64_t group_bytes = packed_group_bytes(BlockType::F32, slice.cols);
  for (std::int64_t group = piece.group_begin; group < piece.group_end; ++group) {
    const std::int64_t first = group * kGroupRows;
    const std::int64_t count = std::min<std::int64_t>(kGroupRows, slice.rows - first);
    for (std::int64_t row = 0; row < count; ++row)
      dequantize_row(slice.type, source_of(piece) + (first + row) * slice.row_stride, slice.cols,
                     rows.data() + row * slice.cols);
    const MatrixSource source{.type = BlockType::F32,
                              .rows = count,
                              .cols = slice.cols,
                              .data = reinterpret_cast<const std::byte*>(rows.data()),
                              .row_stride_bytes = slice.cols * std::int64_t{sizeof(float)}};
    pack_groups(source, 0, 1, destination + group * group_bytes);
  }
}

void pack_piece(const Piece& piece, std::byte* arena, std::vector<float>& scratch) {
  const WeightEntry& entry = *piece.entry;
  const TensorSlice& slice = *entry.slice;
  std::byte* destination = arena + entry.offset + piece.matrix * entry.matrix_bytes;
  switch (entry.form) {
    case WeightForm::packed: {
      const MatrixSource source{.type = slice.type,
                                .rows = slice.rows,
                                .cols = slice.cols,
                                .data = source_of(piece),
                                .row_stride_bytes = slice.row_stride};
      pack_groups(source, piece.group_begin, piece.group_end, destination);
      break;
    }
    case WeightForm::packed_f32:
      pack_as_f32(piece, destination, scratch);
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
      transpose_taps(scratch.data(), static_cast<int>(slice.rows), static_cast<int>(slice.cols),
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

PackedMatrix LayerWeights::expert(TensorRole role, int expert) const {
  const PackedMatrix& first = matrix(role);
  return {first.type(), first.rows(), first.cols(),
          first.data() + matrix_stride[static_cast<std::size_t>(role)] * expert};
}

Result<Weights> Weights::load(const Model& model, const ShardLayout& shard, ThreadTeam& team,
                              const LoadProgress& progress) {
  const WeightLayout layout = weight_layout(model.tensors(), model.spec(), shard);
  Weights weights;
  TESSERA_ASSIGN(weights.arena_, AlignedBuffer::allocate(static_cast<std::size_t>(layout.bytes)));
  weights.first_layer_ = shard.first_layer;
  weights.layers_.resize(static_cast<std::size_t>(shard.end_layer - shard.first_layer));
  for (const WeightEntry& entry : layout.entries) {
    weights.place(entry);
    model.file().will_need(*entry.slice->tensor);
  }

  const std::vector<Piece> pieces = cut(layout);
  std::int64_t total = 0;
  for (const Piece& piece : pieces) total += piece.file_bytes();
  std::atomic<std::int64_t> done{0};
  team.run([&](TeamMember& member) {
    std::vector<float> scratch;
    member.for_each(static_cast<int>(pieces.size()), 1, [&](int begin, int end) {
      for (int i = begin; i < end; ++i) {
        const Piece& piece = pieces[static_cast<std::size_t>(i)];
        pack_piece(piece, weights.arena_.data(), scratch);
        release_source(model.file(), piece);
        const std::int64_t sum = done.fetch_add(piece.file_bytes()) + piece.file_bytes();
        if (member.index() == 0 && progress) progress(sum, total);
      }
    });
  });
  TESSERA_TRY(model.file().check_intact());
  if (progress) progress(total, total);
  return weights;
}

void Weights::place(const WeightEntry& entry) {
  const TensorSlice& slice = *entry.slice;
  LayerWeights& layer =
      slice.layer < 0 ? global_ : layers_[static_cast<std::size_t>(slice.layer - first_layer_)];
  const auto role = static_cast<std::size_t>(slice.role);
  if (is_matrix(entry.form)) {
    layer.matrices[role] =
        PackedMatrix(entry.type, slice.rows, slice.cols, arena_.data() + entry.offset);
    layer.matrix_stride[role] = entry.matrix_bytes;
    layer.reads_records |= reads_normed_rows(slice.role) && uses_records(entry.type);
  } else {
    layer.vectors[role] = arena_.as<float>(static_cast<std::size_t>(entry.offset));
  }
}

}  // namespace tessera::cpu
