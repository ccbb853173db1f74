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

// A worker that starts only while the gate is open. One that waits at a closed one is given up, and
// started again, after ten seconds and more: until then nothing moves.
class Gate {
 public:
  explicit Gate(bool open) {
    if (open)
      this->open();
    else
      close();
  }
  void open() const { write_file(path_, ""); }
  void close() const { std::filesystem::remove(path_); }
  std::string worker() const {
    return reluctant_worker("while [ ! -e " + path_ + " ]; do sleep 0.05; done", path_);
  }

 private:
  const std::string path_ = scratch_folder() + "/gate";
};

}  // namespace tessera::testing
