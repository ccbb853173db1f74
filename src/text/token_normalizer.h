// Unicode NFC for text on its way to a tokenizer whose model was trained on NFC.
//
// normalize_nfc() returns nothing when the text is already in NFC as far as a quick scan can tell
// (nearly always), else the normalised copy. Ill-formed bytes are kept as they are and count as
// boundaries. Time is O(n log n) for any input, also for megabytes of combining marks.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tessera::text {

struct CodePointRange {
  char32_t first;
  char32_t last;
};

// Ranges whose code points are unchanged by NFC, never compose with a predecessor and have
// combining class 0, so that text may be normalised in pieces cut before them. Sorted; not
// complete, which costs time only.
std::span<const CodePointRange> nfc_stable_ranges();

std::optional<std::string> normalize_nfc(std::string_view text);

}  // namespace tessera::text
