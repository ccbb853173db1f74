#include <array>
#include <cstdlib>

#include "base/check.h"
#include "cli/option_table.h"
#include "model/synth.h"

namespace tessera::cli {
namespace {

constexpr auto kCommands = std::to_array<CommandInfo>({
    {kServe, "serve", "[MODEL]", "answer an OpenAI-style HTTP API",
     "tessera serve model.gguf --port 8080"},
    {kRun, "run", "[MODEL]", "answer one prompt, or chat on the terminal",
     "tessera run model.gguf -p 'Why is the sky blue?'"},
    {kPlan, "plan", "[MODEL]", "show where everything would lie and what it takes",
     "tessera plan model.gguf --ctx 8192"},
    {kDevices, "devices", "", "list what can compute here, and why something cannot",
     "tessera devices"},
    {kBench, "bench", "[MODEL]", "measure prompt and generation speed",
     "tessera bench model.gguf -p 512,4096 -n 128"},
    {kCalibrate, "calibrate", "MODEL", "count which experts a text needs, for --expert-profile",
     "tessera calibrate model.gguf --text sample.txt"},
    {kInspect, "inspect", "FILE", "show a GGUF file's metadata and tensors",
     "tessera inspect model.gguf"},
    {kTokenize, "tokenize", "[MODEL]", "text to token ids",
     "tessera tokenize model.gguf --text Hi"},
    {kDetokenize, "detokenize", "[MODEL]", "token ids to text",
     "tessera detokenize model.gguf --ids 1,2,3"},
    {kTemplate, "template", "[MODEL]", "render a conversation with the chat template",
     "tessera template model.gguf --messages chat.json"},
    {kLogits, "logits", "[MODEL]", "write the logits of a token sequence",
     "tessera logits model.gguf --ids 1,2,3 --out logits.f32"},
    {kSynth, "synth", "FAMILY OUT", "write a model file with random weights", kSynthExample},
    {kWorker, "worker", "[MODEL]",
     "compute layers or experts for a server in another process; without a model the server sends "
     "it",
     "tessera worker model.gguf --listen unix:/tmp/worker.sock"},
});

}  // namespace

std::span<const CommandInfo> command_table() {
  return kCommands;
}

const CommandInfo& command_info(Command command) {
  for (const CommandInfo& info : kCommands)
    if (info.command == command) return info;
  CHECK(false, "a command without an entry");
  std::abort();
}

}  // namespace tessera::cli
