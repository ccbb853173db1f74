// The tokenizer of a synthetic file: a working byte-pair vocabulary of any size.
//
// It has the family's base symbols and special tokens at their usual places, a few frequent English
// pieces, and then made-up words of two-letter syllables. Every word token is the result of one
// merge of two earlier tokens, so the merges are consistent, and any text encodes and decodes back
// to itself.
#pragma once

#include <vector>

#include "base/result.h"
#include "model/synth/knobs.h"
#include "model/synth/layout.h"

namespace tessera::synth {

// Appends the tokenizer.* keys.
Status add_vocabulary_keys(const Knobs& knobs, std::vector<Key>& keys);

// A short chat template in the family's format.
std::string_view chat_template(std::string_view architecture);

}  // namespace tessera::synth
