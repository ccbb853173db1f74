#include "device/cpu/cpu_device.h"

#include <fmt/core.h>

#include <algorithm>
#include <system_error>

#include "base/check.h"
#include "base/checked.h"
#include "device/cpu/expert_mover.h"
#include "device/cpu/step_context.h"

namespace tessera {
namespace cpu {
namespace {

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options)
      : options_(options),
        team_(std::make_shared<ThreadTeam>(
            ThreadTeamOptions{.threads = options.threads, .cpus = options.cpus})) {}

  std::string name() const override { return "cpu"; }

  Status load(const Model& model, const ShardLayout& layout, const LoadProgress& progress) override;
  Status allocate_scratch(const Model& model);
  void begin(const BatchView& batch) override;
  void embed() override;

  void mixer(int layer) override {
    if (spec_.layers[static_cast<std::size_t>(layer)].attention() != nullptr) {
      attention_block(*context_, layer);
    } else {
      delta_block(*context_, layer);
    }
  }
  void route(int layer) override { route_block(*context_, layer); }
  void experts(int layer, std::span<const RoutedPair> pairs) override {
    experts_block(*context_, layer, pairs);
  }
  void all_experts(int layer) override { experts_block(*context_, layer, routed_pairs()); }
  void dense(int layer) override { dense_block(*context_, layer); }
  std::span<const float> expert_rows(int layer) override {
    return cpu::expert_rows(*context_, layer);
  }
  void add_expert_sums(int, std::span<const std::int32_t> rows,
                       std::span<const double> sums) override {
    add_sums_block(*context_, rows, sums);
  }
  void finish_ffn(int layer) override { finish_ffn_block(*context_, layer); }
  void head() override { head_block(*context_); }

  std::span<const float> logits() override {
    return {scratch_.logits,
            context_->batch.logit_rows.size() * static_cast<std::size_t>(spec_.n_vocab)};
  }
  std::span<const RoutedPair> routed_pairs() override;
  void read_hidden(std::span<float> out) override {
    CHECK(out.size() == hidden_size());
    std::copy_n(scratch_.hidden, out.size(), out.data());
  }
  void write_hidden(std::span<const float> rows) override {
    CHECK(rows.size() == hidden_size());
    std::copy_n(rows.data(), rows.size(), scratch_.hidden);
  }

  void reset_slot(int slot) override { state_.reset_slot(slot); }
  void copy_slot(const StateCopy& slots) override { state_.copy_slot(slots); }
  void copy_page(int kv_group, const StateCopy& pages) override {
    state_.copy_page(kv_group, pages);
  }
  std::shared_ptr<ThreadTeam> team() override { return team_; }
  Status fault() override {
    return layout_.file_parts > 0 ? model_->file().check_intact() : Status{};
  }
  void begin_replace_expert(const ExpertMove& move) override { mover_->begin(move); }
  Result<bool> expert_replaced() override { return mover_->finish(); }

 private:
  std::size_t hidden_size() const {
    return static_cast<std::size_t>(context_->rows()) * static_cast<std::size_t>(spec_.n_embd);
  }
  void fill_rotary_tables();

  CpuDeviceOptions options_;
  std::shared_ptr<ThreadTeam> team_;
  const Model* model_ = nullptr;  // where its file is read while it serves
  ModelSpec spec_;
  ShardLayout layout_;
  Weights weights_;
  StateMemory state_;
  AlignedBuffer scratch_memory_;
  Scratch scratch_;
  std::vector<PackRoom> rooms_;
  RopeTables ropes_;
  std::unique_ptr<StepContext> context_;
  std::unique_ptr<ExpertMover> mover_;  // where layers have spare places
};

bool has_spare_places(const ShardLayout& layout) {
  return std::any_of(layout.experts.begin(), layout.experts.end(),
                     [](const LayerExperts& layer) { return layer.spare > 0; });
}

// The lists of a step at their longest, so that a step allocates nothing.
void reserve_work(StepContext& context, const ShardLayout& layout) {
  std::size_t kv_heads = 0;
  std::size_t experts = 0;
  for (const LayerSpec& layer : context.spec.layers) {
    if (const AttentionSpec* a = layer.attention())
      kv_heads = std::max(kv_heads, static_cast<std::size_t>(a->n_kv_head));
    if (layer.moe) experts = std::max(experts, static_cast<std::size_t>(layer.moe->n_expert));
  }
  const auto rows = static_cast<std::size_t>(layout.max_rows);
  context.row_position.reserve(rows);
  context.row_sequence.reserve(rows);
  context.attention_work.reserve(rows * kv_heads +
                                 static_cast<std::size_t>(context.scratch.partial_count));
  context.active_experts.reserve(experts);
}

Status CpuDevice::load(const Model& model, const ShardLayout& layout,
                       const LoadProgress& progress) {
  CHECK(context_ == nullptr, "a device loads once");
  spec_ = model.spec();
  layout_ = layout;
  if (!layout.experts.empty() || layout.file_parts > 0) model_ = &model;
  ropes_ = rope_tables(spec_);
  TESSERA_TRY(cpu_supports(spec_));
  TESSERA_ASSIGN(state_, StateMemory::allocate(spec_, layout_, *team_));
  TESSERA_TRY(allocate_scratch(model));
  TESSERA_ASSIGN(weights_, Weights::load(model, layout_, *team_, progress));
  context_.reset(new StepContext{.spec = spec_,
                                 .team = *team_,
                                 .matmul = matmul_kernels(options_.isa),
                                 .ops = vector_kernels(options_.isa),
                                 .attention = attention_kernels(options_.isa),
                                 .delta = delta_kernels(options_.isa),
                                 .weights = weights_,
                                 .state = state_,
                                 .scratch = scratch_,
                                 .ropes = ropes_,
                                 .rooms = rooms_,
                                 .chunked_delta = options_.chunked_delta,
                                 .max_rows = layout_.max_rows,
                                 .max_logit_rows = layout_.max_logit_rows});
  reserve_work(*context_, layout_);
  if (has_spare_places(layout_)) {
    TESSERA_ASSIGN(mover_, ExpertMover::create(weights_, model));
  }
  return {};
}

Status CpuDevice::allocate_scratch(const Model& model) {
  const PackRoomSize room = pack_room_size(weight_layout(model.tensors(), spec_, layout_));
  const std::int64_t bytes = carve_scratch(spec_, layout_, team_->size(), nullptr, scratch_);
  TESSERA_ASSIGN(
      scratch_memory_,
      AlignedBuffer::allocate(static_cast<std::size_t>(bytes + team_->size() * room.bytes)));
  carve_scratch(spec_, layout_, team_->size(), scratch_memory_.data(), scratch_);
  for (int i = 0; room.bytes > 0 && i < team_->size(); ++i) {
    rooms_.push_back(
        {.bytes = scratch_memory_.data() + bytes + i * room.bytes, .size = room.bytes});
    rooms_.back().rows.resize(static_cast<std::size_t>(room.floats));
  }
  return {};
}

void CpuDevice::begin(const BatchView& batch) {
  StepContext& context = *context_;
  CHECK(batch.rows() <= layout_.max_rows);
  CHECK(static_cast<int>(batch.logit_rows.size()) <= layout_.max_logit_rows);
  context.batch = batch;
  context.row_position.clear();
  context.row_sequence.clear();
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    const SequenceRows& sequence = batch.sequences[i];
    CHECK(sequence.first_row == static_cast<int>(context.row_position.size()));
    for (int row = 0; row < sequence.n_rows; ++row) {
      context.row_position.push_back(sequence.first_position + row);
      context.row_sequence.push_back(static_cast<std::int32_t>(i));
    }
  }
  CHECK(static_cast<int>(context.row_position.size()) == batch.rows());
  fill_rotary_tables();
}

void CpuDevice::fill_rotary_tables() {
  const StepContext& context = *context_;
  team_->run([&](TeamMember& member) {
    member.for_each(context.rows(), 4, [&](int begin, int end) {
      for (int row = begin; row < end; ++row) {
        for (std::size_t i = 0; i < ropes_.distinct.size(); ++i) {
          const RopeSpec& rope = *ropes_.distinct[i];
          const std::int64_t at = ropes_.offsets[i] * layout_.max_rows +
                                  row * static_cast<std::int64_t>(rope.inv_freq.size());
          fill_rope_row(rope.inv_freq, rope.magnitude,
                        context.row_position[static_cast<std::size_t>(row)], scratch_.rope_cos + at,
                        scratch_.rope_sin + at);
        }
      }
    });
  });
}

void CpuDevice::embed() {
  const StepContext& context = *context_;
  const WeightMatrix& table = weights_.global().matrix(TensorRole::token_embd);
  team_->run([&](TeamMember& member) {
    member.for_each(context.rows(), 1, [&](int begin, int end) {
      for (int row = begin; row < end; ++row) {
        float* out = context.hidden_row(row);
        const TokenId token = context.batch.tokens[static_cast<std::size_t>(row)];
        CHECK(token >= 0 && token < spec_.n_vocab);
        if (const TensorSlice* slice = table.file)
          dequantize_row(slice->type, slice->data + token * slice->row_stride, slice->cols, out);
        else
          dequantize_packed_row(table, token, out);
        if (spec_.embedding_scale != 1.0f)
          context.ops.scale(out, spec_.embedding_scale, spec_.n_embd, out);
      }
    });
  });
}

std::span<const RoutedPair> CpuDevice::routed_pairs() {
  return {scratch_.pairs,
          static_cast<std::size_t>(context_->rows()) * static_cast<std::size_t>(context_->n_used)};
}

}  // namespace

void head_block(StepContext& context) {
  const Scratch& s = context.scratch;
  const LayerWeights& weights = context.weights.global();
  const std::span<const std::int32_t> rows = context.batch.logit_rows;
  if (rows.empty()) return;
  const WeightMatrix& head =
      weights.matrix(context.spec.tied_head ? TensorRole::token_embd : TensorRole::output);
  const int n = static_cast<int>(rows.size());
  const int n_embd = context.n_embd();
  const Activations x = activations(s.head_normed, context.max_logit_rows, n_embd, s.head_records);
  const Product product{
      .w = &head, .x = x, .n_rows = n, .out = s.logits, .out_stride = context.spec.n_vocab};
  context.team.run([&](TeamMember& member) {
    member.for_each(n, 1, [&](int begin, int end) {
      for (int i = begin; i < end; ++i)
        context.ops.rms_norm(context.hidden_row(rows[static_cast<std::size_t>(i)]),
                             weights.vector(TensorRole::output_norm), context.spec.norm_eps, n_embd,
                             s.head_normed + std::int64_t{i} * n_embd);
      quantize_for(context, head, x, begin, end);
    });
    multiply(context, member, {&product, 1});
    if (context.spec.logit_softcap > 0.0f)
      member.for_each(n, 1, [&](int begin, int end) {
        float* first = s.logits + std::int64_t{begin} * context.spec.n_vocab;
        context.ops.softcap(first, context.spec.logit_softcap,
                            std::int64_t{end - begin} * context.spec.n_vocab, first);
      });
  });
}

}  // namespace cpu

Result<std::unique_ptr<Device>> make_cpu_device(const CpuDeviceOptions& options) {
  if (options.threads < 1)
    return Error::make(ErrorCode::invalid, "{} threads; give 1 or more", options.threads);
  if (!cpu::isa_supported(options.isa))
    return Error::make(ErrorCode::unsupported, "this processor has no {}",
                       cpu::isa_name(options.isa));
  try {
    return std::unique_ptr<Device>(std::make_unique<cpu::CpuDevice>(options));
  } catch (const std::system_error& error) {
    return Error::make(ErrorCode::exhausted, "cannot start {} threads: {}; give fewer --threads",
                       options.threads, error.what());
  }
}

Status cpu_supports(const ModelSpec& spec) {
  for (const LayerSpec& layer : spec.layers) {
    if (const GatedDeltaSpec* delta = layer.gated_delta()) TESSERA_TRY(cpu::validate(*delta));
    if (const AttentionSpec* a = layer.attention())
      TESSERA_TRY(cpu::validate(cpu::KvGeometry{a->n_kv_head, a->head_dim_k, a->head_dim_v}));
  }
  return {};
}

CpuFootprint cpu_footprint(const Model& model, const ShardLayout& shard, int threads) {
  const ModelSpec& spec = model.spec();
  const cpu::StateLayout state = cpu::state_layout(spec, shard);
  const cpu::WeightLayout weights = cpu::weight_layout(model.tensors(), spec, shard);
  cpu::Scratch scratch;
  return {.weights = weights.bytes,
          .kv = state.kv_bytes(shard),
          .recurrent = state.slot_bytes(shard),
          .scratch = saturated_add(
              cpu::carve_scratch(spec, shard, threads, nullptr, scratch),
              saturated_mul<std::int64_t>(threads, cpu::pack_room_size(weights).total()))};
}

std::vector<std::int64_t> cpu_expert_bytes(const Model& model, const ShardLayout& shard) {
  std::vector<std::int64_t> bytes(model.spec().layers.size(), 0);
  for (const cpu::WeightEntry& entry :
       cpu::weight_layout(model.tensors(), model.spec(), shard).entries)
    if (tensor_use(entry.slice->role) == TensorUse::expert_matrix)
      bytes[static_cast<std::size_t>(entry.slice->layer)] += entry.matrix_bytes;
  return bytes;
}

std::int64_t cpu_page_bytes(const ModelSpec& spec, const ShardLayout& shard, int kv_group) {
  return cpu::state_layout(spec, shard).page_bytes[static_cast<std::size_t>(kv_group)];
}

std::int64_t cpu_slot_bytes(const ModelSpec& spec, const ShardLayout& shard) {
  return cpu::state_layout(spec, shard).slot_floats * std::int64_t{sizeof(float)};
}

}  // namespace tessera
