// ExpertHome: where a routed expert of one layer is computed.
//
//   LayerExperts layer{.home = {ExpertHome::resident(), ExpertHome::host(),
//   ExpertHome::worker(0)}}; layer.home[2].worker();                       // 0
//
// A tagged value, so that an expert has exactly one home. `resident`: on the device that runs its
// layer. `host`: on the processor cores, from the mapped file. `worker(n)`: in worker process n;
// the host computes for a worker that cannot.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <vector>

namespace tessera {

class ExpertHome {
 public:
  static constexpr ExpertHome resident() { return ExpertHome(kResident); }
  static constexpr ExpertHome host() { return ExpertHome(kHost); }
  static constexpr ExpertHome worker(int id) { return ExpertHome(static_cast<std::int16_t>(id)); }

  constexpr ExpertHome() = default;  // resident
  constexpr bool is_resident() const { return value_ == kResident; }
  constexpr bool is_host() const { return value_ == kHost; }
  constexpr bool is_worker() const { return value_ >= 0; }
  constexpr int worker() const { return value_; }  // of a worker's
  constexpr bool operator==(const ExpertHome&) const = default;

 private:
  static constexpr std::int16_t kResident = -1;
  static constexpr std::int16_t kHost = -2;
  constexpr explicit ExpertHome(std::int16_t value) : value_(value) {}
  std::int16_t value_ = kResident;
};

// The experts of one layer, by number.
struct LayerExperts {
  std::vector<ExpertHome> home;  // [n_expert]; empty: all are resident, or the layer has none
  int spare = 0;  // room beside the residents' for experts that come while the model serves
  // The host's lie packed in memory too, to cross the device's link (Device::stream_experts).
  bool streamed = false;

  int resident() const {
    return static_cast<int>(std::count(home.begin(), home.end(), ExpertHome::resident()));
  }
  bool all_resident() const { return resident() == static_cast<int>(home.size()); }
};

// An expert that becomes resident while the model serves.
struct ExpertMove {
  int layer = 0;
  int expert = 0;
  int evicted = -1;  // is resident no longer; -1: the expert takes a spare place
};

}  // namespace tessera
