#include "model/synth.h"

#include <atomic>
#include <cstdio>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "gguf/writer.h"
#include "model/model.h"
#include "model/synth/fill.h"
#include "model/synth/layout.h"

namespace tessera {
namespace {

constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20;
constexpr std::int64_t kBatchBytes = std::int64_t{16} << 20;

struct Chunk {
  const synth::LayoutTensor* tensor;
  std::int64_t first_block;
  std::int64_t n_blocks;
  std::int64_t bytes;
  std::int64_t offset;  // in its batch
};

std::vector<Chunk> make_chunks(const synth::Layout& layout) {
  std::vector<Chunk> chunks;
  for (const synth::LayoutTensor& tensor : layout.tensors) {
    const std::int64_t block_bytes = block_format(tensor.type).bytes;
    const std::int64_t step = kChunkBytes / block_bytes;
    const std::int64_t n_blocks = synth::block_count(tensor);
    for (std::int64_t first = 0; first < n_blocks; first += step) {
      const std::int64_t n = std::min(step, n_blocks - first);
      chunks.push_back({&tensor, first, n, n * block_bytes, 0});
    }
  }
  return chunks;
}

// Consecutive chunks that are made together while the batch before them is written.
struct Batch {
  std::span<const Chunk> chunks;
  AlignedBuffer buffer;
};

// Takes the next batch off `rest`.
std::span<const Chunk> next_batch(std::span<Chunk>& rest) {
  std::int64_t bytes = 0;
  std::size_t n = 0;
  while (n < rest.size() && bytes + rest[n].bytes <= kBatchBytes) {
    rest[n].offset = bytes;
    bytes += rest[n++].bytes;
  }
  const std::span<const Chunk> batch = rest.first(n);
  rest = rest.subspan(n);
  return batch;
}

void fill_batch(Batch& batch, std::uint64_t seed, int threads) {
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < batch.chunks.size(); i = next++) {
      const Chunk& chunk = batch.chunks[i];
      synth::fill_blocks(*chunk.tensor, seed, chunk.first_block, chunk.n_blocks,
                         batch.buffer.data() + chunk.offset);
    }
  };
  std::vector<std::jthread> helpers;
  for (int i = 1; i < threads; ++i) helpers.emplace_back(work);
  work();
}

void add_key(gguf::Writer& writer, const synth::Key& key) {
  const auto add = [&]<typename T>(const T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      writer.add(key.name, std::string_view(value));
    } else if constexpr (std::is_arithmetic_v<T>) {
      writer.add(key.name, value);
    } else {
      writer.add_array(key.name, value);
    }
  };
  std::visit(add, key.value);
}

Status write_batch(gguf::Writer& writer, const Batch& batch) {
  for (const Chunk& chunk : batch.chunks) {
    TESSERA_TRY(
        writer.write({batch.buffer.data() + chunk.offset, static_cast<std::size_t>(chunk.bytes)}));
  }
  return {};
}

Status write_tensors(gguf::Writer& writer, const synth::Layout& layout, const SynthOptions& options,
                     const SynthProgress& progress) {
  const int threads = options.threads > 0
                          ? options.threads
                          : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  Batch made, written;
  TESSERA_ASSIGN(made.buffer, AlignedBuffer::allocate(kBatchBytes));
  TESSERA_ASSIGN(written.buffer, AlignedBuffer::allocate(kBatchBytes));
  std::vector<Chunk> chunks = make_chunks(layout);
  std::span<Chunk> rest = chunks;
  made.chunks = next_batch(rest);
  fill_batch(made, options.seed, threads);
  std::int64_t done = 0;
  while (!made.chunks.empty()) {
    std::swap(made, written);
    made.chunks = next_batch(rest);
    auto filling =
        std::async(std::launch::async, fill_batch, std::ref(made), options.seed, threads);
    const Status status = write_batch(writer, written);
    filling.wait();
    if (!status) return status;
    for (const Chunk& chunk : written.chunks) done += chunk.bytes;
    if (progress) progress(done, layout.bytes);
  }
  return {};
}

Status check_opens(const std::string& path) {
  Result<Model> model = Model::open(path);
  if (model) return {};
  std::remove(path.c_str());
  return std::move(model).error().in("the overrides do not make a model");
}

}  // namespace

std::vector<std::string> synth_families() {
  std::vector<std::string> names;
  for (const synth::FamilyPreset& family : synth::family_presets()) {
    names.emplace_back(family.family);
  }
  return names;
}

Result<std::vector<SynthTensor>> synth_tensors(const SynthOptions& options) {
  TESSERA_ASSIGN(synth::Layout layout, synth::make_layout(options, /*vocabulary=*/false));
  return std::vector<SynthTensor>(layout.tensors.begin(), layout.tensors.end());
}

Status write_synthetic_model(const SynthOptions& options, const std::string& path,
                             const SynthProgress& progress) {
  TESSERA_ASSIGN(synth::Layout layout, synth::make_layout(options, /*vocabulary=*/true));
  TESSERA_ASSIGN(gguf::Writer writer, gguf::Writer::create(path));
  for (const synth::Key& key : layout.keys) add_key(writer, key);
  for (const synth::LayoutTensor& tensor : layout.tensors) {
    writer.add_tensor(tensor.name, tensor.type, tensor.ne);
  }
  if (options.hollow) {
    for (std::size_t i = 0; i < layout.tensors.size(); ++i) TESSERA_TRY(writer.skip_tensor());
  } else {
    TESSERA_TRY(write_tensors(writer, layout, options, progress));
  }
  TESSERA_TRY(writer.finish());
  return check_opens(path);
}

}  // namespace tessera
