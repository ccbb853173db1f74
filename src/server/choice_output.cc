#include "server/choice_output.h"

#include <iterator>

namespace tessera::server {

OutputSlice ChoiceOutput::feed(GenerationEvent event) {
  OutputSlice slice;
  generated_ += static_cast<int>(event.tokens.size());
  shown_bytes_ += event.text.size();
  slice.text = std::move(event.text);
  if (keep_tokens_) {
    std::move(event.tokens.begin(), event.tokens.end(), std::back_inserter(queued_));
  }
  while (!queued_.empty() && queued_begin_ < shown_bytes_) {
    queued_begin_ += queued_.front().piece.size();
    slice.tokens.push_back(std::move(queued_.front()));
    queued_.pop_front();
  }
  if (event.finish) {
    finish_ = std::move(event.finish);
    slice.finish = finish_->reason;
    // Without a stop string nothing was cut off: what is left has no visible text of its own.
    if (finish_->stop_string.empty()) {
      std::move(queued_.begin(), queued_.end(), std::back_inserter(slice.tokens));
    }
    queued_.clear();
  }
  return slice;
}

}  // namespace tessera::server
