#include "worker/token_wire.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "worker/job_layout.h"

namespace tessera::worker {
namespace {

bool in_unit(double value) {
  return value >= 0.0 && value <= 1.0;  // NaN is not
}

bool valid(const TokenChoice& choice, std::uint32_t n_vocab) {
  return choice.given >= kNoToken && choice.given < static_cast<std::int64_t>(n_vocab) &&
         choice.temperature >= 0.0f && std::isfinite(choice.temperature) && in_unit(choice.top_p) &&
         in_unit(choice.min_p) && in_unit(choice.uniform) && choice.uniform < 1.0 &&
         choice.n_top >= -1 && choice.n_top <= kMostTopTokens && choice.n_changes >= 0;
}

bool valid(const LogitChange& change, std::uint32_t n_vocab) {
  return change.id >= 0 && change.id < static_cast<std::int64_t>(n_vocab) &&
         std::isfinite(change.bias) && change.penalty > 0.0f && std::isfinite(change.penalty) &&
         std::isfinite(change.less);
}

// Minus infinity is; 0 may have been rounded up.
bool is_logprob(float value) {
  return value <= 1e-3f;
}

Error wrong_token(const ChosenToken& token, std::size_t row) {
  return Error::make(ErrorCode::invalid, "RESULT with token {} at log probability {} for row {}",
                     token.id, token.logprob, row);
}

}  // namespace

bool fits_wire(const TokenChoices& choices) {
  const auto fits = [](const TokenChoice& choice) { return choice.n_top <= kMostTopTokens; };
  return choices.changes.size() <= kMostLogitChanges &&
         std::all_of(choices.rows.begin(), choices.rows.end(), fits);
}

void write_choices(ByteWriter& out, const TokenChoices& choices) {
  for (const TokenChoice& choice : choices.rows) {
    out.f64(choice.uniform);
    out.i32(choice.given);
    out.f32(choice.temperature);
    out.i32(choice.top_k);
    out.f32(choice.top_p);
    out.f32(choice.min_p);
    out.i32(choice.n_top);
    out.i32(choice.n_changes);
    out.u32(0);
  }
  for (const LogitChange& change : choices.changes) {
    out.i32(change.id);
    out.f32(change.bias);
    out.f32(change.penalty);
    out.f32(change.less);
  }
}

Status read_choices(ByteReader& in, const ChoiceCounts& counts, std::uint32_t n_vocab,
                    std::vector<TokenChoice>& choices, std::vector<LogitChange>& changes) {
  choices.resize(counts.choices);
  std::uint64_t of_rows = 0;
  for (TokenChoice& choice : choices) {
    choice.uniform = in.f64();
    choice.given = in.i32();
    choice.temperature = in.f32();
    choice.top_k = in.i32();
    choice.top_p = in.f32();
    choice.min_p = in.f32();
    choice.n_top = in.i32();
    choice.n_changes = in.i32();
    in.u32();
    if (!valid(choice, n_vocab))
      return Error::make(ErrorCode::invalid,
                         "FORWARD_LAYERS chooses with token {} given, temperature {}, top-p {}, "
                         "min-p {}, draw {}, {} top tokens and {} changes",
                         choice.given, choice.temperature, choice.top_p, choice.min_p,
                         choice.uniform, choice.n_top, choice.n_changes);
    of_rows += static_cast<std::uint64_t>(choice.n_changes);
  }
  if (of_rows != counts.changes)
    return Error::make(ErrorCode::invalid, "FORWARD_LAYERS with {} changes of logits for {}",
                       counts.changes, of_rows);
  changes.resize(counts.changes);
  for (LogitChange& change : changes) {
    change.id = in.i32();
    change.bias = in.f32();
    change.penalty = in.f32();
    change.less = in.f32();
    if (!valid(change, n_vocab))
      return Error::make(ErrorCode::invalid,
                         "FORWARD_LAYERS changes the logit of token {} by {}, {} and {}", change.id,
                         change.bias, change.penalty, change.less);
  }
  return {};
}

std::uint32_t result_words(std::span<const TokenChoice> choices) {
  int most = 0;
  for (const TokenChoice& choice : choices) most = std::max(most, choice.n_top);
  return kChosenWords + kTopTokenWords * static_cast<std::uint32_t>(most);
}

void encode_chosen(std::span<const ChosenToken> chosen, std::uint32_t words,
                   std::vector<std::byte>& out) {
  out.clear();
  ByteWriter writer(out);
  for (std::size_t row = 0; row < chosen.size(); ++row) {
    const ChosenToken& token = chosen[row];
    writer.i32(token.id);
    writer.f32(token.id == kNoToken ? token.largest : token.logprob);
    writer.u32(static_cast<std::uint32_t>(token.top.size()));
    writer.u32(0);
    for (const TokenLogprob& other : token.top) {
      writer.i32(other.id);
      writer.f32(other.logprob);
    }
    CHECK(out.size() <= (row + 1) * words * 4, "{} top tokens", token.top.size());
    out.resize((row + 1) * words * 4);
  }
}

Status decode_chosen(std::span<const std::byte> body, std::span<const TokenChoice> choices,
                     const SampleableTokens& tokens, int n_vocab, std::span<ChosenToken> chosen) {
  const std::size_t row_bytes = std::size_t{result_words(choices)} * 4;
  CHECK(body.size() == choices.size() * row_bytes && chosen.size() == choices.size(),
        "{} bytes and {} places for {} choices", body.size(), chosen.size(), choices.size());
  for (std::size_t row = 0; row < chosen.size(); ++row) {
    const TokenChoice& choice = choices[row];
    ByteReader in(body.subspan(row * row_bytes, row_bytes));
    ChosenToken& token = chosen[row];
    token.id = in.i32();
    token.logprob = token.largest = in.f32();
    const std::uint32_t n_top = in.u32();
    in.u32();
    token.top.clear();
    if (token.id == kNoToken && n_top == 0 && !std::isfinite(token.largest)) continue;
    const bool asked =
        choice.given == kNoToken ? tokens.contains(token.id) : token.id == choice.given;
    if (!asked || !is_logprob(token.logprob) || std::cmp_greater(n_top, std::max(0, choice.n_top)))
      return wrong_token(token, row);
    for (std::uint32_t i = 0; i < n_top; ++i) {
      TokenLogprob& other = token.top.emplace_back();
      other.id = in.i32();
      other.logprob = in.f32();
      if (other.id < 0 || other.id >= n_vocab || !is_logprob(other.logprob))
        return wrong_token(token, row);
    }
  }
  return {};
}

}  // namespace tessera::worker
