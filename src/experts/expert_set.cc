#include "experts/expert_set.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/checked.h"

namespace tessera {
namespace {

constexpr int kFewRows = 2;

// The expert tensors of the layers that have homes.
std::vector<TensorSlice> expert_tensors(const Model& model, const ExpertSetLayout& layout) {
  std::vector<TensorSlice> tensors;
  for (const TensorSlice& slice : model.tensors()) {
    if (tensor_use(slice.role) != TensorUse::expert_matrix || slice.layer < layout.first_layer ||
        slice.layer >= layout.end_layer())
      continue;
    const auto at = static_cast<std::size_t>(slice.layer - layout.first_layer);
    if (!layout.experts[at].home.empty()) tensors.push_back(slice);
  }
  return tensors;
}

ShardLayout shard_layout(const ExpertSetLayout& layout) {
  ShardLayout shard;
  shard.first_layer = layout.first_layer;
  shard.end_layer = layout.end_layer();
  shard.embedding = shard.head = false;
  shard.experts = layout.experts;
  shard.f32_weights = layout.f32_weights;
  return shard;
}

Status check_layout(const ModelSpec& spec, const ExpertSetLayout& layout) {
  if (layout.first_layer < 0 || layout.end_layer() > spec.n_layer())
    return Error::make(ErrorCode::invalid, "experts of layers {} to {}: the model has {}",
                       layout.first_layer, layout.end_layer() - 1, spec.n_layer());
  if (layout.max_rows < 1 || layout.max_pairs < 1)
    return Error::make(ErrorCode::invalid, "jobs of {} rows and {} pairs: give 1 or more",
                       layout.max_rows, layout.max_pairs);
  for (std::size_t i = 0; i < layout.experts.size(); ++i) {
    const std::size_t homes = layout.experts[i].home.size();
    const auto& moe = spec.layers[static_cast<std::size_t>(layout.first_layer) + i].moe;
    if (homes != 0 && (!moe || homes != static_cast<std::size_t>(moe->n_expert)))
      return Error::make(ErrorCode::invalid, "layer {}: {} experts, the model has {}",
                         static_cast<std::size_t>(layout.first_layer) + i, homes,
                         moe ? moe->n_expert : 0);
  }
  return {};
}

}  // namespace

ExpertSet::ExpertSet(const Model& model, const ExpertSetLayout& layout,
                     const ExpertSetOptions& options)
    : model_(model),
      layout_(layout),
      team_(options.team),
      matmul_(cpu::matmul_kernels(options.isa)),
      ops_(cpu::vector_kernels(options.isa)),
      tensors_(expert_tensors(model, layout)) {}

Result<std::unique_ptr<ExpertSet>> ExpertSet::load(const Model& model,
                                                   const ExpertSetLayout& layout,
                                                   const ExpertSetOptions& options,
                                                   const LoadProgress& progress) {
  CHECK(options.team != nullptr);
  TESSERA_TRY(check_layout(model.spec(), layout));
  std::unique_ptr<ExpertSet> set(new ExpertSet(model, layout, options));
  const int threads = set->team_->size();
  const std::int64_t bytes = carve(model, layout, threads, nullptr, set->scratch_);
  TESSERA_ASSIGN(set->memory_, AlignedBuffer::allocate(static_cast<std::size_t>(bytes)));
  carve(model, layout, threads, set->memory_.data(), set->scratch_);
  int most_experts = 0;
  for (const LayerExperts& layer : layout.experts)
    most_experts = std::max(most_experts, static_cast<int>(layer.home.size()));
  set->active_.reserve(static_cast<std::size_t>(most_experts));
  set->fetched_.reserve(static_cast<std::size_t>(most_experts));
  set->scratch_.buffers.active = &set->active_;
  for (int i = 0; i < threads; ++i)
    set->rooms_.push_back({.bytes = set->scratch_.pack_rooms + i * set->scratch_.pack_room,
                           .size = set->scratch_.pack_room});
  TESSERA_ASSIGN(set->weights_, cpu::Weights::load(model, set->tensors_, shard_layout(layout),
                                                   *set->team_, progress));
  for (int layer = layout.first_layer; layer < layout.end_layer(); ++layer)
    set->files_.push_back({.gate = model.find(TensorRole::moe_gate, layer),
                           .up = model.find(TensorRole::moe_up, layer),
                           .down = model.find(TensorRole::moe_down, layer),
                           .room = set->rooms_});
  return set;
}

std::int64_t ExpertSet::carve(const Model& model, const ExpertSetLayout& layout, int threads,
                              std::byte* base, Scratch& out) {
  std::int64_t n_ff = 0, n_expert = 0, used = 0;
  for (std::size_t i = 0; i < layout.experts.size(); ++i) {
    if (layout.experts[i].home.empty()) continue;
    const MoeSpec& moe = *model.spec().layers[static_cast<std::size_t>(layout.first_layer) + i].moe;
    n_ff = std::max<std::int64_t>(n_ff, moe.n_ff);
    n_expert = std::max<std::int64_t>(n_expert, moe.n_expert);
  }
  const auto take = [&]<typename T>(T*& pointer, std::int64_t bytes) {
    pointer = base != nullptr ? reinterpret_cast<T*>(base + used) : nullptr;
    used += round_up<std::int64_t>(bytes, 64);
  };
  constexpr std::int64_t kWord = 4;  // bytes of a float and of an index
  const std::int64_t rows = layout.max_rows, pairs = layout.max_pairs, embd = model.spec().n_embd;
  out.buffers.pairs = pairs;
  take(out.buffers.pair_rows, pairs * kWord);
  take(out.buffers.expert_ends, (n_expert + 1) * kWord);
  take(out.buffers.done, 2 * n_expert * kWord);
  take(out.buffers.gate, pairs * n_ff * kWord);
  take(out.buffers.up, pairs * n_ff * kWord);
  take(out.buffers.records, cpu::activation_bytes(pairs, n_ff));
  take(out.buffers.out, pairs * embd * kWord);
  take(out.row_records, cpu::activation_bytes(rows, embd));
  take(out.terms, pairs * std::int64_t{sizeof(cpu::WeightedRow)});
  take(out.row_pairs, (rows + 1) * kWord);
  out.pack_room = round_up<std::int64_t>(cpu::pack_room_bytes(expert_tensors(model, layout)), 64);
  take(out.pack_rooms, threads * out.pack_room);
  return used;
}

void ExpertSet::touch() {
  std::memset(memory_.data(), 0, memory_.size());
}

ExpertSetFootprint expert_set_footprint(const Model& model, const ExpertSetLayout& layout,
                                        int threads) {
  ExpertSet::Scratch scratch;
  return {.weights =
              cpu::weight_layout(expert_tensors(model, layout), model.spec(), shard_layout(layout))
                  .bytes,
          .scratch = ExpertSet::carve(model, layout, threads, nullptr, scratch)};
}

Status check_expert_job(const ExpertSetLayout& layout, int n_embd, const ExpertJob& job) {
  const auto invalid = [&](std::string_view what) {
    return Error::make(ErrorCode::invalid, "layer {}, {} rows, {} pairs: {}", job.layer, job.n_rows,
                       job.pairs.size(), what);
  };
  if (job.layer < layout.first_layer || job.layer >= layout.end_layer())
    return invalid("not one of its layers");
  const auto& home = layout.experts[static_cast<std::size_t>(job.layer - layout.first_layer)].home;
  if (home.empty()) return invalid("not one of its layers");
  if (job.n_rows < 0 || job.n_rows > layout.max_rows) return invalid("too many rows");
  if (job.pairs.size() > static_cast<std::size_t>(layout.max_pairs))
    return invalid("too many pairs");
  if (job.rows.size() != static_cast<std::size_t>(job.n_rows) * static_cast<std::size_t>(n_embd))
    return invalid("rows of another length");
  std::int32_t before = 0;
  for (const RoutedPair& pair : job.pairs) {
    if (pair.row < before || pair.row >= job.n_rows) return invalid("rows that do not rise");
    if (pair.expert < 0 || static_cast<std::size_t>(pair.expert) >= home.size())
      return invalid("an expert that the model does not have");
    if (home[static_cast<std::size_t>(pair.expert)].is_worker())
      return Error::make(ErrorCode::not_found, "expert {} of layer {} is not here", pair.expert,
                         job.layer);
    before = pair.row;
  }
  return {};
}

cpu::ExpertPass ExpertSet::pass_of(int layer) const {
  return {{.matmul = matmul_,
           .ops = ops_,
           .moe = *model_.spec().layers[static_cast<std::size_t>(layer)].moe,
           .weights = weights_.layer(layer),
           .files = &files_[static_cast<std::size_t>(layer - layout_.first_layer)]},
          scratch_.buffers};
}

void ExpertSet::fetch(int layer, std::span<const std::int32_t> experts, ThreadTeam& team,
                      const std::function<bool()>& enough) {
  CHECK(team.size() <= team_->size() && std::cmp_less_equal(experts.size(), layout_.max_pairs));
  fetched_.clear();
  for (const std::int32_t expert : experts) fetched_.push_back({.expert = expert});
  cpu::ExpertPass pass = pass_of(layer);
  pass.sort(fetched_, 0, [](std::size_t, std::int32_t) {});
  team.run([&](const TeamMember& member) { pass.fetch(member, enough); });
}

void ExpertSet::compute(const ExpertJob& job, std::span<double> sums, ThreadTeam& team) {
  CHECK(team.size() <= team_->size());
  const std::int64_t n = n_embd();
  CHECK(sums.size() == static_cast<std::size_t>(job.n_rows * n));
  const Scratch& s = scratch_;
  std::int32_t row = 0;
  for (std::size_t i = 0; i < job.pairs.size(); ++i)
    while (row <= job.pairs[i].row) s.row_pairs[row++] = static_cast<std::int32_t>(i);
  while (row <= job.n_rows) s.row_pairs[row++] = static_cast<std::int32_t>(job.pairs.size());

  cpu::ExpertPass pass = pass_of(job.layer);
  pass.sort(job.pairs, 0, [&](std::size_t i, std::int32_t place) {
    s.terms[i] = {.x = s.buffers.out + std::int64_t{place} * n, .weight = job.pairs[i].weight};
  });
  const cpu::Activations x{.rows = job.rows.data(),
                           .stride = n,
                           .n_rows = layout_.max_rows,
                           .cols = n,
                           .records = s.row_records};
  // Of few rows sooner than a team comes together.
  const bool few = job.n_rows <= kFewRows, reads_records = weights_.layer(job.layer).reads_records;
  if (reads_records && few) cpu::quantize_rows(matmul_, x, 0, job.n_rows);
  team.run([&](TeamMember& member) {
    if (reads_records && !few)
      member.for_each(job.n_rows, 1,
                      [&](int begin, int end) { cpu::quantize_rows(matmul_, x, begin, end); });
    pass.run(member, x);
    add_up(member, job.n_rows, sums);
  });
}

// Columns of a row are shared out too: other members' caches have the terms. The run's end waits.
void ExpertSet::add_up(TeamMember& member, int rows, std::span<double> sums) const {
  constexpr std::int64_t kColumns = 128;
  const std::int64_t n = n_embd();
  const auto pieces = static_cast<int>((n + kColumns - 1) / kColumns);
  const int grain = std::max(1, rows * pieces / (member.size() * 8));
  member.for_each_nowait(rows * pieces, grain, [&](int begin, int end) {
    for (int i = begin; i < end; ++i) {
      const std::int64_t row = i / pieces, first = i % pieces * kColumns;
      const std::int32_t* pairs = scratch_.row_pairs + row;
      ops_.partial_sum(scratch_.terms + pairs[0], pairs[1] - pairs[0], first,
                       std::min(n, first + kColumns), sums.data() + row * n);
    }
  });
}

}  // namespace tessera
