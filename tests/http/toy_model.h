// A toy model for tests of the HTTP layer: one token a byte, two special tokens, a ChatML-like
// template.
#pragma once

#include "server/served_model.h"

namespace tessera::http_test {

inline constexpr TokenId kTurnBegin = 256;
inline constexpr TokenId kTurnEnd = 257;
inline constexpr int kVocabulary = 512;

// The template refuses a conversation that contains "template error".
server::ServedModel toy_model();

// The bytes of a prompt, special tokens spelled out.
std::string prompt_text(const std::vector<TokenId>& ids);

}  // namespace tessera::http_test
