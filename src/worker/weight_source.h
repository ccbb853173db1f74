// WeightSource: where a worker's handlers get the bytes of the model's file that they load, when
// the worker has no such file.
//
//   TESSERA_ASSIGN(const FetchedWeights fetched, FetchedWeights::get(source, ranges));
//   ... load, from the model as ever ...
//
// Without a source there is nothing to fetch.
#pragma once

#include <utility>

#include "base/result.h"
#include "worker/byte_ranges.h"

namespace tessera::worker {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // Makes these bytes readable through the model; exhausted when they are too many.
  virtual Status fetch(const FileRanges& ranges) = 0;
  // They are not read again.
  virtual void drop() = 0;
};

// The bytes for the time of a load, which frees them as it goes.
class FetchedWeights {
 public:
  static Result<FetchedWeights> get(WeightSource* source, const FileRanges& ranges) {
    if (source != nullptr) TESSERA_TRY(source->fetch(ranges));
    return FetchedWeights(source);
  }
  FetchedWeights(FetchedWeights&& other) noexcept
      : source_(std::exchange(other.source_, nullptr)) {}
  FetchedWeights& operator=(FetchedWeights&&) = delete;
  ~FetchedWeights() {
    if (source_ != nullptr) source_->drop();
  }

 private:
  explicit FetchedWeights(WeightSource* source) : source_(source) {}
  WeightSource* source_;
};

}  // namespace tessera::worker
