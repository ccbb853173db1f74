#include "device/gpu/plugin/gpu_weights.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "base/by_threads.h"
#include "base/check.h"
#include "base/checked.h"

namespace tessera::gpu {
namespace {

// A run of row tiles of one matrix, or a whole vector.
struct Piece {
  const WeightEntry* entry;
  std::int64_t matrix;
  std::int64_t place;  // where the matrix goes
  std::int64_t tile_begin;
  std::int64_t tile_end;

  std::int64_t first_row() const { return tile_begin * kTileRows; }  // of the entry's
  std::int64_t rows() const {
    return std::min<std::int64_t>(tile_end * kTileRows, entry->rows) - first_row();
  }
  const std::byte* source() const {
    return entry->slice->data + matrix * entry->slice->matrix_stride +
           (entry->first_row + first_row()) * entry->slice->row_stride;
  }
};

bool is_matrix(WeightForm form) {
  return form == WeightForm::planes || form == WeightForm::planes_f32 || form == WeightForm::expert;
}

std::int64_t packed_bytes(const Piece& piece) {
  return is_matrix(piece.entry->form)
             ? plane_layout(piece.entry->type, piece.rows(), piece.entry->slice->cols).bytes
             : piece.entry->stride;
}

// One matrix of a tensor, for the given place.
void cut_matrix(const WeightEntry& entry, std::int64_t matrix, std::int64_t place,
                std::vector<Piece>& pieces) {
  const std::int64_t tiles = row_tiles(entry.rows);
  std::int64_t step = tiles;
  if (is_matrix(entry.form)) {
    const std::int64_t whole = plane_layout(entry.type, entry.rows, entry.slice->cols).bytes;
    step = std::clamp<std::int64_t>(tiles * kPieceBytes / whole, 1, tiles);
  }
  for (std::int64_t begin = 0; begin < tiles; begin += step)
    pieces.push_back({&entry, matrix, place, begin, std::min(tiles, begin + step)});
}

std::vector<Piece> cut(const WeightLayout& layout) {
  std::vector<Piece> pieces;
  for (const WeightEntry& entry : layout.entries) {
    if (entry.form == WeightForm::expert) {
      for (std::size_t place = 0; place < entry.places.size(); ++place)
        if (entry.places[place] >= 0)
          cut_matrix(entry, entry.places[place], static_cast<std::int64_t>(place), pieces);
    } else {
      for (std::int64_t matrix = 0; matrix < entry.slice->matrices; ++matrix)
        cut_matrix(entry, matrix, matrix, pieces);
    }
  }
  return pieces;
}

// The piece's rows as the kernels want them, in `out`: a matrix of its own.
void pack(const Piece& piece, std::vector<float>& scratch, std::byte* out) {
  const WeightEntry& entry = *piece.entry;
  const TensorSlice& slice = *entry.slice;
  const std::int64_t rows = piece.rows();
  const auto dequantise = [&](float* to) {
    for (std::int64_t row = 0; row < rows; ++row)
      dequantize_row(slice.type, piece.source() + row * slice.row_stride, slice.cols,
                     to + row * slice.cols);
  };
  switch (entry.form) {
    case WeightForm::planes:
    case WeightForm::expert:
      repack_rows(entry.type, piece.source(), rows, slice.cols, 0, row_tiles(rows), out);
      break;
    case WeightForm::planes_f32:
    case WeightForm::vector:
      dequantise(reinterpret_cast<float*>(out));
      break;
    case WeightForm::conv_taps: {
      scratch.resize(static_cast<std::size_t>(rows * slice.cols));
      dequantise(scratch.data());
      auto* taps = reinterpret_cast<float*>(out);
      for (std::int64_t channel = 0; channel < rows; ++channel)
        for (std::int64_t tap = 0; tap < slice.cols; ++tap)
          taps[tap * rows + channel] =
              scratch[static_cast<std::size_t>(channel * slice.cols + tap)];
      break;
    }
  }
}

// Its rows to where they are to lie.
void pack_in_place(const Piece& piece, std::byte* to) {
  const WeightEntry& entry = *piece.entry;
  const TensorSlice& slice = *entry.slice;
  CHECK(entry.form == WeightForm::planes && slice.matrices == 1);
  repack_rows(entry.type, slice.data + entry.first_row * slice.row_stride, entry.rows, slice.cols,
              piece.tile_begin, piece.tile_end, to + entry.offset);
}

}  // namespace

// One thread's way of bringing pieces to the device.
class Uploader {
 public:
  static Result<Uploader> create(std::int64_t piece_bytes, double wait_seconds) {
    Uploader uploader;
    uploader.wait_seconds_ = wait_seconds;
    TESSERA_ASSIGN(uploader.stream_, Stream::create());
    for (int i = 0; i < 2; ++i) {
      TESSERA_ASSIGN(uploader.buffers_[i], PinnedBuffer::allocate(piece_bytes, "loading"));
      TESSERA_ASSIGN(uploader.free_[i], Event::create());
    }
    return uploader;
  }

  Uploader(Uploader&&) = default;
  Uploader& operator=(Uploader&&) = default;
  // Copies may be under way still where a load ended early: their buffers go behind them.
  ~Uploader() {
    if (sent_ && stream_.get() != nullptr && !device_left()) static_cast<void>(finish());
  }

  // What is sent from now on comes behind the event.
  Status follow(const Event& event) {
    return status_of(GPU(StreamWaitEvent)(stream_.get(), event.get(), 0), "loading weights");
  }
  Status send(const Piece& piece, std::byte* arena) {
    const int side = side_ ^= 1;
    TESSERA_TRY(wait_or_leave(free_[side], wait_seconds_, "loading weights"));
    std::byte* packed = buffers_[side].as();
    pack(piece, scratch_, packed);
    sent_ = true;
    TESSERA_TRY(copy(piece, packed, arena));
    return status_of(GPU(EventRecord)(free_[side].get(), stream_.get()), "loading weights");
  }
  Status finish() {
    sent_ = false;
    return wait_or_leave(stream_.get(), free_[side_], wait_seconds_, "loading weights");
  }

 private:
  Uploader() = default;
  Status copy(const Piece& piece, const std::byte* packed, std::byte* arena) {
    const WeightEntry& entry = *piece.entry;
    std::byte* matrix = arena + entry.offset + piece.place * entry.stride;
    if (!is_matrix(entry.form)) return copy_bytes(matrix, packed, entry.stride);
    const std::int64_t cols = entry.slice->cols;
    const PlaneLayout part = plane_layout(entry.type, piece.rows(), cols);
    const PlaneLayout whole = plane_layout(entry.type, entry.rows, cols);
    if (is_plain(entry.type)) {
      const std::int64_t row = row_bytes(entry.type, cols);
      return copy_bytes(matrix + piece.first_row() * row, packed, piece.rows() * row);
    }
    const auto plane = [&](std::int64_t to, std::int64_t from, std::int64_t tile_bytes,
                           std::int64_t columns) -> Status {
      const std::int64_t row_tile = tile_bytes * columns;
      return copy_bytes(matrix + to + piece.tile_begin * row_tile, packed + from,
                        part.row_tiles * row_tile);
    };
    const std::int64_t supers = ceil_div<std::int64_t>(cols, kSuperCols);
    TESSERA_TRY(plane(whole.quants, part.quants, part.quant_bytes, part.col_tiles));
    TESSERA_TRY(plane(whole.extra, part.extra, part.extra_bytes, part.col_tiles));
    TESSERA_TRY(plane(whole.scales, part.scales, part.scale_bytes, part.col_tiles));
    return plane(whole.supers, part.supers, part.super_bytes, supers);
  }
  Status copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) {
    if (bytes == 0) return {};
    return status_of(GPU(MemcpyAsync)(to, from, static_cast<std::size_t>(bytes),
                                      GPU(MemcpyHostToDevice), stream_.get()),
                     "loading weights");
  }

  Stream stream_;
  PinnedBuffer buffers_[2];
  Event free_[2];
  int side_ = 0;
  bool sent_ = false;  // since the last finish()
  double wait_seconds_ = 0;
  std::vector<float> scratch_;
};

namespace {

struct Arenas {
  std::byte *device, *host;
};

// All pieces, by several threads.
Status upload(const Model& model, std::span<const Piece> pieces, const LoadOptions& options,
              const Arenas& arenas, const LoadProgress& progress) {
  std::int64_t largest = 0, total = 0;
  for (const Piece& piece : pieces) {
    largest = std::max(largest, packed_bytes(piece));
    total += packed_bytes(piece);
  }
  std::atomic<std::size_t> next{0};
  std::atomic<std::int64_t> done{0};
  std::mutex mutex;  // progress
  TESSERA_TRY(by_threads(options.threads, [&](const std::atomic<bool>& failed) -> Status {
    TESSERA_TRY(status_of(GPU(SetDevice)(options.device), "loading weights"));
    TESSERA_ASSIGN(Uploader uploader, Uploader::create(largest, options.wait_seconds));
    while (!failed) {
      const std::size_t i = next.fetch_add(1);
      if (i >= pieces.size()) break;
      const Piece& piece = pieces[i];
      if (piece.entry->on_host)
        pack_in_place(piece, arenas.host);
      else
        TESSERA_TRY(uploader.send(piece, arenas.device));
      const std::int64_t sum = done.fetch_add(packed_bytes(piece)) + packed_bytes(piece);
      const bool last_of_slice =
          i + 1 == pieces.size() || pieces[i + 1].entry->slice != piece.entry->slice;
      if (last_of_slice && options.host.release) options.host.release(model, *piece.entry->slice);
      const std::unique_lock turn(mutex, std::try_to_lock);
      if (progress && turn && !progress(sum, total)) return load_cancelled();
    }
    return uploader.finish();
  }));
  if (options.host.check_intact) TESSERA_TRY(options.host.check_intact(model));
  if (progress) progress(total, total);
  return {};
}

}  // namespace

Result<GpuWeights> GpuWeights::load(const Model& model, const ShardLayout& shard,
                                    const WeightLayout& layout, const LoadOptions& options,
                                    const LoadProgress& progress) {
  GpuWeights weights;
  TESSERA_ASSIGN(weights.arena_, DeviceBuffer::allocate(layout.bytes, "weights"));
  TESSERA_ASSIGN(weights.host_, PinnedBuffer::allocate(layout.host_bytes, "the embedding table"));
  TESSERA_ASSIGN(weights.written_, Event::create());
  TESSERA_ASSIGN(weights.entry_, PinnedBuffer::allocate(sizeof(std::byte*), "moves"));
  TESSERA_ASSIGN(const Stream stream, Stream::create());
  const LoadQueue queue{stream.get(), weights.written_, options.wait_seconds};
  TESSERA_TRY(queue.fill(weights.arena_.data(), 0, layout.bytes, "clearing the weights"));
  TESSERA_TRY(queue.wait("clearing the weights"));
  weights.first_layer_ = shard.first_layer;
  weights.layers_.resize(static_cast<std::size_t>(shard.end_layer - shard.first_layer));
  for (const WeightEntry& entry : layout.entries) weights.place(entry);
  TESSERA_TRY(upload(model, cut(layout), options,
                     {.device = weights.arena_.data(), .host = weights.host_.as()}, progress));

  for (std::size_t l = 0; l < layout.experts.size(); ++l) {
    const ExpertArena& experts = layout.experts[l];
    if (experts.count == 0) continue;
    std::vector<const std::byte*> table(static_cast<std::size_t>(experts.count), nullptr);
    for (std::size_t place = 0; place < experts.places.size(); ++place)
      if (experts.places[place] >= 0)
        table[static_cast<std::size_t>(experts.places[place])] =
            weights.arena_.data() + experts.offset +
            static_cast<std::int64_t>(place) * experts.shape.bytes;
    std::byte* to = weights.arena_.data() + experts.table_offset;
    TESSERA_TRY(queue.send(to, table.data(), table.size() * sizeof(void*), "loading weights"));
    weights.layers_[l].experts = experts.shape;
    weights.layers_[l].expert_table = reinterpret_cast<const std::byte* const*>(to);
    if (experts.linked_offset == 0) continue;
    weights.layers_[l].linked =
        reinterpret_cast<const std::byte* const*>(weights.arena_.data() + experts.linked_offset);
    if (layout.stream.groups == 0) continue;
    const int place = shard.lacking_before(shard.first_layer + static_cast<int>(l)) % 2;
    weights.layers_[l].brought = weights.arena_.data() + layout.stream.brought_offset[place];
  }
  weights.experts_ = layout.experts;
  for (const WeightEntry& entry : layout.entries)
    if (entry.form == WeightForm::expert) weights.expert_entries_.push_back(entry);
  return weights;
}

namespace {
constexpr const char* kMoving = "moving an expert";
}

Status GpuWeights::prepare_moves(const LoadOptions& options) {
  std::vector<Piece> pieces;
  for (const WeightEntry& entry : expert_entries_) cut_matrix(entry, 0, 0, pieces);
  std::int64_t largest = 0;
  for (const Piece& piece : pieces) largest = std::max(largest, packed_bytes(piece));
  TESSERA_ASSIGN(Uploader mover,
                 Uploader::create(std::max(largest, kPackedPieceBytes), options.wait_seconds));
  mover_ = std::make_shared<Uploader>(std::move(mover));
  return {};
}

Result<std::byte*> GpuWeights::vacate(const ExpertMove& move, GpuStream queue) {
  ExpertArena& arena = experts_[static_cast<std::size_t>(move.layer - first_layer_)];
  const auto found = std::find(arena.places.begin(), arena.places.end(), move.evicted);
  CHECK(found != arena.places.end(), "no place for expert {}", move.expert);
  const auto place = found - arena.places.begin();
  constexpr std::int64_t kEntry = sizeof(std::byte*);
  if (move.evicted >= 0)
    TESSERA_TRY(
        status_of(GPU(MemsetAsync)(arena_.data() + arena.table_offset + move.evicted * kEntry, 0,
                                   kEntry, queue),
                  kMoving));
  *found = -1;
  return arena_.data() + arena.offset + place * arena.shape.bytes;
}

// The entry's own memory is used again by the next move: what was sent from it is long there.
Status GpuWeights::publish(const ExpertMove& move, const std::byte* place, GpuStream queue) {
  ExpertArena& arena = experts_[static_cast<std::size_t>(move.layer - first_layer_)];
  TESSERA_TRY(wait_for(written_, kLongestPiece, kMoving));
  const std::byte** const from = entry_.as<const std::byte*>();
  *from = place;
  constexpr std::int64_t kEntry = sizeof(place);
  TESSERA_TRY(status_of(GPU(MemcpyAsync)(arena_.data() + arena.table_offset + move.expert * kEntry,
                                         from, kEntry, GPU(MemcpyHostToDevice), queue),
                        kMoving));
  const std::int64_t at = place - arena_.data() - arena.offset;
  arena.places[static_cast<std::size_t>(at / arena.shape.bytes)] = move.expert;
  return status_of(GPU(EventRecord)(written_.get(), queue), kMoving);
}

Status GpuWeights::link_experts(int layer, std::span<const std::byte* const> places,
                                const LoadQueue& queue) {
  const ExpertArena& arena = experts_[static_cast<std::size_t>(layer - first_layer_)];
  CHECK(arena.linked_offset > 0, "layer {} has no experts in pinned memory", layer);
  return queue.send(arena_.data() + arena.linked_offset, places.data(), places.size_bytes(),
                    kMoving);
}

Status GpuWeights::read_expert(const Model& model, const LoadOptions& options,
                               const ExpertMove& move, const std::byte* to,
                               const Event& free) const {
  const ExpertArena& arena = experts_[static_cast<std::size_t>(move.layer - first_layer_)];
  const std::int64_t place = (to - arena_.data() - arena.offset) / arena.shape.bytes;
  std::vector<Piece> pieces;
  for (const WeightEntry& entry : expert_entries_)
    if (entry.slice->layer == move.layer) cut_matrix(entry, move.expert, place, pieces);
  CHECK(mover_ != nullptr, "no places are spare, so no expert moves");
  TESSERA_TRY(mover_->follow(free));
  for (const Piece& piece : pieces) TESSERA_TRY(mover_->send(piece, arena_.data()));
  TESSERA_TRY(mover_->finish());
  if (options.host.check_intact) TESSERA_TRY(options.host.check_intact(model));
  return {};
}

void GpuWeights::place(const WeightEntry& entry) {
  if (entry.form == WeightForm::expert) return;
  const TensorSlice& slice = *entry.slice;
  LayerWeights& layer =
      slice.layer < 0 ? global_ : layers_[static_cast<std::size_t>(slice.layer - first_layer_)];
  const auto role = static_cast<std::size_t>(slice.role);
  const std::byte* data = (entry.on_host ? host_.as() : arena_.data()) + entry.offset;
  if (is_matrix(entry.form)) {
    Matrix& matrix = entry.first_row > 0 ? table_rest_ : layer.matrices[role];
    matrix = {.type = entry.type,
              .rows = static_cast<int>(entry.rows),
              .cols = static_cast<int>(slice.cols),
              .data = data};
  } else {
    layer.vectors[role] = reinterpret_cast<const float*>(data);
  }
}

}  // namespace tessera::gpu
