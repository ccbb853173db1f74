// PROBE: what a worker says about itself, and what it computes with, which HELLO_ACK says again.
//
//   std::vector<std::byte> body = encode(probe);
//   TESSERA_ASSIGN(const Probe probe, decode_probe(frame.body()));
//
// decode_* believes nothing: numbers that cannot be, and text beyond its bound, are errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/identity.h"
#include "plan/placement.h"
#include "worker/byte_codec.h"
#include "worker/wire.h"

namespace tessera::worker {

using ModelDigest = tessera::ModelDigest;

// What a worker computes with: where it differs, so may the last bits of results.
struct WorkerBuild {
  std::uint16_t isa = 0;     // of its CPU kernels: 1 + cpu::Isa; 0: not told
  std::uint16_t device = 0;  // DeviceKind: what its layers are computed on
  std::string version;       // of its program: printable ASCII, kMaxVersionText; empty: not told
  bool operator==(const WorkerBuild&) const = default;
};
inline constexpr std::size_t kBuildFixedBytes = 8;
inline constexpr std::size_t kMaxVersionText = 64;
inline constexpr std::size_t kMaxBuildBytes = kBuildFixedBytes + kMaxVersionText;
// For a person: "avx2 on cpu, version 0.1.0".
std::string build_text(const WorkerBuild& build);
// Whether its results have the bits that the instruction set `isa` gives (as WorkerBuild::isa; 0:
// any).
Status check_isa(const WorkerBuild& build, std::uint16_t isa);

// What a worker says about itself before anything is asked of it. Of one that speaks no version of
// this end the versions alone are known.
struct Probe {
  std::uint16_t version_min = kVersionMin;
  std::uint16_t version_max = kVersionMax;
  std::uint32_t roles = 0;         // role_bit()s
  std::uint32_t threads = 0;       // of its device
  std::uint64_t memory_total = 0;  // bytes of its device
  std::uint64_t memory_free = 0;   // what it may use of them
  double bytes_per_second = 0;     // at which it reads weights, measured; 0: not
  double op_per_second = 0;        // MeasuredSpeed::op_per_s; 0: not known, as of a GPU
  ModelDigest model{};             // zeros: none yet
  WorkerBuild build;
  std::vector<std::string> architectures;  // of models that it reads; none: not told
  bool operator==(const Probe&) const = default;
  bool speaks_our_version() const {
    return version_max >= kVersionMin && version_min <= kVersionMax;
  }
};
inline constexpr std::size_t kProbeFixedBytes = 76;
inline constexpr std::size_t kMaxArchitectures = 64;
inline constexpr std::size_t kMaxArchitectureText = 64;
inline constexpr std::size_t kMaxProbeBytes =
    kProbeFixedBytes + kMaxBuildBytes + 4 + kMaxArchitectures * (4 + kMaxArchitectureText);

std::vector<std::byte> encode(const Probe& probe);
Result<Probe> decode_probe(std::span<const std::byte> body);

// Of a body that has more.
void encode_build(ByteWriter& out, const WorkerBuild& build);
bool decode_build(ByteReader& in, WorkerBuild& build);  // false when it cannot be

}  // namespace tessera::worker
