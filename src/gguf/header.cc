#include "gguf/header.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/checked.h"
#include "gguf/cursor.h"

namespace tessera::gguf {
namespace {

constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr std::uint64_t kMostRecords = std::uint64_t{1} << 20;
constexpr std::uint64_t kMostElements = std::uint64_t{1} << 30;
constexpr std::uint64_t kSmallestEntry = 8 + 4 + 1;           // empty key, type, one byte
constexpr std::uint64_t kSmallestTensor = 8 + 4 + 8 + 4 + 8;  // empty name, one dimension
// Eight keeps every element of a plain tensor aligned for its own type.
constexpr std::int64_t kSmallestAlignment = 8, kLargestAlignment = std::int64_t{64} << 10;

Error ends_in(const char* what, const Cursor& cursor) {
  return Error::make(ErrorCode::invalid, "the file ends in {} (byte {})", what, cursor.position());
}

struct Counts {
  std::uint32_t version = 0;
  std::uint64_t tensors = 0, entries = 0;
};

Result<Counts> read_counts(Cursor& cursor) {
  const auto magic = cursor.read<std::uint32_t>();
  if (!magic) return ends_in("the magic number", cursor);
  if (*magic != kMagic) return Error::make(ErrorCode::invalid, "not a GGUF file (no GGUF magic)");
  const auto version = cursor.read<std::uint32_t>();
  if (!version) return ends_in("the version", cursor);
  if (*version != 0 && (*version & 0xffff) == 0) {
    return Error::make(ErrorCode::unsupported,
                       "the file is big-endian; only little-endian GGUF is supported");
  }
  if (*version != 2 && *version != 3) {
    return Error::make(ErrorCode::unsupported, "GGUF version {}; versions 2 and 3 are supported",
                       *version);
  }
  const auto tensors = cursor.read<std::uint64_t>(), entries = cursor.read<std::uint64_t>();
  if (!tensors || !entries) return ends_in("the counts", cursor);
  const std::uint64_t left = cursor.remaining();
  if (*entries > std::min(left / kSmallestEntry, kMostRecords)) {
    return Error::make(ErrorCode::invalid, "{} metadata entries cannot be in a file of {} bytes",
                       *entries, left + cursor.position());
  }
  if (*tensors > std::min(left / kSmallestTensor, kMostRecords)) {
    return Error::make(ErrorCode::invalid, "{} tensors cannot be in a file of {} bytes", *tensors,
                       left + cursor.position());
  }
  return Counts{*version, *tensors, *entries};
}

bool is_value_type(std::uint32_t id) {
  return id <= static_cast<std::uint32_t>(ValueType::f64);
}

// Moves past `count` elements of `type` and returns their bytes.
Result<std::span<const std::byte>> take_elements(Cursor& cursor, ValueType type,
                                                 std::uint64_t count) {
  Cursor from = cursor;
  if (type == ValueType::string) {
    for (std::uint64_t i = 0; i < count; ++i) {
      if (!cursor.read_string(kLongestString)) {
        return Error::make(ErrorCode::invalid,
                           "string {} of {} does not fit in the file or has more than {} bytes", i,
                           count, kLongestString);
      }
    }
    return *from.take(cursor.position() - from.position());
  }
  // count is at most 2^30 here, so the product cannot wrap.
  const auto bytes = cursor.take(count * value_type_bytes(type));
  if (!bytes) return ends_in("a value", cursor);
  if (type == ValueType::boolean) {
    const auto bad =
        std::find_if(bytes->begin(), bytes->end(), [](std::byte b) { return b > std::byte{1}; });
    if (bad != bytes->end()) {
      return Error::make(ErrorCode::invalid, "a bool holds {}", static_cast<int>(*bad));
    }
  }
  return *bytes;
}

Result<Value> read_value(Cursor& cursor) {
  const auto id = cursor.read<std::uint32_t>();
  if (!id) return ends_in("a value type", cursor);
  if (!is_value_type(*id)) return Error::make(ErrorCode::invalid, "value type {} is unknown", *id);
  const auto type = static_cast<ValueType>(*id);
  if (type != ValueType::array) {
    TESSERA_ASSIGN(const auto bytes, take_elements(cursor, type, 1));
    return Value(type, false, 1, bytes);
  }
  const auto element_id = cursor.read<std::uint32_t>();
  const auto count = cursor.read<std::uint64_t>();
  if (!element_id || !count) return ends_in("an array header", cursor);
  const auto element = static_cast<ValueType>(*element_id);
  if (!is_value_type(*element_id) || element == ValueType::array) {
    return Error::make(ErrorCode::invalid, "array element type {} is not allowed", *element_id);
  }
  const std::uint64_t smallest = element == ValueType::string ? 8 : value_type_bytes(element);
  if (*count > std::min<std::uint64_t>(cursor.remaining() / smallest, kMostElements)) {
    return Error::make(ErrorCode::invalid, "an array of {} {} cannot be in the {} bytes left",
                       *count, value_type_name(element), cursor.remaining());
  }
  TESSERA_ASSIGN(const auto bytes, take_elements(cursor, element, *count));
  return Value(element, true, *count, bytes);
}

Result<Metadata> read_metadata(Cursor& cursor, std::uint64_t count) {
  Metadata metadata;
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto key = cursor.read_string(kLongestString);
    if (!key) {
      return Error::make(ErrorCode::invalid, "metadata key {} of {} does not fit in the file", i,
                         count);
    }
    Result<Value> value = read_value(cursor);
    if (!value) return std::move(value).error().in(fmt::format("metadata key {}", in_quotes(*key)));
    TESSERA_TRY(metadata.add(*key, *value));
  }
  return metadata;
}

Result<std::uint64_t> read_alignment(const Metadata& metadata) {
  TESSERA_ASSIGN(const std::int64_t alignment,
                 metadata.get_i64_or("general.alignment", kDefaultAlignment));
  if (alignment < kSmallestAlignment || alignment > kLargestAlignment ||
      !std::has_single_bit(static_cast<std::uint64_t>(alignment))) {
    return Error::make(ErrorCode::invalid,
                       "general.alignment is {}; it must be a power of two from {} to {}",
                       alignment, kSmallestAlignment, kLargestAlignment);
  }
  return static_cast<std::uint64_t>(alignment);
}

// A tensor record as the file has it; offset is relative to the data section.
struct Record {
  TensorInfo info;
  std::uint64_t offset = 0;
};

Result<std::array<std::int64_t, 4>> read_shape(Cursor& cursor) {
  const auto dims = cursor.read<std::uint32_t>();
  if (!dims) return ends_in("a tensor record", cursor);
  if (*dims < 1 || *dims > 4) {
    return Error::make(ErrorCode::invalid, "{} dimensions; 1 to 4 are allowed", *dims);
  }
  std::array<std::int64_t, 4> ne = {1, 1, 1, 1};
  std::int64_t elements = 1;
  for (std::uint32_t i = 0; i < *dims; ++i) {
    const auto extent = cursor.read<std::int64_t>();
    if (!extent) return ends_in("a tensor record", cursor);
    if (*extent < 1) {
      return Error::make(ErrorCode::invalid, "dimension {} is {}; it must be positive", i, *extent);
    }
    const auto product = checked_mul(elements, *extent);
    if (!product) return Error::make(ErrorCode::invalid, "the number of elements overflows");
    ne[i] = *extent;
    elements = *product;
  }
  return ne;
}

// Bytes of the whole tensor; 0 if the size of the type is not known (and that is allowed).
Result<std::uint64_t> tensor_bytes(std::uint32_t type_id, const std::array<std::int64_t, 4>& ne,
                                   OpenOptions options) {
  const BlockFormat* format = known_block_format(type_id);
  if (block_format(type_id) == nullptr && !options.allow_unknown_types) {
    return Error::make(ErrorCode::unsupported, "type {} (id {}) is not supported",
                       block_type_name(type_id), type_id);
  }
  if (format == nullptr) return std::uint64_t{0};
  if (ne[0] % format->elems != 0) {
    return Error::make(ErrorCode::invalid, "rows of {} elements are not whole {} blocks of {}",
                       ne[0], format->name, format->elems);
  }
  // Neither factor is zero, and the number of elements fits; only the bytes may not.
  const auto blocks = static_cast<std::uint64_t>(ne[0] / format->elems * ne[1] * ne[2] * ne[3]);
  const auto bytes = checked_mul(blocks, static_cast<std::uint64_t>(format->bytes));
  if (!bytes) return Error::make(ErrorCode::invalid, "the number of bytes overflows");
  return *bytes;
}

Status read_layout(Cursor& cursor, OpenOptions options, Record& record) {
  TESSERA_ASSIGN(record.info.ne, read_shape(cursor));
  const auto type_id = cursor.read<std::uint32_t>();
  const auto offset = cursor.read<std::uint64_t>();
  if (!type_id || !offset) return ends_in("a tensor record", cursor);
  TESSERA_ASSIGN(record.info.bytes, tensor_bytes(*type_id, record.info.ne, options));
  record.info.type = static_cast<BlockType>(*type_id);
  record.offset = *offset;
  return {};
}

Result<std::vector<Record>> read_records(Cursor& cursor, std::uint64_t count, OpenOptions options) {
  std::vector<Record> records;
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto name = cursor.read_string(kLongestTensorName);
    if (!name || name->empty()) {
      return Error::make(ErrorCode::invalid,
                         "the name of tensor {} of {} is empty, has more than {} bytes or does not "
                         "fit in the file",
                         i, count, kLongestTensorName);
    }
    Record record;
    record.info.name = *name;
    if (Status status = read_layout(cursor, options, record); !status) {
      return std::move(status).error().in(fmt::format("tensor {}", in_quotes(*name)));
    }
    records.push_back(std::move(record));
  }
  return records;
}

// Gives every tensor its address after checking that it lies in `data`.
Status place(std::span<const std::byte> data, std::uint64_t alignment,
             std::vector<Record>& records) {
  for (Record& record : records) {
    const std::string& name = record.info.name;
    if (record.offset % alignment != 0) {
      return Error::make(ErrorCode::invalid, "tensor {} is at offset {}, not a multiple of {}",
                         in_quotes(name), record.offset, alignment);
    }
    if (record.offset > data.size() || record.info.bytes > data.size() - record.offset) {
      return Error::make(ErrorCode::invalid,
                         "tensor {} ({} bytes at offset {}) reaches past the end of the file ({} "
                         "bytes of data); the file is cut short or damaged",
                         in_quotes(name), record.info.bytes, record.offset, data.size());
    }
    record.info.data = data.data() + record.offset;
  }
  return {};
}

Status check_overlap(const std::vector<Record>& records) {
  std::vector<const Record*> sorted;
  for (const Record& record : records) {
    if (record.info.bytes > 0) sorted.push_back(&record);
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const Record* a, const Record* b) { return a->offset < b->offset; });
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    // place() has shown that the sum stays within the file.
    if (sorted[i - 1]->offset + sorted[i - 1]->info.bytes > sorted[i]->offset) {
      return Error::make(ErrorCode::invalid, "tensors {} and {} overlap",
                         in_quotes(sorted[i - 1]->info.name), in_quotes(sorted[i]->info.name));
    }
  }
  return {};
}

}  // namespace

Result<Header> parse_header(std::span<const std::byte> bytes, OpenOptions options) {
  const std::uint64_t limit = options.header_bytes == 0 ? bytes.size() : options.header_bytes;
  Cursor cursor(bytes.first(std::min<std::uint64_t>(limit, bytes.size())));
  TESSERA_ASSIGN(const Counts counts, read_counts(cursor));
  Header header;
  header.version = counts.version;
  TESSERA_ASSIGN(header.metadata, read_metadata(cursor, counts.entries));
  TESSERA_ASSIGN(const std::uint64_t alignment, read_alignment(header.metadata));
  TESSERA_ASSIGN(std::vector<Record> records, read_records(cursor, counts.tensors, options));

  // A file without tensors, such as a vocabulary, often ends here without the padding.
  if (records.empty()) return header;
  const std::uint64_t gap = (alignment - cursor.position() % alignment) % alignment;
  if (!cursor.take(gap)) return ends_in("the padding before the tensor data", cursor);
  TESSERA_TRY(place(bytes.subspan(cursor.position()), alignment, records));
  TESSERA_TRY(check_overlap(records));
  for (Record& record : records) header.tensors.push_back(std::move(record.info));
  return header;
}

}  // namespace tessera::gguf
