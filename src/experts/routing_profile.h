// RoutingProfile: how often each expert of each layer was chosen, and the file that keeps it.
//
//   TESSERA_ASSIGN(RoutingProfile profile, RoutingProfile::read("model.spark.csv"));
//   TESSERA_TRY(profile.check(spec, digest_text(model_digest(file))));
//   options.expert_counts = profile.counts();          // plan/plan.h
//   profile.age(3, 0.5);                               // what was counted so far weighs half
//   TESSERA_TRY(profile.write("model.spark.csv"));
//
// The file is text: comment lines, of which the first names the shape and the model, then a line a
// layer of the model with a count for each of its experts, separated by commas, or `-` for a layer
// without experts.
//
//   # hotness table: n_layer=2 n_expert=4 n_expert_used=2 model=9f86d0...
//   10,0,3.5,2
//   -
//
// A file without `model` fits every model of its shape. Counts are numbers from 0 to kMostCount,
// with fractions, since ageing makes them. write() replaces the file at once or not at all. Errors:
// io, and invalid with the line that is wrong; of a file for another model, what differs.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/spec.h"

namespace tessera {

class RoutingProfile {
 public:
  // RoutingCounts counts in 32 bits between two looks, and an expert once a row at most; so ageing
  // by the rows that passed keeps a count below this. From here it takes a dozen half-lives to be
  // forgotten, from the largest double a thousand.
  static constexpr double kMostCount = 4294967296.0;

  // All zeros. `model`: digest_text() of the model's identity; empty: any of this shape.
  RoutingProfile(const ModelSpec& spec, std::string model);

  static Result<RoutingProfile> read(const std::string& path);
  static Result<RoutingProfile> parse(std::string_view text);
  Status write(const std::string& path) const;
  std::string text() const;

  // Whether it was made for this model.
  Status check(const ModelSpec& spec, std::string_view model) const;

  // [layer][expert]; empty for a layer without experts.
  const std::vector<std::vector<double>>& counts() const { return counts_; }
  struct Choice {
    int layer = 0;
    int expert = 0;
  };
  void add(const Choice& choice, double times) {
    counts_[static_cast<std::size_t>(choice.layer)][static_cast<std::size_t>(choice.expert)] +=
        times;
  }
  // Multiplies every count of a layer; what falls far below one choice is forgotten.
  void age(int layer, double keep);
  void set_model(std::string model) { model_ = std::move(model); }

 private:
  RoutingProfile() = default;

  std::string model_;
  int n_used_ = 0;
  std::vector<std::vector<double>> counts_;
};

}  // namespace tessera
