#include "worker/model_sender.h"

#include <utility>

namespace tessera::worker {

ModelSender::ModelSender(const gguf::File& file, const SenderOptions& options)
    : file_(file),
      options_(options),
      progress_(options.to + ": sending weights to it"),
      chunk_(kModelChunkBytes) {}

Status ModelSender::answer(Channel& channel, const Frame& frame) {
  if (done_)
    return Error::make(ErrorCode::invalid, "{}: the worker asks for more of the model than all",
                       channel.describe());
  if (frame.header.op == Op::model_read) return answer_read(channel, frame);
  if (!frame.body().empty())
    return Error::make(ErrorCode::invalid, "{}: the worker tells about a model",
                       channel.describe());
  ModelInfo info;
  for (int shard = 0; shard < file_.shard_count(); ++shard)
    info.parts.push_back(
        {.file_bytes = file_.shard_bytes(shard), .header_bytes = file_.header_bytes(shard)});
  return channel.send({.op = Op::model_info, .sequence = frame.header.sequence}, encode(info),
                      after(options_.patience));
}

Status ModelSender::answer_read(Channel& channel, const Frame& frame) {
  TESSERA_ASSIGN(const ModelRead read, decode_model_read(frame.body()));
  if (read.bytes == 0) {
    done_ = true;
    progress_.finish(sent_);
    return {};
  }
  const bool exists = std::cmp_less(read.part, file_.shard_count());
  const std::uint64_t size = exists ? file_.shard_bytes(static_cast<int>(read.part)) : 0;
  if (read.offset > size || read.bytes > size - read.offset ||
      read.bytes > file_.file_bytes() - sent_)
    return Error::make(ErrorCode::invalid, "{}: the worker asks for {} bytes at {} of file {}",
                       channel.describe(), read.bytes, read.offset, read.part);
  progress_.update(sent_, sent_ + read.bytes + read.left);
  const auto bytes = std::span(chunk_).first(read.bytes);
  TESSERA_TRY(file_.read_at(static_cast<int>(read.part), read.offset, bytes));
  TESSERA_TRY(channel.send({.op = Op::model_data, .sequence = frame.header.sequence}, bytes,
                           after(options_.patience)));
  sent_ += read.bytes;
  return {};
}

}  // namespace tessera::worker
