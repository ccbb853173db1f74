#include "experts/prefault.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <system_error>

#include "base/checked.h"
#include "device/shard_tensors.h"

namespace tessera {
namespace {

// An expert's matrix as it lies in the file.
std::span<const std::byte> file_bytes(const TensorSlice& slice, std::int64_t expert) {
  const std::int64_t size = (slice.rows - 1) * slice.row_stride + row_bytes(slice.type, slice.cols);
  return {slice.data + expert * slice.matrix_stride, static_cast<std::size_t>(size)};
}

std::uintptr_t page_bytes() {
  return static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
}

struct Pages {
  void* at;
  std::size_t bytes;
};

Pages pages_of(std::span<const std::byte> range) {
  const auto first = reinterpret_cast<std::uintptr_t>(range.data());
  const auto begin = first & ~(page_bytes() - 1);
  return {reinterpret_cast<void*>(begin), first + range.size() - begin};  // NOLINT
}

void read_pages(std::span<const std::byte> range) {
#ifdef MADV_POPULATE_READ
  const Pages pages = pages_of(range);
  if (madvise(pages.at, pages.bytes, MADV_POPULATE_READ) == 0) return;
#endif
  // Before Linux 5.14, or where a page cannot be read: the file's guard sees that.
  const std::size_t step = page_bytes();
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

// The matrices of all experts that the shard's device does not hold.
Status for_each_away(const Model& model, const ShardLayout& layout, const auto& take) {
  for (const TensorSlice& slice : model.tensors()) {
    if (tensor_use(slice.role) != TensorUse::expert_matrix || slice.layer < layout.first_layer ||
        slice.layer >= layout.end_layer)
      continue;
    const LayerExperts* experts = layout.layer_experts(slice.layer);
    for (std::int64_t e = 0; experts != nullptr && e < slice.matrices; ++e)
      if (!experts->home[static_cast<std::size_t>(e)].is_resident())
        TESSERA_TRY(take(file_bytes(slice, e)));
  }
  return {};
}

}  // namespace

std::int64_t locked_bytes(const Model& model, const ShardLayout& layout) {
  std::int64_t bytes = 0;
  std::uintptr_t last_begin = 0, last_end = 0;  // of what was counted last
  (void)for_each_away(model, layout, [&](std::span<const std::byte> range) -> Status {
    const Pages pages = pages_of(range);
    const auto begin = reinterpret_cast<std::uintptr_t>(pages.at);
    const std::uintptr_t end = round_up<std::uintptr_t>(begin + pages.bytes, page_bytes());
    const std::uintptr_t from = begin >= last_begin ? std::max(begin, last_end) : begin;
    if (end > from) bytes = saturated_add(bytes, static_cast<std::int64_t>(end - from));
    last_begin = begin;
    last_end = end;
    return {};
  });
  return bytes;
}

Status prefault_experts(const Model& model, const ShardLayout& layout, ExpertPrefault prefault) {
  if (prefault == ExpertPrefault::off) return {};
  TESSERA_TRY(for_each_away(model, layout, [&](std::span<const std::byte> range) -> Status {
    if (prefault == ExpertPrefault::lock) return lock_pages(range);
    read_pages(range);
    return {};
  }));
  return model.file().check_intact();
}

void release_expert(const Model& model, const ExpertOfLayer& which) {
  for (const TensorSlice& slice : model.tensors()) {
    if (tensor_use(slice.role) != TensorUse::expert_matrix || slice.layer != which.layer) continue;
    const std::span<const std::byte> bytes = file_bytes(slice, which.expert);
    model.file().drop_pages(
        *slice.tensor, static_cast<std::uint64_t>(bytes.data() - slice.tensor->data), bytes.size());
  }
}

}  // namespace tessera
