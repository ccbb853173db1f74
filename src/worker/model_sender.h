// ModelSender: the client's end of a transfer: answers a worker that has no model file with bytes
// of this process's file (model_messages.h), between HELLO and its answer.
//
//   ModelSender sender(model.file(), {.to = "worker:0"});
//   TESSERA_ASSIGN(auto reply, client_handshake(channel, hello, deadline, &sender));
//
// Trust: a worker reads what it likes of the model's files and nothing else; not more bytes in all
// than the files have. Errors: invalid (the worker broke the protocol), io (the file cannot be
// read), and those of the channel. Threads: one. The file must outlive it.
#pragma once

#include <string>
#include <vector>

#include "gguf/gguf.h"
#include "worker/model_messages.h"
#include "worker/transfer_allowance.h"
#include "worker/transfer_progress.h"
#include "worker/transport.h"

namespace tessera::worker {

struct SenderOptions {
  std::string to = "worker";  // in logs
  std::chrono::milliseconds patience = kTransferPatience;
};

class ModelSender {
 public:
  ModelSender(const gguf::File& file, const SenderOptions& options);

  static bool answers(Op op) { return op == Op::model_info || op == Op::model_read; }
  // To a frame of such an op.
  Status answer(Channel& channel, const Frame& frame);

  bool done() const { return done_; }  // the worker has all that it wanted
  std::uint64_t sent() const { return sent_; }
  std::chrono::milliseconds patience() const { return options_.patience; }

 private:
  Status answer_read(Channel& channel, const Frame& frame);

  const gguf::File& file_;
  SenderOptions options_;
  TransferProgress progress_;
  std::vector<std::byte> chunk_;
  std::uint64_t sent_ = 0;
  bool done_ = false;
};

}  // namespace tessera::worker
