// Choices of tokens in FORWARD_LAYERS, and the tokens in its RESULT (kFlagChoose).
//
//   if (fits_wire(choices)) write_choices(writer, choices);      // else logits are asked for
//   encode_chosen(chosen, result_words(choices.rows), body);     // the worker's answer
//   TESSERA_TRY(decode_chosen(body, choices.rows, tokens, n_vocab, chosen));
//
// read_choices and decode_chosen believe nothing: numbers are held against their ranges and ids
// against the vocabulary, so that what they give can be used without a further look. A result has
// `result_words` numbers of 4 bytes a row: id, log probability (or the largest logit, where there
// is no token), how many more follow, 0; then so many pairs of id and log probability. What is left
// of a row is 0.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "device/token_choice.h"
#include "sampling/choose.h"
#include "worker/byte_codec.h"

namespace tessera::worker {

// Not too many changes, nor too many top tokens.
bool fits_wire(const TokenChoices& choices);
void write_choices(ByteWriter& out, const TokenChoices& choices);

struct ChoiceCounts {
  std::uint32_t choices = 0;
  std::uint32_t changes = 0;
};
// n_vocab: the ids that there are.
Status read_choices(ByteReader& in, const ChoiceCounts& counts, std::uint32_t n_vocab,
                    std::vector<TokenChoice>& choices, std::vector<LogitChange>& changes);

std::uint32_t result_words(std::span<const TokenChoice> choices);
void encode_chosen(std::span<const ChosenToken> chosen, std::uint32_t words,
                   std::vector<std::byte>& out);
// `chosen` has a place for each choice. A token that was not asked for, or may not be sampled, is
// an error.
Status decode_chosen(std::span<const std::byte> body, std::span<const TokenChoice> choices,
                     const SampleableTokens& tokens, int n_vocab, std::span<ChosenToken> chosen);

}  // namespace tessera::worker
