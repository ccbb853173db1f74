#include "device/gpu/kernels/attention.cuh"

namespace tessera::gpu {

namespace {

std::int64_t q_floats(const AttentionArgs& args) {
  return static_cast<std::int64_t>(args.step.rows) * args.n_head * args.kv.head_dim_k;
}
int span_count(const AttentionArgs& args) {
  return attention_spans(args.step.rows, args.max_context);
}

}  // namespace

AttentionScratch attention_scratch(const AttentionArgs& args, void* workspace) {
  auto* floats = static_cast<float*>(workspace);
  AttentionScratch scratch{.partials = floats + q_floats(args), .spans = span_count(args)};
  if (has_prefill_attention(args))
    scratch.half_q = static_cast<__half*>(workspace);
  else
    scratch.q = floats;
  return scratch;
}

GpuError attention(const Launch& launch, const AttentionArgs& args) {
  const AttentionScratch scratch = attention_scratch(args, launch.workspace);
  GpuError error{};
  if (!attention_places(args)) error = place_rows(launch, args, scratch);
  if (error != GpuError{}) return error;
  if (has_prefill_attention(args)) return attend_prefill(launch, args, scratch);
  auto* rounded =
      attention_leaves_rounded(args) ? static_cast<std::byte*>(launch.workspace) : nullptr;
  if (attends_short(launch, args)) return attend_short(launch, args, rounded);
  error = has_decode_attention(args) ? attend_decode(launch, args, scratch)
                                     : attend_plain(launch, args, scratch);
  return error != GpuError{} ? error : combine_spans(launch, args, scratch, rounded);
}

// In the place of the queries, which nobody reads any more when spans are combined.
bool attention_leaves_rounded(const AttentionArgs& args) {
  const int dims = args.kv.head_dim_v, width = args.n_head * dims;
  return args.step.rows >= 2 && args.step.rows <= kDecodeRows && dims % kWarp == 0 &&
         width % kSuperCols == 0 &&
         rounded_row_bytes(width) <= std::int64_t{args.n_head} * args.kv.head_dim_k * 4;
}

}  // namespace tessera::gpu
