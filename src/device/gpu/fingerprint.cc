#include "device/gpu/plugin_api.h"
#include "gpu_fingerprint.h"

namespace tessera {

const char* gpu_build_fingerprint() {
  return TESSERA_GPU_FINGERPRINT;
}

}  // namespace tessera
