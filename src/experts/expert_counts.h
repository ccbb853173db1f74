// ExpertCounts: what the layers of one process counted of their experts, for another process that
// adds it to its own counts.
//
//   for (const ExpertCountField& field : kExpertCountFields) sum.*field.value += told.*field.value;
//
// The fields travel in the order of the list (STATS, docs/workers.md).
#pragma once

#include <array>
#include <cstdint>

namespace tessera {

struct ExpertCounts {
  std::uint64_t pairs_resident = 0;
  std::uint64_t host_calls = 0;  // of the process's host
  std::uint64_t host_pairs = 0;
  std::uint64_t host_wait_us = 0;
  std::uint64_t host_hidden_us = 0;
  std::uint64_t mixed_layers = 0;
  std::uint64_t cache_hit = 0;
  std::uint64_t cache_miss = 0;
  std::uint64_t cache_admit = 0;
  std::uint64_t cache_evict = 0;
  std::uint64_t cache_useless = 0;  // of these
  std::uint64_t expert_bytes_resident = 0;
  std::uint64_t host_expert_bytes = 0;
  std::uint64_t host_row_calls = 0;  // jobs of one row
  std::uint64_t host_row_bytes = 0;  // of their experts
  std::uint64_t host_taken_us = 0;   // that they took

  bool operator==(const ExpertCounts&) const = default;
};

struct ExpertCountField {
  enum class Unit { number, bytes, microseconds };
  std::uint64_t ExpertCounts::*value;
  Unit unit = Unit::number;
};

inline constexpr std::array kExpertCountFields = {
    ExpertCountField{&ExpertCounts::pairs_resident},
    ExpertCountField{&ExpertCounts::host_calls},
    ExpertCountField{&ExpertCounts::host_pairs},
    ExpertCountField{&ExpertCounts::host_wait_us, ExpertCountField::Unit::microseconds},
    ExpertCountField{&ExpertCounts::host_hidden_us, ExpertCountField::Unit::microseconds},
    ExpertCountField{&ExpertCounts::mixed_layers},
    ExpertCountField{&ExpertCounts::cache_hit},
    ExpertCountField{&ExpertCounts::cache_miss},
    ExpertCountField{&ExpertCounts::cache_admit},
    ExpertCountField{&ExpertCounts::cache_evict},
    ExpertCountField{&ExpertCounts::cache_useless},
    ExpertCountField{&ExpertCounts::expert_bytes_resident, ExpertCountField::Unit::bytes},
    ExpertCountField{&ExpertCounts::host_expert_bytes, ExpertCountField::Unit::bytes},
    ExpertCountField{&ExpertCounts::host_row_calls},
    ExpertCountField{&ExpertCounts::host_row_bytes, ExpertCountField::Unit::bytes},
    ExpertCountField{&ExpertCounts::host_taken_us, ExpertCountField::Unit::microseconds}};
static_assert(sizeof(ExpertCounts) == kExpertCountFields.size() * sizeof(std::uint64_t));

}  // namespace tessera
