// TransferProgress: tells a log how far a transfer of weights is: at its start, every few seconds,
// and at its end with the rate. One of less than a mebibyte is not worth a line.
#pragma once

#include <cstdint>
#include <string>

#include "worker/transport.h"

namespace tessera::worker {

class TransferProgress {
 public:
  // What is done, as in "worker:0: sending the model's weights".
  explicit TransferProgress(std::string what) : what_(std::move(what)) {}

  void update(std::uint64_t done, std::uint64_t total);  // bytes
  void finish(std::uint64_t done);                       // nothing where nothing was under way

 private:
  std::string what_;
  bool started_ = false;
  Deadline begin_;
  Deadline said_;
};

}  // namespace tessera::worker
