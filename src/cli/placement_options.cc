#include "cli/placement_options.h"

#include "cli/option_value.h"

namespace tessera::cli {
namespace {

Result<PlacementText::Budget> parse_budget(const std::string& text) {
  const std::size_t equals = text.find('=');
  PlacementText::Budget budget;
  std::string_view amount = text;
  if (equals != std::string::npos) {
    budget.device = text.substr(0, equals);
    amount.remove_prefix(equals + 1);
  }
  const std::optional<std::int64_t> bytes = parse_bytes(amount);
  if (!bytes || equals == 0)
    return Error::make(ErrorCode::invalid,
                       "--budget {}: give bytes, as in 512MiB, or those of a device, as in "
                       "cpu:0=2GB",
                       text);
  budget.bytes = *bytes;
  return budget;
}

}  // namespace

Result<Placement> placement_of(const Config& config) {
  PlacementText text{.devices = config.text("placement.target_devices"),
                     .layer_split = config.text("placement.target_layer_split")};
  for (const std::string& entry : config.list("placement.budget")) {
    TESSERA_ASSIGN(PlacementText::Budget budget, parse_budget(entry));
    text.budgets.push_back(std::move(budget));
  }
  return parse_placement(text);
}

Result<Inventory> inventory_of(const Config& config) {
  TESSERA_ASSIGN(const Placement placement, placement_of(config));
  return probe_inventory(placement, config.small("placement.threads"));
}

Status check_placement(const Config& config) {
  if (config.given("placement.target_devices") && config.text("placement.target_devices").empty())
    return Error::make(ErrorCode::invalid, "--target-devices: give cpu, or cpu:0,cpu:1,...");
  TESSERA_TRY(inventory_of(config));
  return {};
}

}  // namespace tessera::cli
