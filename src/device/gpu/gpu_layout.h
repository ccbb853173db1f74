// GpuLayout: where everything of a shard lies in a GPU's memory, by pure functions that the planner
// and the device share.
//
//   GpuFootprint bytes = gpu_footprint(model, shard);          // what the device will allocate
//   gpu::WeightLayout weights = gpu::weight_layout(model.tensors(), model.spec(), shard);
//   gpu::Scratch scratch;
//   gpu::carve_scratch(model.spec(), shard, weights, base, scratch);   // base null: only counts
//
// Weights: one arena, and of the host's memory a part where rows of the embedding table are to lie
// there. Of these a step reads as many as it has tokens, at most. Matrices as planes
// (kernels/weight_planes.h) in their own block type; what must not see 8-bit activations (the delta
// net's alpha and beta, the router) as F32; vectors as f32; a layer's experts one after the other,
// gate, up and down of each together, with a table of pointers to them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/checked.h"
#include "device/device.h"
#include "device/gpu/kernels/choose.h"
#include "device/gpu/kernels/experts_away.h"
#include "device/shard_tensors.h"
#include "model/model.h"

namespace tessera {

// Whether the GPU kernels can compute every layer; one line that says what they cannot otherwise.
Status gpu_supports(const ModelSpec& spec);

// The bytes that a GPU device needs for a shard. What it allocates is this, to the byte.
struct GpuFootprint {
  std::int64_t weights = 0;
  std::int64_t kv = 0;
  std::int64_t recurrent = 0;
  std::int64_t scratch = 0;
  std::int64_t total() const { return saturated_sum({weights, kv, recurrent, scratch}); }
};
GpuFootprint gpu_footprint(const Model& model, const ShardLayout& shard);
// Of GpuExperts (gpu_experts.h).
GpuFootprint gpu_experts_footprint(const Model& model, const ShardLayout& shard);

// Of the host's memory, pinned: the rows of the embedding table that a GPU reads from there
// (ShardLayout::table_device_rows).
std::int64_t gpu_table_bytes(const Model& model, const ShardLayout& shard);
// The most rows of the table that take so many bytes, in whole tiles or all.
int gpu_table_rows_within(const Model& model, std::int64_t bytes);

// Of the host's memory, pinned: the experts that cross to the GPU for a step, as the GPU has them.
std::int64_t gpu_streamed_bytes(const Model& model, const ShardLayout& shard);

// Of one expert of each layer; 0 where it has none.
std::vector<std::int64_t> gpu_expert_bytes(const Model& model);

// What it keeps of the host's memory, pinned, on the way to the GPU and back. It allocates this and
// a pointer; more while it loads, and for moves where 16 rows of an expert are more than a piece.
struct GpuStaging {
  std::int64_t logits = 0;
  std::int64_t chosen = 0;  // tokens, of two steps
  std::int64_t hidden = 0;
  std::int64_t routing = 0;
  std::int64_t inputs = 0;       // of a step: one of gpu::kInputBlocks
  std::int64_t expert_rows = 0;  // for experts away, and as much for their sums
  std::int64_t posts = 0;        // the same for steps of few rows (plugin/expert_posts.h)
  std::int64_t moves = 0;        // a piece of an expert that comes: one of two
  std::int64_t total() const;
};
GpuStaging gpu_staging(const ModelSpec& spec, const ShardLayout& shard);

// Whether experts of such a model may be computed away from a GPU: their sum is added to the
// residual, so nothing may come between.
bool gpu_experts_may_leave(const ModelSpec& spec);

}  // namespace tessera

namespace tessera::gpu {

// Weights cross in pieces of about so many bytes; with planes at multiples of 256 in so many at
// most, but where a tile of 16 rows has more.
inline constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;
inline constexpr std::int64_t kPackedPieceBytes = kPieceBytes + 4096;

inline constexpr std::size_t kRoles = static_cast<std::size_t>(TensorRole::count);

KvFormat kv_format(KvType type);

// --- Weights ---

enum class WeightForm : std::uint8_t { planes, planes_f32, vector, conv_taps, expert };

struct WeightEntry {
  const TensorSlice* slice = nullptr;
  WeightForm form{};
  BlockType type{};            // as stored
  std::int64_t first_row = 0;  // of each matrix of the slice: a table in two parts has two entries
  std::int64_t rows = 0;
  std::int64_t offset = 0;  // of the first matrix
  std::int64_t stride = 0;  // from one matrix (expert) to the next
  bool on_host = false;     // the offset is in the host's part
  // Of an expert tensor: the expert in each place, -1 in a spare one.
  std::vector<std::int32_t> places{};
};

struct ExpertArena {
  ExpertShape shape;
  std::int64_t offset = 0;           // of expert 0, the others follow at shape.bytes
  std::int64_t table_offset = 0;     // of the table of pointers
  std::int64_t linked_offset = 0;    // of one to those that lie in pinned memory; 0: none does
  int count = 0;                     // of the table's entries
  std::vector<std::int32_t> places;  // WeightEntry::places
};

// Experts that cross the link for a step (plugin/expert_stream.h): in the arena a ring of groups of
// slots, each a copy at a time, and a table of pointers to those of the group that is computed; on
// the host those experts, packed, one after the other.
struct StreamLayout {
  struct Layer {
    std::vector<std::int32_t> experts;  // rising; empty: none of the layer's
    std::int64_t expert_bytes = 0;
    std::int64_t host_offset = 0;
  };
  std::vector<Layer> layers;  // of the shard; empty: no layer streams
  int groups = 0;
  int group_slots = 0;
  std::int64_t group_bytes = 0;
  std::int64_t offset = 0;
  std::int64_t table_offset = 0;
  // Of few rows' experts that are brought ahead (kernels/kernels.h, BringArgs): for every
  // second of the layers that may lack some, kBroughtPlaces of the largest.
  std::int64_t brought_offset[2] = {};
  std::int64_t host_bytes = 0;
};

struct WeightLayout {
  std::vector<WeightEntry> entries;
  std::vector<ExpertArena> experts;  // by layer of the shard; count 0 where it has none
  StreamLayout stream;
  std::int64_t bytes = 0;
  std::int64_t host_bytes = 0;  // pinned: matrices that are read over the link
};

WeightLayout weight_layout(std::span<const TensorSlice> tensors, const ModelSpec& spec,
                           const ShardLayout& shard);

// --- State ---

struct LayerKv {
  KvGeometry geometry;
  int group = -1;           // -1: none
  std::int64_t offset = 0;  // within a page
};

struct StateLayout {
  std::vector<LayerKv> kv;                // by layer of the model
  std::vector<std::int64_t> page_bytes;   // by group
  std::vector<std::int64_t> slot_offset;  // by layer of the model, in floats; -1 where none
  std::int64_t slot_floats = 0;

  std::int64_t kv_bytes(const ShardLayout& shard) const;
  std::int64_t slot_bytes(const ShardLayout& shard) const;
};
StateLayout state_layout(const ModelSpec& spec, const ShardLayout& shard);

// --- Experts asked for ---

// Where everything of AwayArgs lies in pinned memory; offsets in bytes. `posted` to `weights` stand
// for each layer of the shard, by rows: [layer][rows] or [layer][rows][used].
struct PostsLayout {
  int rows = 0;
  int n_embd = 0;
  int used = 0;  // of the layer that uses most
  std::int64_t given_up = 0, posted = 0, answered = 0, ids = 0, weights = 0, x = 0, sums = 0;
  std::int64_t foreseen = 0, foreseen_ids = 0;
  std::int64_t bytes = 0;
};
PostsLayout posts_layout(const ModelSpec& spec, const ShardLayout& shard);

// --- Scratch ---

// Of a row's logits; for a row with more the host chooses.
inline constexpr int kMostChanges = 512;

// Batches on their way at the same time, each with its inputs.
inline constexpr int kInputBlocks = 5;

// Sizes in elements; R = max_rows, E = n_embd, S = slots, X = n_expert.
struct Scratch {
  // The step's inputs, int32, in this order without gaps, so that one copy brings them.
  std::int32_t* tokens = nullptr;      // [R]
  std::int32_t* positions = nullptr;   // [R]
  std::int32_t* sequence = nullptr;    // [R]
  std::int32_t* step = nullptr;        // its number
  Sequence* sequences = nullptr;       // [S]
  std::int32_t* logit_rows = nullptr;  // [max_logit_rows]
  RowChoice* choices = nullptr;        // [max_logit_rows]; null without the head
  std::vector<std::int32_t*> tables;   // by KV group: [S][table_stride]
  std::int64_t table_stride = 0;
  std::int64_t input_ints = 0;  // of all of them

  float* hidden = nullptr;  // [R][E]
  float* kept = nullptr;    // [kept_pieces][R][E]
  float* branch = nullptr;  // [R][E]
  // The mixer's; widths are the largest of any layer.
  float* wide = nullptr;      // [R][q | convolution input]
  float* wide_out = nullptr;  // [R][attention output]
  float* side = nullptr;      // [R][k | z]
  float* side_v = nullptr;    // [R][v | delta output]
  float* gate = nullptr;      // [R][attention gate]
  float* heads = nullptr;     // [2][R][n_value_head]: alpha, beta logits
  // FFN
  float* dense_out = nullptr;      // [R][E]
  float* router_logits = nullptr;  // [R][X]
  std::int32_t* ids = nullptr;     // [R][used]
  float* weights = nullptr;        // [R][used]
  std::int32_t* foreseen[2] = {};  // [kDecodeRows][used], in turns
  float* pair_out = nullptr;       // [R][used][E]
  // Head
  float* logits = nullptr;         // [max_logit_rows][V]
  LogitChange* changes = nullptr;  // [most_changes], of the step's choices
  float* before = nullptr;         // [most_changes]
  std::int64_t most_changes = 0;   // kMostChanges a logit row
  std::int32_t* banned = nullptr;  // the model's suppressed tokens
  std::int32_t* chosen = nullptr;  // [max_logit_rows], by the last step; of the GPU with the head
  // Rotary tables: by distinct rope, [R][n_rot / 2] each
  std::vector<const RopeSpec*> ropes;
  std::vector<int> rope_of_layer;  // -1: none
  std::vector<float*> inv_freq, cos, sin;

  std::byte* workspace = nullptr;  // of one kernel call
  std::int64_t workspace_bytes = 0;

  // Runs of layers (kernels/run.h or dense_run.h); null: no layer of the shard may go in one.
  std::byte* run_plans = nullptr;
  std::byte* run_passed = nullptr;
  std::int64_t run_passed_bytes = 0;
  float* run_log = nullptr;  // of dense_run.h
  std::int64_t run_log_bytes = 0;

  std::byte* handed = nullptr;  // HandoverArgs::place, of kDecodeRows rows that come from a GPU
};

// Whether a layer's shape is one of runs, and all of its experts are here.
bool layer_may_run(const ModelSpec& spec, const ShardLayout& shard, int layer);

// Whether a shard has layers of the shape of a dense model's runs (kernels/dense_run.h).
bool dense_layers_may_run(const ModelSpec& spec, const ShardLayout& shard);

// Of layer_may_run(): the same of every layer of a model, with the types of its matrices.
bool layers_may_run(const Model& model);

// Returns the bytes. `spec` must outlive `out`.
std::int64_t carve_scratch(const ModelSpec& spec, const ShardLayout& shard,
                           const WeightLayout& weights, std::byte* base, Scratch& out);

// Of experts without their layers.
struct ExpertsScratch {
  float* rows = nullptr;      // [R][E], then ids and weights, [R][used] each, of the job's rows
  float* sums = nullptr;      // [R][E]
  float* pair_out = nullptr;  // [R][used][E]
  int used = 0;               // of the model's layer that uses most
  std::byte* workspace = nullptr;
  std::int64_t workspace_bytes = 0;
};
std::int64_t carve_experts_scratch(const ModelSpec& spec, const ShardLayout& shard,
                                   const WeightLayout& weights, std::byte* base,
                                   ExpertsScratch& out);
// Of a job's way there and back, pinned.
std::int64_t experts_staging_bytes(const ModelSpec& spec, const ShardLayout& shard);
// The experts' tensors of the shard's layers that have homes.
std::vector<TensorSlice> expert_slices(std::span<const TensorSlice> tensors,
                                       const ShardLayout& shard);

// Scratch::input_ints.
std::int64_t input_ints(const ModelSpec& spec, const ShardLayout& shard);

// The longest page table of a sequence.
std::int64_t table_stride(const ShardLayout& shard);

}  // namespace tessera::gpu
