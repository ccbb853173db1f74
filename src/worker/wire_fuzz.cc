// Fuzzes the decoding of headers and of every body. What decodes must encode to the same bytes or
// stay within the limits that it was checked against.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "worker/byte_codec.h"
#include "worker/crc32c.h"
#include "worker/jobs.h"
#include "worker/messages.h"
#include "worker/model_messages.h"
#include "worker/token_wire.h"
#include "worker/told_routing.h"
#include "worker/wire.h"

namespace tessera::worker {
namespace {

constexpr int kVocabulary = 100;
const WireLimits kLimits{.n_layer = 4,
                         .n_embd = 4,
                         .n_vocab = kVocabulary,
                         .n_expert = 12,
                         .max_rows = 64,
                         .max_logit_rows = 8,
                         .max_pairs = 64,
                         .max_page_changes = 16,
                         .in_types = kFloatTypes,
                         .out_types = kResultTypes,
                         .max_model_bytes = 256};
const ForwardLimits kForward{.slots = 8, .kv_pages = {4, 2}, .max_positions = 256};

template <typename Decode>
void stable(std::span<const std::byte> body, Decode decode) {
  const auto first = decode(body);
  if (!first) return;
  const auto second = decode(encode(*first));
  CHECK(second.ok() && *second == *first);
}

void control_bodies(std::span<const std::byte> body) {
  (void)decode_attach(body);
  stable(body, decode_probe);
  if (const Result<Hello> hello = decode_hello(body); hello.ok())
    CHECK(*decode_hello(encode(*hello)) == *hello);
  stable(body, decode_hello_ack);
  stable(body, decode_refuse);
  stable(body, decode_stats);
  stable(body, decode_error);
  stable(body, decode_model_info);
  stable(body, decode_model_read);
}

// A result of tokens for these choices.
void tokens(std::span<const std::byte> body) {
  static const SampleableTokens kTokens(90, [](TokenId id) { return id % 7 == 3; });
  const TokenChoice choices[] = {{.n_top = 2}, {.given = 3}};
  const std::size_t bytes = std::size(choices) * result_words(choices) * 4;
  if (body.size() < bytes) return;
  std::array<ChosenToken, std::size(choices)> chosen;
  if (!decode_chosen(body.first(bytes), choices, kTokens, kVocabulary, chosen)) return;
  CHECK(chosen[0].id == kNoToken || kTokens.contains(chosen[0].id));
  CHECK(chosen[1].id == kNoToken || chosen[1].id == 3);
  for (const TokenLogprob& other : chosen[0].top) CHECK(other.id >= 0 && other.id < kVocabulary);
}

// What passes is within the rows that it may be of.
void routing(std::span<const std::byte> body, const Hello& hello) {
  constexpr std::uint32_t kRows = 1000;
  static RoutingCounts counts([] {
    ModelSpec spec;
    spec.layers.resize(4);
    spec.layers[1].moe = MoeSpec{.n_expert = 12, .n_used = 2};
    return spec;
  }());
  ToldRouting told(hello, &counts);
  told.answered(kRows);
  CHECK(told.ask() == 1);
  const bool taken = told.take(body).ok();
  std::uint64_t pairs = 0;
  for (const std::uint32_t times : counts.take(1)) {
    CHECK(times <= kRows);
    pairs += times;
  }
  CHECK(taken ? pairs <= 2 * kRows : pairs == 0);
}

void frame(std::span<const std::byte> input) {
  std::array<std::byte, kHeaderBytes> raw{};
  std::copy_n(input.begin(), kHeaderBytes, raw.begin());
  (void)decode_header(raw);
  // Past the magic and the checksum, so that the fields behind them are reached.
  store_le(raw.data(), kMagic);
  store_le(raw.data() + 60, crc32c(std::span(raw).first<60>()));
  const Result<FrameHeader> header = decode_header(raw);
  if (!header || !check_frame(*header, kLimits)) return;
  CHECK(header->body_bytes <= max_body_bytes(kLimits));
  const std::span<const std::byte> body = input.subspan(kHeaderBytes);
  if (body.size() < header->body_bytes) return;
  const std::span<const std::byte> exact = body.first(header->body_bytes);
  ExpertsBody experts;
  ForwardBody forward;
  if (header->op == Op::compute_experts) (void)decode_experts(*header, exact, kLimits, experts);
  if (header->op == Op::routed && !exact.empty()) {
    static const Hello kHello{.dims = {.n_layer = 4, .n_expert = 12}, .end_layer = 4};
    routing(exact, kHello);
  }
  if (header->op == Op::forward_layers)
    (void)decode_forward(*header, exact, kLimits, kForward, forward);
}

}  // namespace
}  // namespace tessera::worker

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera::worker;
  const std::span<const std::byte> input(reinterpret_cast<const std::byte*>(data), size);
  control_bodies(input);
  tokens(input);
  if (size >= kHeaderBytes) frame(input);
  return 0;
}
