// libFuzzer entry: any bytes are either refused with a message or give a File whose every value and
// tensor can be read. Seeds are in tests/fuzz/gguf/.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "gguf/gguf.h"

namespace tessera::gguf {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

template <typename T>
void settle(const Result<T>& result) {
  require(result.ok() || !result.error().message.empty());
}

void read_value(const Value& value) {
  require(!value.describe().empty());
  settle(value.as_i64());
  settle(value.as_u64());
  settle(value.as_f32());
  settle(value.as_bool());
  settle(value.as_string());
  settle(value.as_ints());
  settle(value.as_floats());
  settle(value.as_bools());
  settle(value.as_strings());
}

// The last row, which is where a wrong size shows.
void read_tensor(const TensorInfo& tensor, std::span<const std::byte> bytes) {
  require(tensor.data >= bytes.data() && tensor.data <= bytes.data() + bytes.size());
  const auto offset = static_cast<std::size_t>(tensor.data - bytes.data());
  require(tensor.bytes <= bytes.size() - offset);
  if (block_format(static_cast<std::uint32_t>(tensor.type)) == nullptr) return;
  const auto row = row_bytes(tensor.type, tensor.ne[0]);
  require(static_cast<std::uint64_t>(row * tensor.rows()) == tensor.bytes);
  std::vector<float> values(static_cast<std::size_t>(tensor.ne[0]));
  dequantize_row(tensor.type, tensor.data + row * (tensor.rows() - 1), tensor.ne[0], values.data());
}

void read_everything(std::span<const std::byte> bytes, OpenOptions options) {
  const Result<File> file = File::parse(bytes, options);
  settle(file);
  if (!file) return;
  for (const Metadata::Entry& entry : file->metadata().entries()) {
    require(file->metadata().find(entry.key) == &entry.value);
    settle(file->metadata().get_u32(entry.key));
    settle(file->metadata().get_per_layer_int(entry.key, 4));
    read_value(entry.value);
  }
  for (const TensorInfo& tensor : file->tensors()) {
    require(file->find_tensor(tensor.name) == &tensor);
    read_tensor(tensor, bytes);
  }
}

}  // namespace
}  // namespace tessera::gguf

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  tessera::gguf::read_everything(bytes, {});
  tessera::gguf::read_everything(bytes, {.allow_unknown_types = true});
  return 0;
}
