// The launch functions of the GPU kernels: what one layer's blocks do to raw device pointers.
//
// Every function enqueues kernels on a stream and returns; it allocates nothing, waits for nothing,
// and may be captured into a graph. Pointers are device memory, 16-byte aligned (matrices and pages
// 256), owned by the caller; rows of activations are f32. A function picks its kernels from the
// number of rows: up to kDecodeRows the weights are read once for all rows by kernels whose results
// for a row do not depend on the other rows; above, tensor-core tiles. Numbers of rows and
// sequences and every pointer are fixed when a graph is captured; positions, page tables, tokens
// and expert tables are read from device memory at run time.
//
// Formulas are those of model/spec.h; the CPU device is the reference. Quantised weights meet
// activations rounded to 8 bits per 32 columns (decode) or to f16 (tiles); F32 weights always meet
// activations of at least 22 bits. Everything is summed in f32 in an order that the shapes fix, and
// for plain weights in long prompts whether they go by GEMM.
//
// Preconditions are the caller's (unsupported() below answers for a layer). Errors: each function
// returns the launch's error code.
//
//   Launch launch{.stream = stream, .chained = true, .workspace = memory, .workspace_bytes = n,
//                 .multiprocessors = 132};
//   project(launch, {.input = {.kind = InputKind::rms_norm, .x = hidden, .stride = 2048,
//                              .cols = 2048, .weight = norm, .eps = 1e-6f},
//                    .rows = 1, .n_outputs = 1,
//                    .outputs = {{.w = qkv, .out = wide, .stride = 8192}}});
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "device/gpu/kernels/launch_types.h"
#include "device/gpu/kernels/weight_planes.h"
#include "model/spec.h"
#include "quant/block_format.h"

namespace tessera::gpu {

inline constexpr int kDecodeRows = 8;
inline constexpr int kPageTokens = 64;
inline constexpr int kMaxOutputs = 4;
inline constexpr int kMaxExperts = 512;
inline constexpr int kMaxUsed = 32;

struct Launch {
  GpuStream stream{};
  // Programmatic dependent launch: a kernel may start while the one before it on the stream drains.
  // Only where every kernel on the stream since the last full dependency came from this header.
  bool chained = false;
  void* workspace = nullptr;  // scratch of one call; calls on one stream may share it
  std::size_t workspace_bytes = 0;
  int multiprocessors = 0;
  std::size_t shared_bytes = 0;  // of shared memory a block may take; 0: what the device allows
  bool gemm = false;             // has_gemm() of the device
};

// The compute capability, times ten, that the kernels were compiled for which the current device
// runs; `compiled_for` stays as it is on AMD GPUs. An error: the build has none for this device.
GpuError find_code(int& compiled_for);
// Whether the current device runs what only Hopper has: products of long prompts (gemm.cuh), those
// of plain rows (plain_rows.cu) and of a dense model (project_stream.cu), and attention of short
// contexts (attention_short.cu), by clusters of blocks.
bool has_gemm();

// --- Matrices ---

struct Matrix {
  BlockType type = BlockType::F32;
  int rows = 0;
  int cols = 0;
  const std::byte* data = nullptr;  // plane_layout(type, rows, cols); null: there is none
};

// One expert: gate, up and down planes one after the other, so that one pointer moves it.
struct ExpertShape {
  Matrix gate, up, down;  // types and sizes; data unused
  std::int64_t up_offset = 0;
  std::int64_t down_offset = 0;
  std::int64_t bytes = 0;
};
ExpertShape expert_shape(BlockType gate, BlockType up, BlockType down, int n_embd, int n_ff);

// --- The step's rows ---

struct Sequence {  // as in the batch
  std::int32_t first_row;
  std::int32_t n_rows;
  std::int32_t first_position;
  std::int32_t slot;
};

struct StepRows {
  int rows = 0;
  int n_sequences = 0;
  int max_sequence_rows = 0;               // host bound of Sequence::n_rows; 1 in plain decode
  const std::int32_t* position = nullptr;  // [rows]
  const std::int32_t* sequence = nullptr;  // [rows]
  const Sequence* sequences = nullptr;     // [n_sequences]
};

// --- Embedding, rotary tables, elementary copies ---

// to[i] = from[i], of pinned host memory: where few numbers are on the way, sooner than a copy of
// the driver's, and chained like any kernel. So the kernel directly behind may read `to` only after
// chain_wait(); those behind that one may before, if that one triggers behind its own.
GpuError copy_words(const Launch& launch, const std::int32_t* from, std::int32_t* to,
                    std::int64_t n);

struct EmbedArgs {
  Matrix table;  // any type
  Matrix rest;   // of that type: the rows behind the table's, kept elsewhere; null: there are none
  // [rows]; below zero: what the step before chose for its row -1 - token, or 0 where it chose
  // none.
  const std::int32_t* tokens = nullptr;
  const std::int32_t* chosen = nullptr;  // ChooseArgs::ids; null: no token is below zero
  int rows = 0;
  float scale = 1.0f;
  float* out = nullptr;  // [rows][table.cols]
};
GpuError embed(const Launch& launch, const EmbedArgs& args);

struct RopeTableArgs {
  const float* inv_freq = nullptr;  // [half]
  int half = 0;
  float magnitude = 1.0f;
  const std::int32_t* position = nullptr;  // [rows]
  int rows = 0;
  float* cos = nullptr;  // [rows][half]
  float* sin = nullptr;
};
GpuError rope_tables(const Launch& launch, const RopeTableArgs& args);

// --- Projections ---

enum class InputKind {
  plain,      // x
  rms_norm,   // x / rms(x) * weight
  gated_rms,  // per head of head_dim: x / rms(x) * weight[head_dim] * silu(gate)
};

struct Input {
  InputKind kind = InputKind::plain;
  const float* x = nullptr;
  std::int64_t stride = 0;  // floats from row to row
  int cols = 0;
  const float* weight = nullptr;
  float eps = 0.0f;
  const float* gate = nullptr;  // gated_rms
  std::int64_t gate_stride = 0;
  bool gate_open = false;  // `gate` holds silu(gate) already
  int head_dim = 0;
  // The call before left them so in the workspace (leaves_rounded(), attention_leaves_rounded()).
  bool rounded = false;
  const std::int32_t* row_ids = nullptr;  // row i of the product reads row row_ids[i] of x
};

struct Output {
  Matrix w;
  float* out = nullptr;  // [rows][stride], w.rows values each
  std::int64_t stride = 0;
  bool add = false;  // out += instead of out =
};

// outputs[i] = w_i * input, all with the same input and the same number of columns.
struct ProjectArgs {
  Input input;
  int rows = 0;
  int n_outputs = 0;
  std::array<Output, kMaxOutputs> outputs{};
};
GpuError project(const Launch& launch, const ProjectArgs& args);
// `weight_rows`: of all the matrices. With less a long prompt takes more passes, and with too
// little for two tiles of weights the way of shorter ones.
std::size_t project_workspace(int rows, int cols, int weight_rows);

// hidden += rms(branch) * weight
struct AddNormedArgs {
  float* hidden = nullptr;
  const float* branch = nullptr;
  const float* weight = nullptr;  // null: hidden += branch
  float eps = 0.0f;
  int rows = 0;
  int cols = 0;
};
GpuError add_normed(const Launch& launch, const AddNormedArgs& args);

// --- Attention ---

enum class KvFormat : std::uint8_t { f16, f32, q8_0 };

// One layer's part of a page: K of every KV head, then V of every KV head; K and V of a head are
// [64 tokens][head_dim]; q8_0 holds the bytes and then f16 scales, [64][head_dim / 32].
struct KvGeometry {
  int kv_heads = 0;
  int head_dim_k = 0;
  int head_dim_v = 0;
  KvFormat format = KvFormat::f16;
};
std::int64_t kv_head_bytes(KvFormat format, int head_dim);  // of one head's K or V in a page
std::int64_t kv_layer_page_bytes(const KvGeometry& geometry);

struct AttentionArgs {
  StepRows step;
  KvGeometry kv;
  int n_head = 0;
  // q: [rows][n_head][q_head_stride]; with sigmoid_in_query the second half of a head's stride is
  // its gate.
  const float* q = nullptr;
  std::int64_t q_stride = 0;
  std::int64_t q_head_stride = 0;
  // Projections of this step's keys and values, [rows][kv_heads][head_dim]; null k: the layer
  // attends over pages that another layer wrote. v null: values are the raw keys.
  const float* k = nullptr;
  const float* v = nullptr;
  std::int64_t k_stride = 0;
  std::int64_t v_stride = 0;
  const float* q_norm = nullptr;  // [head_dim_k] or null
  const float* k_norm = nullptr;
  bool v_norm = false;
  float eps = 0.0f;
  int n_rot = 0;
  // Like the step's tables not written by the kernel just before, which they do not wait for.
  const float* cos = nullptr;  // [rows][n_rot / 2]
  const float* sin = nullptr;
  float scale = 1.0f;
  float softcap = 0.0f;
  int window = 0;
  OutputGate gate = OutputGate::none;
  const float* gate_logits = nullptr;  // softplus gates: [rows][gate_stride]
  std::int64_t gate_stride = 0;
  // Page p of this layer: pool + p * page_stride + layer_offset. Tokens before the step's are read
  // ahead of the wait for the kernel just before, too.
  std::byte* pool = nullptr;
  std::int64_t page_stride = 0;
  std::int64_t layer_offset = 0;
  const std::int32_t* page_table = nullptr;  // [n_sequences][table_stride], index position / 64
  std::int64_t table_stride = 0;
  int max_context = 0;   // host bound of every position + 1 of the step
  float* out = nullptr;  // [rows][n_head * head_dim_v]
  std::int64_t out_stride = 0;
};
// Head norms, rotation, the rows' keys and values into their pages, attention, output gate.
GpuError attention(const Launch& launch, const AttentionArgs& args);
// Whether the rows then stand rounded in the launch's workspace, too, for the next call, which is
// the product behind (Input::rounded).
bool attention_leaves_rounded(const AttentionArgs& args);
std::size_t attention_workspace(const AttentionArgs& args);

// --- Gated delta net ---

// State of one layer in a slot, f32, zero before the first token:
//   ring   [conv_width][channels]: the input of the convolution at position p stands in row
//          p % conv_width
//   S      [n_value_head][dim_v][dim_k]
std::int64_t delta_state_floats(const GatedDeltaSpec& spec);

// What alpha and beta are products of, where makes_gates() says that the delta rule makes them.
struct GateProducts {
  Input input;
  Matrix alpha, beta;  // plain, a row a head; null: they are there
};

struct DeltaArgs {
  StepRows step;
  GatedDeltaSpec spec;
  const float* qkv = nullptr;          // [rows][conv_channels], dense
  const float* alpha = nullptr;        // [rows][n_value_head]
  const float* beta_logits = nullptr;  // [rows][n_value_head]
  const float* taps = nullptr;         // [conv_width][channels]; the last row meets the newest
  const float* dt_bias = nullptr;      // [n_value_head]
  const float* a = nullptr;            // [n_value_head]
  float* state = nullptr;              // slot s of this layer: state + s * slot_stride
  std::int64_t slot_stride = 0;        // floats
  float* out = nullptr;                // [rows][value_width], dense
  // [rows][value_width], dense, or null: where opens_gate() it is replaced by silu(gate), which the
  // product behind would otherwise compute in each of its blocks.
  float* gate = nullptr;
  // Of the product behind (gated_rms): where leaves_rounded() its rows stand rounded in the
  // launch's workspace, too, for the next call. Null: not wanted.
  const float* norm = nullptr;
  float eps = 0.0f;
  GateProducts gates;  // in place of alpha and beta_logits
};
bool opens_gate(const GatedDeltaSpec& spec, const StepRows& step);
// Whether DeltaArgs::gates may be given, as project() would make them: by whole heads, of up to
// kDecodeRows rows, of an input of eight super-blocks.
bool makes_gates(const Launch& launch, const DeltaArgs& args, const GateProducts& gates);
bool leaves_rounded(const Launch& launch, const GatedDeltaSpec& spec, const StepRows& step);
GpuError gated_delta(const Launch& launch, const DeltaArgs& args);
std::size_t delta_workspace(const GatedDeltaSpec& spec, int rows);

// --- FFN ---

struct MoeArgs {
  int n_expert = 0;  // 0: the layer has no experts
  int n_used = 0;
  int n_ff = 0;
  Activation activation = Activation::silu;
  RouterSpec router;
  Matrix router_weight;                 // F32 [n_expert][n_embd]
  const float* router_scale = nullptr;  // own_input only
  const float* router_bias = nullptr;   // [n_expert] or null
  const float* expert_scale = nullptr;  // [n_expert] or null
  const float* norm = nullptr;          // own norm, or null: the FFN norm
  const float* post_norm = nullptr;     // or null
  ExpertShape shape;
  const std::byte* const* table = nullptr;  // [n_expert] device pointers; null: not resident
  // [n_expert], or null: where an expert that is not resident lies in pinned memory of the host.
  const std::byte* const* linked = nullptr;
  // [kBroughtPlaces] of shape.bytes: experts brought here for the layer (bring_experts()).
  const std::byte* brought = nullptr;
  // Written by route(); [rows][n_used], slots in falling order of selection score. (1 + p) n_expert
  // + e is expert e, read over the link (AwayArgs::reads): p = 0 where it lies, else in place p - 1
  // of `brought`.
  std::int32_t* ids = nullptr;
  float* weights = nullptr;
  float* logits = nullptr;  // [rows][n_expert] scratch that stays readable until the next route()
};

struct DenseArgs {
  Matrix gate, up, down;  // data null: the layer has no dense branch
  Activation activation = Activation::silu;
  const float* scalar_gate =
      nullptr;                       // [n_embd] or null: the branch times sigmoid(scalar_gate . x)
  const float* post_norm = nullptr;  // or null
};

struct FfnArgs {
  int rows = 0;
  int n_embd = 0;
  float eps = 0.0f;
  float* hidden = nullptr;      // [rows][n_embd], the residual: read, and written at the end
  const float* norm = nullptr;  // FFN norm; null: `hidden` is normed (expert_sums() alone)
  DenseArgs dense;
  MoeArgs moe;
  const float* post_norm = nullptr;    // of the branches' sum, or null
  const float* layer_scale = nullptr;  // one value, or null
  // What runs pass values through (run.h), under their rules, or null: where has_runs(), 2 to 8
  // rows of a layer of their shape then go as one kernel, whose blocks wait for each other too, as
  // those of project_and_route() do.
  std::byte* passed = nullptr;
  bool routed = false;  // the router's logits and what goes with them are there: run.h
  // Outputs of the branches, for the functions that leave them to a later one.
  float* dense_out = nullptr;  // [rows][n_embd]
  float* pair_out = nullptr;   // [rows][n_used][n_embd], not yet weighted
};

// The whole FFN with every expert resident: route, branches, sum, residual. Writes moe.ids and
// moe.weights too; does not touch pair_out (dense_out only with post norms).
GpuError ffn_all(const Launch& launch, const FfnArgs& args);

// The same in parts. route: ids and weights. branches: dense_out, and pair_out of the pairs whose
// table entry is not null. finish: combines dense_out and pair_out (which by then others may have
// filled in) into hidden.
GpuError ffn_route(const Launch& launch, const FfnArgs& args);
GpuError ffn_branches(const Launch& launch, const FfnArgs& args);
GpuError ffn_finish(const Launch& launch, const FfnArgs& args);
// After branches, with nothing but itself between: pair_out of those in another moe.table, in which
// so many experts have so many pairs.
GpuError ffn_more_experts(const Launch& launch, const FfnArgs& args, int experts, int pairs);

// Without a layer: sums = [rows][n_embd], of the pairs in moe.ids the weighted outputs, whose rows
// `hidden` holds as the experts read them. A slot of weight zero counts for nothing. Uses pair_out.
GpuError expert_sums(const Launch& launch, const FfnArgs& args, float* sums);

std::size_t ffn_workspace(const FfnArgs& args);

// --- Logits ---

// In place: cap * tanh(x / cap).
GpuError softcap(const Launch& launch, float* x, std::int64_t n, float cap);

// --- What the kernels can compute ---

// Null, or one line that says what a layer needs and these kernels lack.
const char* unsupported(const ModelSpec& spec, const LayerSpec& layer, KvFormat format);

}  // namespace tessera::gpu
