// Synthetic models: GGUF files with the true architecture of a family and random weights.
//
// A file has every key, tensor, storage type and chat template that a published model of the family
// would have, so everything but the meaning of its answers can be tried and measured with it.
// Weights are random blocks in the file's own formats, scaled so that activations keep their size,
// attention and routing are neither flat nor one-sided, and logits have a standard deviation of
// about 2.5. The vocabulary is a working tokenizer with made-up words.
//
// The same options give the same bytes, whatever the number of threads. Writing streams: memory
// stays within a few dozen megabytes for a file of any size.
//
//   SynthOptions options{.family = "qwen35moe", .preset = "mini"};
//   options.overrides = {"block_count=12", "vocab_size=65536"};
//   TESSERA_TRY(write_synthetic_model(options, "mini.gguf"));
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "quant/block_format.h"

namespace tessera {

struct SynthOptions {
  std::string family = "qwen35moe";  // synth_families()
  std::string preset = "mini";       // tiny (tests), mini, full (the published dimensions)
  std::string types = "q4_k_m";      // q4_k_m, q8_0, bf16, f32
  std::uint64_t seed = 1;
  // "key=value": a metadata key of the family, with or without its architecture prefix, or a knob
  // of the generator (vocab_size, tied_head, fused_gate_up, ...). Lists are comma separated; one
  // that is shorter than the model is repeated. "key=" leaves an optional key out.
  std::vector<std::string> overrides;
  int threads = 0;  // 0: as many as the machine has
  // Leaves the weights out: the file has its full size, reads as zeros and takes hardly any disk.
  bool hollow = false;
};

// What synth_tensors lists: one tensor of the file, in file order.
struct SynthTensor {
  std::string name;
  BlockType type = BlockType::F32;
  std::vector<std::int64_t> ne;  // ne[0] is contiguous
  std::int64_t bytes = 0;
};

// Called from the writing thread with bytes done and in all.
using SynthProgress = std::function<void(std::int64_t done, std::int64_t total)>;

std::vector<std::string> synth_families();
// A call that writes one, as a person would type it.
inline constexpr const char* kSynthExample = "tessera synth qwen35moe mini.gguf --preset mini";
// One whose layers are all the same, without experts.
inline constexpr const char* kEqualLayersFamily = "qwen3";

// The tensors that the file would have; writes nothing.
Result<std::vector<SynthTensor>> synth_tensors(const SynthOptions& options);

// The file appears under `path` only when it is complete; it then opens as a Model, or the reason
// why the overrides contradict each other is returned and there is no file.
Status write_synthetic_model(const SynthOptions& options, const std::string& path,
                             const SynthProgress& progress = {});

}  // namespace tessera
