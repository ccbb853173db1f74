// TokenChooser: from rows of logits to tokens (token_choice.h).
//
//   TokenChooser chooser(spec);                            // one a thread
//   chooser.choose(logits, batch.choices, {chosen, n});    // [n][n_vocab]
//
// A row's token depends on its logits and its choice alone. A NaN logit counts as minus infinity.
// Ids outside the vocabulary and those that the model suppresses are never drawn, but a given one
// is scored. Log probabilities are a log softmax of the raw logits over the whole row. Nothing is
// allocated after the first top lists of a size.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "device/token_choice.h"

namespace tessera {

// The ids that may be sampled, as runs: scans stay straight loops.
class SampleableTokens {
 public:
  struct Run {
    std::size_t begin;
    std::size_t end;
  };
  SampleableTokens(int n_token, const std::function<bool(TokenId)>& never_sampled);
  explicit SampleableTokens(const ModelSpec& spec);
  std::span<const Run> runs() const { return runs_; }
  bool empty() const { return runs_.empty(); }
  bool contains(TokenId id) const;

 private:
  std::vector<Run> runs_;
};

struct Candidate {
  float logit;
  float weight;  // probability relative to the largest
  TokenId id;
};

class TokenChooser {
 public:
  explicit TokenChooser(const ModelSpec& spec)
      : TokenChooser(SampleableTokens(spec), spec.n_vocab) {}
  TokenChooser(SampleableTokens tokens, int n_vocab);

  const SampleableTokens& tokens() const { return tokens_; }
  // As many rows of logits as there are choices, and as `chosen` has places.
  void choose(std::span<const float> logits, const TokenChoices& choices,
              std::span<ChosenToken> chosen);
  // The same for the places that say kNotChosen.
  void choose_left(std::span<const float> logits, const TokenChoices& choices,
                   std::span<ChosenToken> chosen);

 private:
  void choose_row(std::span<const float> logits, const TokenChoice& choice,
                  std::span<const LogitChange> changes, ChosenToken& chosen);
  std::span<const float> changed(std::span<const float> logits,
                                 std::span<const LogitChange> changes);
  TokenId first_equal(std::span<const float> logits, float value) const;
  TokenId draw(std::span<const float> logits, const TokenChoice& choice, float max);
  TokenId draw_of_top_k(std::span<const float> logits, const TokenChoice& choice, float max);
  TokenId draw_of_all(std::span<const float> logits, const TokenChoice& choice, float max);
  void weigh_all(std::span<const float> logits, float max, float temperature);
  void score(std::span<const float> logits, int n_top, ChosenToken& chosen);

  SampleableTokens tokens_;
  std::vector<float> changed_;
  std::vector<float> weights_;
  std::vector<Candidate> candidates_;
};

// Of a row for which there is none: one line.
Error no_token_error(const ChosenToken& chosen);

}  // namespace tessera
