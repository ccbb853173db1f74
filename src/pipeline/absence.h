// Absence: why a part of a model in another process is not there.
#pragma once

namespace tessera {

enum class Absence {
  none,
  lost,      // it died or hangs, and is started or looked for again
  mismatch,  // what answered in its place refused: another version, model or size
  failed,    // it was restarted too often: nothing brings it back but a person
};
inline constexpr int kAbsences = 4;

// For programs; null for none.
constexpr const char* absence_name(Absence absence) {
  constexpr const char* kNames[kAbsences] = {nullptr, "shard_lost", "handshake_mismatch",
                                             "shard_failed"};
  return kNames[static_cast<int>(absence)];
}

}  // namespace tessera
