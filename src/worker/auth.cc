#include "worker/auth.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <cstring>
#include <vector>

#include "base/check.h"

namespace tessera::worker {
namespace {

void random_bytes(std::span<std::byte> out) {
  const int made =
      RAND_bytes(reinterpret_cast<unsigned char*>(out.data()), static_cast<int>(out.size()));
  CHECK(made == 1, "the system gives no random bytes");
}

}  // namespace

Status check_token(std::string_view token) {
  if (token.size() >= kMinTokenBytes) return {};
  return Error::make(
      ErrorCode::invalid,
      "a worker over tcp needs a token of at least {} bytes, the same at both ends (--token-file)",
      kMinTokenBytes);
}

Nonce random_nonce() {
  Nonce nonce;
  random_bytes(nonce);
  return nonce;
}

std::uint64_t random_id() {
  std::uint64_t id;
  random_bytes(std::as_writable_bytes(std::span(&id, 1)));
  return id;
}

Proof make_proof(std::string_view token, ProofOf who, const Nonce& client, const Nonce& worker) {
  const std::string_view label = who == ProofOf::client ? "tessera client" : "tessera worker";
  std::vector<std::byte> text;
  const auto append = [&](std::span<const std::byte> bytes) {
    text.insert(text.end(), bytes.begin(), bytes.end());
  };
  append(std::as_bytes(std::span(label)));
  append(client);
  append(worker);
  Proof proof;
  unsigned length = 0;
  const unsigned char* made = HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()),
                                   reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                                   reinterpret_cast<unsigned char*>(proof.data()), &length);
  CHECK(made != nullptr && length == kProofBytes, "HMAC-SHA-256 failed");
  return proof;
}

bool same_proof(const Proof& a, std::span<const std::byte> b) {
  return b.size() == a.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace tessera::worker
