// The entries of capability_matrix.h as what the tests of them walk through.
//
//   for_each_entry([&](const Entry& entry) { plan_of(with(entry, topology)); });
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <vector>

#include "tests/cli/capability_rig.h"

namespace tessera::testing {

const Entry* find_entry(std::string_view key);
// The entry once for each of its values; without one, itself.
std::vector<Entry> values_of(const Entry& entry);
const Refusal* find_refusal(const Entry& entry, Topology topology);

// What is chosen of itself: of this machine's kernels the widest, and f32 for the model's KV. Wider
// kernels cannot be tried.
bool is_default_here(const Entry& entry);

// Of every option of the table, with every value.
template <typename Use>
void for_each_entry(const Use& use) {
  for (const cli::Option& option : cli::option_table()) {
    const Entry* entry = find_entry(option.key);
    if (entry == nullptr) {
      ADD_FAILURE() << option.key << ": capability_matrix.h does not say what it means where "
                    << "layers or experts are elsewhere";
      continue;
    }
    for (const Entry& one : values_of(*entry)) use(one);
  }
}

// A topology with the option at its value.
Settings with(const Entry& entry, Topology topology);

// The options of these effects that the topology takes, in each round with another value.
inline constexpr int kRounds = 2;
std::vector<Entry> chosen(std::initializer_list<Effect> effects, Topology topology, int round);
// All of them at once.
Settings all_of(std::initializer_list<Effect> effects, Topology topology, int round);
// What changes nothing there.
Settings idle_on(Topology topology, int round);

std::vector<float> logits_of(const Settings& settings);
// The largest difference; infinite where they are not as many.
float distance(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace tessera::testing
