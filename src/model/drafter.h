// DrafterSpec: the sizes of a block-diffusion drafter (GGUF architecture "dflash") that belongs to
// a target model.
//
//   TESSERA_ASSIGN(gguf::File file, gguf::File::open("drafter.gguf"));
//   TESSERA_ASSIGN(DrafterSpec drafter, read_drafter(file, model.spec()));
//
// Nothing here computes: it is what a plan reserves memory by. Every tensor that a drafter needs is
// there with its shape and every number is within bounds, or the error (ErrorCode::invalid) says
// which is not. The embedding table and the head are the target's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "gguf/gguf.h"
#include "model/spec.h"

namespace tessera {

inline constexpr std::string_view kDrafterArchitecture = "dflash";

struct DrafterSpec {
  std::string name;
  int n_layer = 0;
  int n_embd = 0;  // the target's
  int n_ff = 0;
  int n_head = 0;
  int n_kv_head = 0;
  int key_dim = 0;                // of a head
  int value_dim = 0;              // of a head
  int block_rows = 0;             // tokens of a block, the pending one included
  int captures = 0;               // layers of the target whose outputs it reads
  std::int64_t weight_bytes = 0;  // its tensors, each to a multiple of 64 bytes
};

Result<DrafterSpec> read_drafter(const gguf::File& file, const ModelSpec& target);

}  // namespace tessera
