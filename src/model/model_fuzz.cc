// libFuzzer entry: the input is the start of a GGUF file; the weights behind it are zeros. Any file
// is either refused with one line or gives a model whose every slice lies in the file, and
// tokenizer keys that a tokenizer can be made of or refuses. Seeds are in tests/fuzz/model/.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "gguf/gguf.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace tessera {
namespace {

constexpr std::size_t kFileBytes = std::size_t{4} << 20;

void check_message(const Error& error) {
  CHECK(!error.message.empty() && error.message.find('\n') == std::string::npos,
        "an error is one line");
}

void check_slice(const TensorSlice& slice, std::span<const std::byte> bytes) {
  CHECK(slice.matrices > 0 && slice.rows > 0 && slice.cols > 0, "a slice has elements");
  CHECK(slice.data >= bytes.data() && slice.data <= bytes.data() + bytes.size(),
        "a slice starts in the file");
  const std::int64_t last = (slice.matrices - 1) * slice.matrix_stride +
                            (slice.rows - 1) * slice.row_stride + row_bytes(slice.type, slice.cols);
  CHECK(last <= bytes.data() + bytes.size() - slice.data, "a slice ends in the file");
}

void read_model(std::span<const std::byte> bytes) {
  Result<gguf::File> file = gguf::File::parse(bytes);
  if (!file) return check_message(file.error());
  const Result<Model> model = Model::read(*std::move(file));
  if (!model) return check_message(model.error());
  for (const TensorSlice& slice : model->tensors()) {
    check_slice(slice, bytes);
    CHECK(model->find(slice.role, slice.layer) == &slice, "a slice is found by its role");
  }
}

void read_tokenizer(std::span<const std::byte> bytes) {
  const Result<gguf::File> file = gguf::File::parse(bytes);
  if (!file) return;
  Result<text::TokenizerSpec> spec = read_tokenizer_spec(*file);
  if (!spec) return check_message(spec.error());
  const Result<text::Tokenizer> tokenizer = text::Tokenizer::create(*std::move(spec));
  if (!tokenizer) return check_message(tokenizer.error());
  (void)tokenizer->decode(tokenizer->encode("A word, 12 more.\n"), true);
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static std::vector<std::byte> file(tessera::kFileBytes);
  if (size > file.size()) return 0;
  std::ranges::copy(std::as_bytes(std::span(data, size)), file.begin());
  tessera::read_model(file);
  tessera::read_tokenizer(file);
  std::fill_n(file.begin(), size, std::byte{0});
  return 0;
}
