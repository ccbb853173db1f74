// What computes: the processor's cores, or GPUs of one vendor.
#pragma once

namespace tessera {

enum class DeviceKind { cpu, cuda, hip };
const char* device_kind_name(DeviceKind kind);  // "cpu", "cuda", "hip"

}  // namespace tessera
