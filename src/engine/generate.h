// generate: one request, run to its end on the calling thread.
//
//   TESSERA_ASSIGN(Generated answer, generate(engine, request, [](std::string_view text) {
//     std::cout << text << std::flush;
//     return true;   // false: stop here
//   }));
//
// `on_text` is called on the calling thread with whole characters, as they come. Errors: those of
// Engine::submit() and the one that ended the request. Not from an engine's sink.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"

namespace tessera {

struct Generated {
  std::string text;
  std::vector<EmittedToken> prompt_tokens;  // when prompt_logprobs was asked
  std::vector<EmittedToken> tokens;
  Finish finish;
};

using OnText = std::function<bool(std::string_view text)>;

Result<Generated> generate(Engine& engine, GenerationRequest request, const OnText& on_text = {});

}  // namespace tessera
