// Proof that both ends of a tcp connection know one token, without sending it.
//
// Each end gives a random nonce; then each sends HMAC-SHA-256(token, label | client nonce | worker
// nonce), the client first, so that a stranger gets nothing to guess against. The labels differ, so
// a proof cannot be sent back to where it came from. This says who is at the other end when the
// connection is made; the frames after it are neither encrypted nor authenticated, so the network
// between the two must be trusted or tunnelled.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "worker/messages.h"

namespace tessera::worker {

inline constexpr std::size_t kMinTokenBytes = 16;

Status check_token(std::string_view token);

Nonce random_nonce();
std::uint64_t random_id();

enum class ProofOf { client, worker };
Proof make_proof(std::string_view token, ProofOf who, const Nonce& client, const Nonce& worker);
// In time that does not depend on where the two differ.
bool same_proof(const Proof& a, std::span<const std::byte> b);

}  // namespace tessera::worker
