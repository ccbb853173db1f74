#include "worker/probe.h"

#include "device/cpu/isa.h"
#include "worker/body_parts.h"

namespace tessera::worker {
namespace {

constexpr std::uint32_t kMaxThreads = 65536;
constexpr auto kMaxIsa = static_cast<std::uint16_t>(1 + static_cast<int>(cpu::Isa::avx512));
constexpr auto kMaxDeviceKind = static_cast<std::uint16_t>(DeviceKind::hip);
constexpr std::uint64_t kMaxMemory = std::uint64_t{1} << 56;
constexpr double kLeastSpeed = 1e6;  // bytes or operations per second
constexpr double kMostSpeed = 1e15;

// The planner divides by it. False for what is no number.
bool possible_speed(double per_second) {
  return per_second == 0 || (per_second >= kLeastSpeed && per_second <= kMostSpeed);
}

void encode_text(ByteWriter& out, const std::string& text, std::size_t most) {
  const std::span<const std::byte> sent = sent_text(text, most);
  out.u32(static_cast<std::uint32_t>(sent.size()));
  out.bytes(sent);
}

// False when it cannot be, as below.
bool decode_text(ByteReader& in, std::string& text, std::size_t most) {
  const std::uint32_t length = in.u32();
  if (length > most) return false;
  text = printable(in.bytes(length));
  return in.ok();
}

bool decode_architectures(ByteReader& in, std::vector<std::string>& names) {
  const std::uint32_t count = in.u32();
  if (count > kMaxArchitectures) return false;
  names.resize(count);
  for (std::string& name : names)
    if (!decode_text(in, name, kMaxArchitectureText)) return false;
  return in.ok();
}

const char* isa_text(std::uint16_t isa) {
  return isa == 0 ? "kernels that it does not name" : cpu::isa_name(static_cast<cpu::Isa>(isa - 1));
}

}  // namespace

std::string build_text(const WorkerBuild& build) {
  const std::string version = build.version.empty() ? "" : ", version " + build.version;
  return fmt::format("{} on {}{}", isa_text(build.isa),
                     device_kind_name(static_cast<DeviceKind>(build.device)), version);
}

Status check_isa(const WorkerBuild& build, std::uint16_t isa) {
  if (isa == 0 || build.isa == isa) return {};
  return Error::make(ErrorCode::invalid,
                     "it computes with {}, which may choose other tokens; start it with --cpu-isa "
                     "{} too",
                     build_text(build), isa_text(isa));
}

void encode_build(ByteWriter& out, const WorkerBuild& build) {
  out.u16(build.isa);
  out.u16(build.device);
  encode_text(out, build.version, kMaxVersionText);
}

bool decode_build(ByteReader& in, WorkerBuild& build) {
  build.isa = in.u16();
  build.device = in.u16();
  return decode_text(in, build.version, kMaxVersionText) && build.isa <= kMaxIsa &&
         build.device <= kMaxDeviceKind;
}

std::vector<std::byte> encode(const Probe& probe) {
  std::vector<std::byte> body;
  ByteWriter out(body);
  out.u16(probe.version_min);
  out.u16(probe.version_max);
  out.u32(probe.roles);
  out.u32(probe.threads);
  out.u64(probe.memory_total);
  out.u64(probe.memory_free);
  out.f64(probe.bytes_per_second);
  out.f64(probe.op_per_second);
  out.bytes(probe.model);
  encode_build(out, probe.build);
  const std::span<const std::string> names = probe.architectures;
  const auto told = names.first(std::min(names.size(), kMaxArchitectures));
  out.u32(static_cast<std::uint32_t>(told.size()));
  for (const std::string& name : told) encode_text(out, name, kMaxArchitectureText);
  return body;
}

Result<Probe> decode_probe(std::span<const std::byte> body) {
  ByteReader in(body);
  Probe probe;
  probe.version_min = in.u16();
  probe.version_max = in.u16();
  if (!in.ok() || probe.version_min > probe.version_max) return malformed("PROBE");
  if (!probe.speaks_our_version()) return probe;
  probe.roles = in.u32();
  probe.threads = in.u32();
  probe.memory_total = in.u64();
  probe.memory_free = in.u64();
  probe.bytes_per_second = in.f64();
  probe.op_per_second = in.f64();
  read_array(in, probe.model);
  const bool sensible = decode_build(in, probe.build) &&
                        decode_architectures(in, probe.architectures) &&
                        probe.threads <= kMaxThreads && probe.memory_total <= kMaxMemory &&
                        probe.memory_free <= kMaxMemory && possible_speed(probe.bytes_per_second) &&
                        possible_speed(probe.op_per_second);
  if (!in.done() || !sensible) return malformed("PROBE");
  return probe;
}

}  // namespace tessera::worker
