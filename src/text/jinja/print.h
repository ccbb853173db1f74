// How values become text: Python's str() and repr().
#pragma once

#include "text/jinja/runtime.h"

namespace tessera::jinja {

// str(value). Numbers are trusted text; a container's is trusted if every text in it is.
Text to_text(Runtime& runtime, const Value& value);
// repr(value)
Text to_repr(Runtime& runtime, const Value& value);
// The shortest decimal that reads back as the same double, in Python's form: 1.0, 1e-05, inf.
std::string real_text(double value);

// Collects text piece by piece under the meter, with one provenance for the whole.
class Writer {
 public:
  explicit Writer(Runtime& runtime) : runtime_(runtime) {}
  void put(std::string_view bytes) {
    runtime_.meter.allocate(bytes.size());
    bytes_ += bytes;
  }
  void mix(const Text& source) { trusted_ = trusted_ && source.all_trusted(); }
  Runtime& runtime() { return runtime_; }
  Text finish() && { return Text(std::move(bytes_), trusted_); }

 private:
  Runtime& runtime_;
  std::string bytes_;
  bool trusted_ = true;
};

}  // namespace tessera::jinja
