#include "text/jinja/text.h"

#include <algorithm>

namespace tessera::jinja {

Text Text::substr(std::size_t position, std::size_t count) const {
  position = std::min(position, bytes_.size());
  count = std::min(count, bytes_.size() - position);
  Text part;
  part.bytes_ = bytes_.substr(position, count);
  const auto after_start = std::upper_bound(cuts_.begin(), cuts_.end(), position);
  part.first_trusted_ = first_trusted_ == ((after_start - cuts_.begin()) % 2 == 0);
  for (auto cut = after_start; cut != cuts_.end() && *cut < position + count; ++cut)
    part.cuts_.push_back(*cut - position);
  return part;
}

void Text::append(std::string_view bytes, bool trusted) {
  if (bytes.empty()) return;
  if (bytes_.empty()) {
    first_trusted_ = trusted;
    cuts_.clear();
  } else if (trusted_at_end() != trusted) {
    cuts_.push_back(bytes_.size());
  }
  bytes_ += bytes;
}

void Text::append(const Text& other) {
  other.for_each_run([this](std::string_view bytes, bool trusted) { append(bytes, trusted); });
}

}  // namespace tessera::jinja
