// GpuDevice: the tokens that the card has chosen, of the last step or of one before it, and those
// that another one has.
#include <algorithm>

#include "base/check.h"
#include "device/gpu/plugin/gpu_device.h"

namespace tessera::gpu {

// Every device that a batch passes sees its choices, and says the same of them.
bool GpuDevice::goes_ahead(const BatchView& batch) const {
  const std::span<const TokenChoice> choices = batch.choices.rows;
  return layout_.experts.empty() && batch.rows() <= std::min(kDecodeRows, layout_.max_rows) &&
         !choices.empty() && choices.size() == batch.logit_rows.size() &&
         std::none_of(choices.begin(), choices.end(), host_chooses);
}

// Where tokens are known too: the rows of the step before stay in place until then (unmoved()), and
// this step's would be written over them. What begin() noted needs no tokens and goes before.
void GpuDevice::take_tokens(const Device& last) {
  if (&last == this) return;  // the queue's order is enough
  const auto& other = static_cast<const GpuDevice&>(last);
  flush();
  use();
  if (lost() || other.inputs_->step() == 0) return;
  const UnderWay before{.step = other.inputs_->step()};
  check(status_of(GPU(StreamWaitEvent)(stream_.get(), other.done_event(before).get(), 0),
                  "tokens of another GPU"));
}

bool GpuDevice::choose(std::span<ChosenToken> chosen) {
  if (n_under_way_ > 0) {
    take_oldest(chosen);
    return true;
  }
  if (shape_.choosing == Choosing::host) return Device::choose(chosen);
  CHECK(chosen.size() == choices_.size());
  flush();
  use();
  if (!lost()) check(wait());
  read_chosen(inputs_->step(), chosen);
  bool all = true;
  for (std::size_t i = 0; i < chosen.size() && !lost(); ++i) {
    if (!host_chooses(choices_[i])) continue;
    chosen[i].id = kNotChosen;
    all = false;
  }
  if (!all && !lost()) check(step_->restore_logits(shape_));
  if (lost()) std::fill(chosen.begin(), chosen.end(), ChosenToken{});
  return all || lost();
}

// Of the oldest step under way. The one behind it goes on meanwhile.
void GpuDevice::take_oldest(std::span<ChosenToken> chosen) {
  const UnderWay step = under_way_[0];
  std::copy(under_way_.begin() + 1, under_way_.end(), under_way_.begin());
  --n_under_way_;
  CHECK(chosen.size() == step.choices);
  use();
  if (!lost()) check(wait_for(done_event(step), options_.wait_seconds, "a step"));
  read_chosen(step.step, chosen);
}

// What a step that is done has left; a device that is lost, or tells of no tokens, none.
void GpuDevice::read_chosen(std::int32_t step, std::span<ChosenToken> chosen) {
  const ChosenRow* rows =
      host_chosen_.as<ChosenRow>() + (step % 2 != 0 ? layout_.max_logit_rows : 0);
  for (std::size_t i = 0; i < chosen.size() && !lost(); ++i) {
    const auto [id, largest] = rows[i];
    if (id < kNoToken || id >= spec_.n_vocab)
      check(Error::make(ErrorCode::internal, "chose token {}", id));
    chosen[i] = {.id = id, .largest = largest, .logprob = 0.0f, .top = {}};
  }
  if (lost()) std::fill(chosen.begin(), chosen.end(), ChosenToken{});
}

}  // namespace tessera::gpu
