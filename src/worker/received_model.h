// ReceivedModel: a model whose file is with the client. It is asked for over the connection, first
// what makes it a model (metadata, tensor table, samples of the digest), then the weights that a
// handler is about to load (WeightSource).
//
//   TESSERA_ASSIGN(auto received, ReceivedModel::receive(channel, hello.model, options));
//   LayersHandler handler(received->model(), {..., .source = received.get()});
//
// What comes is laid at its own offsets into memory files of the size of the originals, so that the
// parser, the readers and the loaders are those of a file on disk. They are sparse: memory is taken
// for what came, and given back while a load packs it, so that a load peaks at the larger of the
// two.
//
// A connection that ends leaves what came by then; the next one for the same model asks for the
// rest only. Nothing of the model's is believed before its digest is the one of HELLO.
//
// Trust: the client is not believed. Sizes are held against the budget before memory is taken; a
// frame carries exactly the bytes that were asked for, with their checksum, or ends the connection;
// the metadata is parsed within the bytes that were announced for it. Errors: exhausted (the
// budget), not_found (it is another model than HELLO says), invalid (broken protocol or model),
// unavailable (the client stalled, sends less than kLeastTransferRate, or went). Threads: one.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "model/identity.h"
#include "model/model.h"
#include "worker/fd.h"
#include "worker/model_messages.h"
#include "worker/transfer_allowance.h"
#include "worker/transport.h"
#include "worker/weight_source.h"

namespace tessera::worker {

struct ReceiveOptions {
  std::uint64_t budget = 0;  // bytes, of all that is kept of the files at a time
  std::chrono::milliseconds patience = kTransferPatience;
};

class ReceivedModel final : public WeightSource {
 public:
  static Result<std::unique_ptr<ReceivedModel>> receive(Channel& channel, const ModelDigest& digest,
                                                        const ReceiveOptions& options);

  const Model& model() const { return *model_; }
  const ModelDigest& digest() const { return digest_; }
  // Memory that it keeps besides what was fetched.
  std::uint64_t opening_bytes() const { return opening_bytes_; }
  // Bytes that came over connections so far.
  std::uint64_t received() const { return received_; }

  // Whom fetch() asks from now on.
  void connect(Channel& channel) { channel_ = &channel; }
  Status fetch(const FileRanges& ranges) override;
  void drop() override;

 private:
  struct Part {
    Fd file;
    ModelPart sizes;
    ByteRanges have;
  };
  struct Asked {
    std::uint64_t sequence = 0;
    std::size_t part = 0;
    ByteRange range;
  };

  ReceivedModel(Channel& channel, const ModelDigest& digest, const ReceiveOptions& options)
      : channel_(&channel), digest_(digest), options_(options) {}
  Result<ModelInfo> ask_info();
  Status make_files(const ModelInfo& info);
  Status open_model();
  Status check_budget(const FileRanges& wanted) const;
  Status pull(const FileRanges& wanted);
  Status ask(std::size_t part, ByteRange range, std::uint64_t left, TransferAllowance& allowance);
  Status take(const Asked& asked, TransferAllowance& allowance);

  Channel* channel_;
  ModelDigest digest_;
  ReceiveOptions options_;
  std::vector<Part> parts_;
  std::optional<Model> model_;
  std::uint64_t opening_bytes_ = 0;
  std::uint64_t received_ = 0;
  std::uint64_t sequence_ = 0;
  Frame frame_;
};

}  // namespace tessera::worker
