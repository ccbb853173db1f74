#include "model/identity.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string_view>

#include "base/check.h"

namespace tessera {
namespace {

constexpr std::size_t kSampledTensors = 128;
constexpr std::size_t kSampleBytes = 256;

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    CHECK(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  }
  void bytes(std::span<const std::byte> data) {
    CHECK(EVP_DigestUpdate(context_.get(), data.data(), data.size()) == 1);
  }
  void number(std::uint64_t value) {
    std::array<std::byte, 8> raw;
    for (std::size_t i = 0; i < raw.size(); ++i) raw[i] = static_cast<std::byte>(value >> (8 * i));
    bytes(raw);
  }
  // With its length, so that neighbours cannot run into each other.
  void text(std::string_view text) {
    number(text.size());
    bytes(std::as_bytes(std::span(text)));
  }
  ModelDigest finish() {
    ModelDigest digest;
    unsigned length = 0;
    CHECK(EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(digest.data()),
                             &length) == 1 &&
          length == digest.size());
    return digest;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

void add_metadata(Sha256& sha, const gguf::Metadata& metadata) {
  for (const gguf::Metadata::Entry& entry : metadata.entries()) {
    // How a file is split is not what it holds.
    if (entry.key.starts_with("split.")) continue;
    sha.text(entry.key);
    sha.number(static_cast<std::uint64_t>(entry.value.type()));
    sha.number(static_cast<std::uint64_t>(entry.value.element_type()));
    sha.number(entry.value.size());
    sha.number(entry.value.bytes().size());
    sha.bytes(entry.value.bytes());
  }
}

void add_tensors(Sha256& sha, std::span<const gguf::TensorInfo> tensors) {
  sha.number(tensors.size());
  for (const gguf::TensorInfo& tensor : tensors) {
    sha.text(tensor.name);
    sha.number(static_cast<std::uint64_t>(tensor.type));
    for (const std::int64_t extent : tensor.ne) sha.number(static_cast<std::uint64_t>(extent));
    sha.number(tensor.bytes);
  }
}

}  // namespace

// From the middle of tensors that lie evenly over the list.
std::vector<DigestSample> digest_samples(const gguf::File& file) {
  const std::span<const gguf::TensorInfo> tensors = file.tensors();
  std::vector<DigestSample> samples;
  const std::size_t count = std::min(tensors.size(), kSampledTensors);
  for (std::size_t i = 0; i < count; ++i) {
    const gguf::TensorInfo& tensor = tensors[i * tensors.size() / count];
    const auto size = std::min<std::uint64_t>(tensor.bytes, kSampleBytes);
    const std::uint64_t begin = (tensor.bytes - size) / 2;
    samples.push_back({&tensor, begin, begin + size});
  }
  return samples;
}

ModelDigest model_digest(const gguf::File& file) {
  Sha256 sha;
  add_metadata(sha, file.metadata());
  add_tensors(sha, file.tensors());
  for (const DigestSample& sample : digest_samples(file)) {
    sha.bytes(std::span(sample.tensor->data, sample.end).subspan(sample.begin));
    file.release(*sample.tensor, sample.begin, sample.end - sample.begin);
  }
  return sha.finish();
}

std::string digest_text(const ModelDigest& digest) {
  std::string text;
  for (const std::byte b : digest) text += fmt::format("{:02x}", static_cast<unsigned>(b));
  return text;
}

}  // namespace tessera
