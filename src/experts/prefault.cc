#include "experts/prefault.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <system_error>

#include "device/shard_tensors.h"

namespace tessera {
namespace {

// An expert's matrix as it lies in the file.
std::span<const std::byte> file_bytes(const TensorSlice& slice, std::int64_t expert) {
  const std::int64_t size = (slice.rows - 1) * slice.row_stride + row_bytes(slice.type, slice.cols);
  return {slice.data + expert * slice.matrix_stride, static_cast<std::size_t>(size)};
}

struct Pages {
  void* at;
  std::size_t bytes;
};

Pages pages_of(std::span<const std::byte> range) {
  const auto first = reinterpret_cast<std::uintptr_t>(range.data());
  const auto begin = first & ~(static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE)) - 1);
  return {reinterpret_cast<void*>(begin), first + range.size() - begin};  // NOLINT
}

void read_pages(std::span<const std::byte> range) {
#ifdef MADV_POPULATE_READ
  const Pages pages = pages_of(range);
  if (madvise(pages.at, pages.bytes, MADV_POPULATE_READ) == 0) return;
#endif
  // Before Linux 5.14, or where a page cannot be read: the file's guard sees that.
  const auto step = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  for (std::size_t i = 0; i < range.size(); i += step)
    static_cast<void>(*static_cast<const volatile std::byte*>(&range[i]));
  static_cast<void>(*static_cast<const volatile std::byte*>(&range.back()));
}

Status lock_pages(std::span<const std::byte> range) {
  const Pages pages = pages_of(range);
  if (mlock(pages.at, pages.bytes) == 0) return {};
  const std::error_code code(errno, std::generic_category());
  return Error::make(ErrorCode::exhausted,
                     "the host's experts cannot be locked in memory: {}; raise the limit (ulimit "
                     "-l) or give --expert-prefault on",
                     code.message());
}

}  // namespace

Status prefault_experts(const Model& model, const ShardLayout& layout, ExpertPrefault prefault) {
  if (prefault == ExpertPrefault::off) return {};
  for (const TensorSlice& slice : model.tensors()) {
    if (tensor_use(slice.role) != TensorUse::expert_matrix || slice.layer < layout.first_layer ||
        slice.layer >= layout.end_layer)
      continue;
    const LayerExperts* experts = layout.layer_experts(slice.layer);
    for (std::int64_t e = 0; experts != nullptr && e < slice.matrices; ++e) {
      if (experts->home[static_cast<std::size_t>(e)].is_resident()) continue;
      const std::span<const std::byte> range = file_bytes(slice, e);
      if (prefault == ExpertPrefault::lock)
        TESSERA_TRY(lock_pages(range));
      else
        read_pages(range);
    }
  }
  return model.file().check_intact();
}

}  // namespace tessera
