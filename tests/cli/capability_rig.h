// What the capability tests need of the world: workers that listen, files, and runs of the
// program's own code (from words to plans and logits) within this process.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/find_workers.h"
#include "cli/loading.h"
#include "cli/option_table.h"
#include "tests/cli/capability_matrix.h"

namespace tessera::testing {

// Values by the option's key; a flag without a value has "true".
using Settings = std::map<std::string, std::vector<std::string>, std::less<>>;

// Later ones win.
Settings joined(Settings settings, const Settings& others);

// `tessera worker [MODEL] --listen ADDRESS`, ended by the destructor.
class ListeningProcess {
 public:
  // `model`: empty for a worker without one.
  ListeningProcess(const std::string& model, const std::string& listen,
                   const std::string& token_file);
  ~ListeningProcess();
  const std::string& address() const { return address_; }  // empty: it did not come up

 private:
  int pid_ = -1;
  std::string address_;
};

class Rig {
 public:
  static Rig& get();  // made once

  // The options that make a topology.
  Settings topology(Topology topology) const;
  // The option at the entry's value, on that topology.
  Settings setting(std::string_view key, std::string_view value, Topology topology) const;

  // What is measured of this machine is kept where other plans do not see it.
  void keep_measurements_apart(bool apart) const;
  // Measures the layers on the topology's devices, kept apart, and says that tokens pass the first
  // device soonest and prompts the others.
  void make_times_uneven(Topology topology) const;

 private:
  Rig();
  std::vector<std::string> devices(Topology topology) const;

  std::string folder_, token_, file_, template_, profile_;
  ListeningProcess unix_, tcp_, empty_;
};

const char* name_of(Topology topology);
std::string last_flag(const cli::Option& option);  // "--ctx"; empty where it has none
const Model& capability_model();

Result<cli::Config> resolve(const Settings& settings);
// The plan as printed, without what depends on the memory that is free at the moment.
Result<nlohmann::json> plan_of(const Settings& settings);

// Runs so many tokens, more than a chunk of the delta form, through the model, `chunk` at a time,
// and gives the logits of each, for which it must be loaded.
inline constexpr int kRows = 80;
Status forward(const cli::LoadedModel& loaded, int chunk, std::vector<float>& logits);

struct Computed {
  std::vector<float> logits;
  double calls = 0;       // jobs for workers of experts
  double bytes_sent = 0;  // to workers of experts
  double fallbacks = 0;   // jobs that the host took over
  double locked = 0;      // bytes in memory, after loading
};
Result<Computed> compute(const Settings& settings);

}  // namespace tessera::testing
