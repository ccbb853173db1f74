// Mapping: a whole regular file, mapped private and read-only, guarded against shrinking.
//
//   TESSERA_ASSIGN(Mapping mapping, Mapping::open(path));
//   parse(mapping.bytes());
//   TESSERA_TRY(mapping.check_intact());
//
// Pages come in when they are touched. Const members are thread safe. Errors name the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "gguf/fault_guard.h"

namespace tessera::gguf {

class Mapping {
 public:
  static Result<Mapping> open(const std::string& path);
  // A file that this process made: release() frees its storage too. Takes a copy of the descriptor.
  static Result<Mapping> adopt(const std::string& name, int descriptor);

  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  std::span<const std::byte> bytes() const { return bytes_; }

  // Asks for the pages that the range touches.
  void will_need(std::span<const std::byte> range) const;
  // Drops the resident pages that lie in the range or were mapped along with them.
  void drop_pages(std::span<const std::byte> range) const;
  // The same, and the storage of those wholly in it where that is this process's.
  void release(std::span<const std::byte> range) const;
  // Copies bytes of the file, without a page of the mapping.
  Status read_at(std::uint64_t offset, std::span<std::byte> to) const;
  // An io error if the file is shorter than when it was mapped, or a page could not be read.
  Status check_intact() const;

 private:
  Mapping(std::string path, int fd, std::span<const std::byte> bytes, FaultGuard guard);
  static Result<Mapping> map(const std::string& path, int fd);  // takes the descriptor

  std::string path_;
  int fd_ = -1;
  std::span<const std::byte> bytes_;
  FaultGuard guard_;
  bool own_ = false;  // nobody else has the file
};

}  // namespace tessera::gguf
