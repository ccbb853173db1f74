// Family readers: GGUF metadata in, FamilyModel out. One file per family; read_family chooses by
// general.architecture. Readers trust nothing: every number is checked against the limits in keys.h
// before it sizes anything, and an error names its key. They read no tensor data, except the small
// rope_freqs table of gemma4. Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "gguf/gguf.h"
#include "model/family.h"

namespace tessera {

Result<FamilyModel> read_family(const gguf::File& file);
// What general.architecture may be.
std::vector<std::string> supported_architectures();

Result<FamilyModel> read_qwen35(const gguf::File& file);  // qwen35 and qwen35moe
Result<FamilyModel> read_qwen3(const gguf::File& file);
Result<FamilyModel> read_laguna(const gguf::File& file);
Result<FamilyModel> read_gemma4(const gguf::File& file);  // dense and MoE

}  // namespace tessera
