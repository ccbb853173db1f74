// File: a GGUF model, read-only, memory-mapped and fully validated.
//
// open() maps the file (versions 2 and 3, little endian) and checks every count, length, type,
// shape and offset before anything is returned, so that a TensorInfo's data and bytes can be
// trusted as addresses. What the numbers mean is the model room's business. For a model split into
// "-00001-of-0000N.gguf" files any one of them opens all; metadata is that of the first.
//
// A File owns its mappings; tensor data, values and string views point into them and die with it.
// Const members may be called from any number of threads. Nothing is read ahead: pages come in when
// they are touched. A file that shrinks under its mapping reads as zeros instead of killing the
// process, and check_intact() tells; a loader calls it after its last read.
//
//   TESSERA_ASSIGN(gguf::File file, gguf::File::open("model.gguf"));
//   TESSERA_ASSIGN(auto arch, file.metadata().get_string("general.architecture"));
//   if (const gguf::TensorInfo* t = file.find_tensor("token_embd.weight")) use(t->data, t->bytes);
//   TESSERA_TRY(file.check_intact());
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "gguf/metadata.h"
#include "quant/block_format.h"

namespace tessera::gguf {

class Mapping;

struct TensorInfo {
  std::string name;
  // With OpenOptions::allow_unknown_types this may be an id that BlockType does not name.
  BlockType type = BlockType::F32;
  std::array<std::int64_t, 4> ne = {1, 1, 1, 1};  // ne[0] is contiguous; unused ones are 1
  const std::byte* data = nullptr;                // aligned to the file's general.alignment
  std::uint64_t bytes = 0;                        // 0 when the size of the type is not known
  int shard = 0;                                  // which file of a split model

  std::int64_t rows() const { return ne[1] * ne[2] * ne[3]; }
  std::int64_t elements() const { return ne[0] * rows(); }
};

struct OpenOptions {
  // Accept tensors of types that this build cannot compute with; for looking, not for loading.
  bool allow_unknown_types = false;
  // Metadata and tensor table end within so many bytes, or the file is refused without a look at
  // what lies behind them; 0: anywhere. For a file of which only that much is there yet.
  std::uint64_t header_bytes = 0;
};

// A file that this process made and filled, held by a descriptor that the File takes a copy of.
struct OwnPart {
  std::string name;  // for messages
  int descriptor = -1;
  std::uint64_t header_bytes = 0;  // OpenOptions::header_bytes
};

class File {
 public:
  static Result<File> open(const std::string& path, OpenOptions options = {});
  // The same over bytes in memory, which must outlive the File. One file only; a shard of a split
  // model is refused.
  static Result<File> parse(std::span<const std::byte> bytes, OpenOptions options = {});
  // The same over files of this process, all shards in their order; what they are called does not
  // matter. release() frees their storage, and what was there then reads as zeros.
  static Result<File> adopt(std::span<const OwnPart> parts, OpenOptions options = {});

  File(File&&) noexcept;
  File& operator=(File&&) noexcept;
  ~File();

  const Metadata& metadata() const { return metadata_; }
  std::span<const TensorInfo> tensors() const { return tensors_; }
  const TensorInfo* find_tensor(std::string_view name) const;

  const std::string& path() const { return path_; }  // as given to open
  int shard_count() const { return static_cast<int>(shards_.size()); }
  const std::string& shard_path(int shard) const;
  std::uint64_t file_bytes() const;  // of all shards
  std::uint64_t shard_bytes(int shard) const;
  std::uint64_t header_bytes(int shard) const;              // up to its first tensor
  std::uint64_t offset_of(const TensorInfo& tensor) const;  // in its shard
  std::uint32_t version() const { return version_; }

  // Hints to the kernel; they never fail. Offsets and sizes are bytes within the tensor.
  void will_need(const TensorInfo& tensor) const;
  // Gives back the resident pages of the range, and their neighbours; they can be read again.
  void release(const TensorInfo& tensor, std::uint64_t offset, std::uint64_t bytes) const;
  // The same, but the storage of adopted files stays.
  void drop_pages(const TensorInfo& tensor, std::uint64_t offset, std::uint64_t bytes) const;

  // An io error naming the file if it has shrunk or a page of it could not be read.
  Status check_intact() const;

  // Copies bytes of a shard without mapping them in: an io error where the file does not have them.
  Status read_at(int shard, std::uint64_t offset, std::span<std::byte> to) const;

 private:
  struct Shard {
    std::string path;
    std::unique_ptr<Mapping> mapping;  // null for bytes in memory
    std::span<const std::byte> bytes;
  };

  struct Part;

  File();
  static Result<Part> open_part(const std::string& path, OpenOptions options);
  static Result<Part> read_part(std::string path, Mapping mapping, OpenOptions options);
  Status adopt_all(Part first, OpenOptions options);
  const Shard& shard_at(int shard) const;
  void adopt(Part part);
  Status check_tensor_count(std::int64_t stated) const;
  Status index_tensors();

  std::string path_;
  std::uint32_t version_ = 0;
  Metadata metadata_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string_view, std::size_t> tensor_index_;  // views into tensors_' names
  std::vector<Shard> shards_;
};

}  // namespace tessera::gguf
