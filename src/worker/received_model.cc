#include "worker/received_model.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <utility>

#include "plan/plan.h"
#include "worker/model_ranges.h"
#include "worker/socket_io.h"
#include "worker/transfer_progress.h"

namespace tessera::worker {
namespace {

// Reads under way at a time. Rings hold so many answers; a socket is kept full.
constexpr std::size_t kAheadOnRings = 3;
constexpr std::size_t kAheadOnSockets = 16;

Status write_at(int file, std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == ENOSPC || errno == ENOMEM))
      return Error::make(ErrorCode::exhausted, "no memory left for the model's weights");
    if (n < 0) return system_error("keeping the model's weights");
    offset += static_cast<std::uint64_t>(n);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

// Chunks of ranges, one after another.
class Chunks {
 public:
  explicit Chunks(const FileRanges& files) {
    for (std::size_t part = 0; part < files.size(); ++part)
      for (const ByteRange& range : files[part].all()) ranges_.emplace_back(part, range);
  }
  bool done() const { return at_ == ranges_.size(); }
  std::pair<std::size_t, ByteRange> next() {
    auto& [part, range] = ranges_[at_];
    const std::uint64_t end = std::min(range.end, range.begin + kModelChunkBytes);
    const ByteRange chunk{range.begin, end};
    range.begin = end;
    if (range.begin == range.end) ++at_;
    return {part, chunk};
  }

 private:
  std::vector<std::pair<std::size_t, ByteRange>> ranges_;
  std::size_t at_ = 0;
};

}  // namespace

Result<std::unique_ptr<ReceivedModel>> ReceivedModel::receive(Channel& channel,
                                                              const ModelDigest& digest,
                                                              const ReceiveOptions& options) {
  std::unique_ptr<ReceivedModel> made(new ReceivedModel(channel, digest, options));
  TESSERA_ASSIGN(const ModelInfo info, made->ask_info());
  TESSERA_TRY(made->make_files(info));
  TESSERA_TRY(made->open_model());
  return made;
}

Result<ModelInfo> ReceivedModel::ask_info() {
  const Deadline until = after(options_.patience);
  TESSERA_TRY(channel_->send_in_turn({.op = Op::model_info, .sequence = ++sequence_}, {}, until));
  TESSERA_ASSIGN(const bool came, channel_->receive(frame_, until));
  if (!came)
    return Error::make(ErrorCode::unavailable, "{}: the client does not send its model",
                       channel_->describe());
  if (frame_.header.op != Op::model_info || frame_.header.sequence != sequence_)
    return Error::make(ErrorCode::invalid, "{}: {} where MODEL_INFO is due", channel_->describe(),
                       op_name(frame_.header.op));
  return decode_model_info(frame_.body());
}

Status ReceivedModel::make_files(const ModelInfo& info) {
  for (const ModelPart& sizes : info.parts) {
    Fd file(::memfd_create("tessera-model", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!file) return system_error("creating memory for the model's weights");
    if (::ftruncate(file.get(), static_cast<off_t>(sizes.file_bytes)) != 0)
      return system_error("sizing the memory for the model's weights");
    // It stays as long as it is while it is mapped.
    if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
      return system_error("sealing the memory for the model's weights");
    parts_.push_back({.file = std::move(file), .sizes = sizes});
  }
  return {};
}

Status ReceivedModel::open_model() {
  FileRanges headers(parts_.size());
  std::vector<gguf::OwnPart> files;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    headers[i].add({0, parts_[i].sizes.header_bytes});
    files.push_back({.name = parts_.size() == 1
                                 ? std::string("the client's model")
                                 : fmt::format("file {} of the client's model", i + 1),
                     .descriptor = parts_[i].file.get(),
                     .header_bytes = parts_[i].sizes.header_bytes});
  }
  TESSERA_TRY(check_budget(headers));
  TESSERA_TRY(pull(headers));
  TESSERA_ASSIGN(gguf::File file, gguf::File::adopt(files));
  // It stays here for good, so no more of it than there is.
  for (std::size_t i = 0; i < parts_.size(); ++i)
    if (parts_[i].sizes.header_bytes != file.header_bytes(static_cast<int>(i)))
      return Error::make(ErrorCode::invalid, "{}: a header of {} bytes was announced, it has {}",
                         files[i].name, parts_[i].sizes.header_bytes,
                         file.header_bytes(static_cast<int>(i)));
  const FileRanges identity = identity_ranges(file);
  TESSERA_TRY(check_budget(identity));
  TESSERA_TRY(pull(identity));
  if (model_digest(file) != digest_)
    return Error::make(ErrorCode::not_found, "the client sends another model than it says");
  opening_bytes_ = worker::opening_bytes(file);
  TESSERA_ASSIGN(model_, Model::read(std::move(file)));
  return {};
}

// What is here and what is wanted must fit.
Status ReceivedModel::check_budget(const FileRanges& wanted) const {
  FileRanges all(parts_.size());
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    all[i].add(parts_[i].have);
    all[i].add(wanted[i]);
  }
  const std::uint64_t bytes = page_bytes_of(all);
  if (bytes <= options_.budget) return {};
  return Error::make(ErrorCode::exhausted, "the model's parts take {}, the budget is {}",
                     format_bytes(static_cast<std::int64_t>(bytes)),
                     format_bytes(static_cast<std::int64_t>(options_.budget)));
}

Status ReceivedModel::fetch(const FileRanges& ranges) {
  // What a broken transfer left counts, unless it is in the way.
  if (!check_budget(ranges)) drop();
  TESSERA_TRY(check_budget(ranges));
  TESSERA_TRY(pull(ranges));
  return channel_->send_in_turn({.op = Op::model_read, .sequence = ++sequence_},
                                encode(ModelRead{}), after(options_.patience));
}

void ReceivedModel::drop() {
  for (Part& part : parts_) {
    const std::uint64_t keep = part.sizes.header_bytes;
    part.have.clear();
    part.have.add({0, keep});
    if (keep == part.sizes.file_bytes) continue;
    // Holes begin at the next page by themselves: the rest of the last one is zeroed.
    (void)::fallocate(part.file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                      static_cast<off_t>(keep), static_cast<off_t>(part.sizes.file_bytes - keep));
  }
}

// Asks for what of `wanted` is not here, several reads ahead, and keeps what comes, in order.
Status ReceivedModel::pull(const FileRanges& wanted) {
  FileRanges missing(parts_.size());
  for (std::size_t i = 0; i < parts_.size(); ++i) missing[i] = wanted[i].without(parts_[i].have);
  const std::uint64_t total = bytes_of(missing);
  std::uint64_t asked = 0, done = 0;
  TransferProgress progress("receiving weights");
  TransferAllowance allowance(options_.patience);
  Chunks chunks(missing);
  const std::size_t ahead = channel_->reserves_room() ? kAheadOnRings : kAheadOnSockets;
  std::deque<Asked> under_way;
  WireLimits limits = channel_->limits();
  limits.max_model_bytes = kModelChunkBytes;
  channel_->set_limits(limits);
  while (!chunks.done() || !under_way.empty()) {
    // Several at once, so that two ends that share a core do not take turns for each.
    const std::size_t until = under_way.size() <= ahead / 2 ? ahead : 0;
    while (!chunks.done() && under_way.size() < until) {
      const auto [part, range] = chunks.next();
      asked += range.bytes();
      TESSERA_TRY(ask(part, range, total - asked, allowance));
      under_way.push_back({.sequence = sequence_, .part = part, .range = range});
    }
    progress.update(done, total);
    TESSERA_TRY(take(under_way.front(), allowance));
    done += under_way.front().range.bytes();
    under_way.pop_front();
  }
  limits.max_model_bytes = 0;
  channel_->set_limits(limits);
  progress.finish(done);
  return {};
}

Status ReceivedModel::ask(std::size_t part, ByteRange range, std::uint64_t left,
                          TransferAllowance& allowance) {
  const ModelRead read{.part = static_cast<std::uint32_t>(part),
                       .bytes = static_cast<std::uint32_t>(range.bytes()),
                       .offset = range.begin,
                       .left = left};
  return allowance.spend([&](Deadline until) {
    return channel_->send_in_turn({.op = Op::model_read, .sequence = ++sequence_}, encode(read),
                                  until);
  });
}

Status ReceivedModel::take(const Asked& asked, TransferAllowance& allowance) {
  TESSERA_ASSIGN(const bool came,
                 allowance.spend([&](Deadline until) { return channel_->receive(frame_, until); }));
  if (!came)
    return Error::make(ErrorCode::unavailable,
                       "{}: the client stalled while it sent its model, or sends it too slowly",
                       channel_->describe());
  if (frame_.header.op != Op::model_data || frame_.header.sequence != asked.sequence)
    return Error::make(ErrorCode::invalid, "{}: {} where MODEL_DATA is due", channel_->describe(),
                       op_name(frame_.header.op));
  const std::span<const std::byte> bytes = frame_.body();
  if (bytes.size() != asked.range.bytes())
    return Error::make(ErrorCode::invalid, "{}: {} bytes of the model where {} were asked for",
                       channel_->describe(), bytes.size(), asked.range.bytes());
  Part& part = parts_[asked.part];
  TESSERA_TRY(write_at(part.file.get(), asked.range.begin, bytes));
  part.have.add(asked.range);
  received_ += bytes.size();
  allowance.moved(bytes.size());
  return {};
}

}  // namespace tessera::worker
