#include "device/cpu/file_matrix.h"

#include "base/checked.h"

namespace tessera::cpu {

PackRoomSize pack_room_size(const WeightLayout& layout) {
  PackRoomSize size;
  for (const WeightEntry& entry : layout.entries) {
    if (!entry.in_file) continue;
    size.bytes =
        std::max({size.bytes, kPackBytes, packed_group_bytes(entry.type, entry.slice->cols)});
    if (entry.type != entry.slice->type)
      size.floats = std::max(size.floats, kGroupRows * entry.slice->cols);
  }
  size.bytes = round_up<std::int64_t>(size.bytes, 64);
  return size;
}

}  // namespace tessera::cpu
