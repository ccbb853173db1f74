// What a person says about experts away from their device, and the names for it.
//
//   TESSERA_ASSIGN(const ExpertMode mode, parse_expert_mode("batched"));
//
// Parsers fail with ErrorCode::invalid and name the choices.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace tessera {

// How the rows of a batch are cut into jobs for a worker: as few as its limits allow, up to
// batch_capacity rows each (`automatic` means the same), or kStreamRows rows each, for a worker
// that is better given little at a time.
enum class ExpertMode : std::uint8_t { automatic, batched, stream };
// Memory shared with a worker of this host where that is possible, or not else; or a socket.
enum class ExpertTransport : std::uint8_t { automatic, shared, stream };
// How rows and sums travel; they are computed in f32 at both ends.
enum class ExpertPayload : std::uint8_t { f32, f16, bf16, int16 };

// What the host's experts have of their file's pages at start: nothing, all, or all for good.
enum class ExpertPrefault : std::uint8_t { off, on, lock };

// Whether experts of the host cross to a device that can fetch them (experts/stream_choice.h):
// where that is cheaper than computing their pairs on the host, always, or never.
enum class ExpertStream : std::uint8_t { automatic, on, off };

const char* expert_mode_name(ExpertMode mode);                 // "auto", "batched", "stream"
const char* expert_transport_name(ExpertTransport transport);  // "auto", "shared", "stream"
const char* expert_payload_name(ExpertPayload payload);
Result<ExpertMode> parse_expert_mode(std::string_view name);
Result<ExpertTransport> parse_expert_transport(std::string_view name);
Result<ExpertPayload> parse_expert_payload(std::string_view name);
Result<ExpertPrefault> parse_expert_prefault(std::string_view name);  // "off", "on", "lock"
Result<ExpertStream> parse_expert_stream(std::string_view name);      // "auto", "on", "off"

inline constexpr int kStreamRows = 4;

struct ExpertOptions {
  ExpertMode mode = ExpertMode::automatic;
  ExpertTransport transport = ExpertTransport::automatic;
  ExpertPayload payload = ExpertPayload::f32;
  int batch_capacity = 1024;  // rows of a job
  bool required = false;      // a worker's failure fails the request; the host does not step in
  // What a worker may cost more than the host before it is passed over (experts/bypass.h).
  std::chrono::microseconds patience{100'000};
  // How long a worker's job is waited for at least before the host computes it too: longer than a
  // wake-up takes.
  std::chrono::microseconds grace{10'000};
  ExpertPrefault prefault = ExpertPrefault::off;
  ExpertStream stream = ExpertStream::automatic;
  bool foresee = true;  // the host reads ahead what a device foresees (Device::foreseen())

  // Of a worker's job.
  int most_job_rows() const {
    return mode == ExpertMode::stream ? std::min(kStreamRows, batch_capacity) : batch_capacity;
  }
};

}  // namespace tessera
