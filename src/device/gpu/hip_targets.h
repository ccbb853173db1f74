// Which AMD processors a plug-in has code for: there is none that others run, as NVIDIA's have.
//
//   hip_refusal("gfx906,gfx1030", "gfx906:sramecc+:xnack-");   // empty: it runs there
#pragma once

#include <string>
#include <string_view>

namespace tessera::gpu {

// Why code for these targets, separated by commas, does not run on a processor as its driver names
// it, and what would; empty where it does. A target may want features of the processor
// ("gfx90a:xnack-"). Of a generic one ("gfx10-3-generic") it is the generation alone that counts:
// which processors it stands for is the driver's to say.
std::string hip_refusal(std::string_view targets, std::string_view processor);

}  // namespace tessera::gpu
