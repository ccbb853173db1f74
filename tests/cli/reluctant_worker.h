// A program that answers probes as a worker does, and becomes one when the file `gate` is there:
// until then it does something else, as "exit 3" or "sleep 600".
#pragma once

#include <filesystem>
#include <string>

#include "tests/cli/program.h"

namespace tessera::testing {

inline std::string reluctant_worker(const std::string& instead, const std::string& gate) {
  const std::string path = scratch_folder() + "/reluctant.sh";
  write_file(path, "#!/bin/sh\ncase \"$*\" in *--probe*) exec " TESSERA_PROGRAM
                   " \"$@\";; esac\n[ -e " +
                       gate + " ] || " + instead + "\nexec " TESSERA_PROGRAM " \"$@\"\n");
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

}  // namespace tessera::testing
