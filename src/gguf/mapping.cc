#include "gguf/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/checked.h"
#include "gguf/system_error.h"

namespace tessera::gguf {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  int give() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

std::uintptr_t page_size() {
  return static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
}

// A page that is touched may bring its neighbours: the system maps what it keeps in one piece,
// which lies in one such window of the file.
constexpr std::uintptr_t kFaultWindow = std::uintptr_t{2} << 20;

void advise(std::uintptr_t begin, std::uintptr_t end, int advice) {
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, advice);  // NOLINT
}

}  // namespace

Result<Mapping> Mapping::open(const std::string& path) {
  // O_NONBLOCK so that a pipe is refused below instead of being waited for here.
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return system_error(path, "open the file");
  return map(path, fd.give());
}

Result<Mapping> Mapping::adopt(const std::string& name, int descriptor) {
  Descriptor fd(fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (fd.get() < 0) return system_error(name, "copy the descriptor");
  TESSERA_ASSIGN(Mapping mapping, map(name, fd.give()));
  mapping.own_ = true;
  return mapping;
}

Result<Mapping> Mapping::map(const std::string& path, int descriptor) {
  Descriptor fd(descriptor);
  struct stat info = {};
  if (fstat(fd.get(), &info) != 0) return system_error(path, "read the file's size");
  if (!S_ISREG(info.st_mode))
    return Error::make(ErrorCode::invalid, "{}: not a regular file", path);
  if (info.st_size == 0) return Error::make(ErrorCode::invalid, "{}: the file is empty", path);
  const auto size = static_cast<std::size_t>(info.st_size);
  void* at = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (at == MAP_FAILED) return system_error(path, "map the file");
  Result<FaultGuard> guard = FaultGuard::create(at, size);
  if (!guard) {
    munmap(at, size);
    return std::move(guard).error().in(path);
  }
  return Mapping(path, fd.give(), {static_cast<const std::byte*>(at), size}, *std::move(guard));
}

Mapping::Mapping(std::string path, int fd, std::span<const std::byte> bytes, FaultGuard guard)
    : path_(std::move(path)), fd_(fd), bytes_(bytes), guard_(std::move(guard)) {}

Mapping::Mapping(Mapping&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      bytes_(std::exchange(other.bytes_, {})),
      guard_(std::move(other.guard_)),
      own_(other.own_) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(bytes_, other.bytes_);
  std::swap(guard_, other.guard_);
  std::swap(own_, other.own_);
  return *this;
}

Mapping::~Mapping() {
  if (fd_ < 0) return;
  {
    // The guard goes before the range that it speaks of.
    const FaultGuard last = std::move(guard_);
  }
  munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  close(fd_);
}

void Mapping::will_need(std::span<const std::byte> range) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(range.data());
  advise(begin & ~(page_size() - 1), begin + range.size(), MADV_WILLNEED);
}

void Mapping::release(std::span<const std::byte> range) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(range.data());
  const auto base = reinterpret_cast<std::uintptr_t>(bytes_.data());
  const std::uintptr_t mask = page_size() - 1;
  const std::uintptr_t first = (begin + mask) & ~mask, end = (begin + range.size()) & ~mask;
  if (own_ && first < end) {
    // Where the file system has no holes the storage stays until the file goes.
    (void)fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(first - base), static_cast<off_t>(end - first));
  }
  drop_pages(range);
}

void Mapping::drop_pages(std::span<const std::byte> range) const {
  const auto base = reinterpret_cast<std::uintptr_t>(bytes_.data());
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(range.data()) - base;
  const std::uintptr_t windows = begin / kFaultWindow * kFaultWindow;
  const std::uintptr_t windows_end = round_up<std::uintptr_t>(begin + range.size(), kFaultWindow);
  advise(base + windows, base + std::min<std::uintptr_t>(windows_end, bytes_.size()),
         MADV_DONTNEED);
}

Status Mapping::read_at(std::uint64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t n = pread(fd_, to.data(), to.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error(path_, "read the file");
    if (n == 0)
      return Error::make(ErrorCode::io, "{}: the file ends before byte {}; it shrank", path_,
                         offset + to.size());
    offset += static_cast<std::uint64_t>(n);
    to = to.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

Status Mapping::check_intact() const {
  struct stat info = {};
  if (fstat(fd_, &info) != 0) return system_error(path_, "read the file's size");
  if (static_cast<std::uint64_t>(info.st_size) < bytes_.size()) {
    return Error::make(ErrorCode::io,
                       "{}: the file shrank while it was being read; it had {} bytes and has {}; "
                       "restore it and load it again",
                       path_, bytes_.size(), info.st_size);
  }
  if (guard_.faulted()) {
    return Error::make(ErrorCode::io,
                       "{}: a part of the file could not be read; check the disk, or whether the "
                       "file was rewritten while it was being read",
                       path_);
  }
  return {};
}

}  // namespace tessera::gguf
