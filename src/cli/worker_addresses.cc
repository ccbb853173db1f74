#include "cli/worker_addresses.h"

#include <algorithm>
#include <string>
#include <vector>

#include "cli/worker_sites.h"
#include "worker/auth.h"
#include "worker/resolve.h"

namespace tessera::cli {
namespace {

constexpr auto kLookUpTime = std::chrono::seconds(5);  // of all hosts' names together

// A worker at an address that the options name, in their words.
struct NamedAddress {
  worker::Address address;
  const char* option;
  std::string text;
};

// A worker serves one connection at a time, so none may be named twice, also by another spelling.
Status check_once(const std::vector<NamedAddress>& named) {
  const worker::Deadline deadline = worker::after(kLookUpTime);
  for (std::size_t i = 1; i < named.size(); ++i) {
    const NamedAddress& one = named[i];
    const auto end = named.begin() + static_cast<std::ptrdiff_t>(i);
    const auto before = std::find_if(named.begin(), end, [&](const NamedAddress& other) {
      return worker::same_place(other.address, one.address, deadline);
    });
    if (before == end) continue;
    const bool same_option = std::string_view(before->option) == one.option;
    return Error::make(
        ErrorCode::invalid,
        "{} {}: {}{}; a worker serves one connection at a time, so start another one at an "
        "address of its own",
        one.option, one.text,
        same_option ? "it is named twice" : "--target-devices gives this worker layers",
        before->text == one.text ? "" : fmt::format(" (as {})", before->text));
  }
  return {};
}

}  // namespace

Status check_worker_addresses(const Config& config, const Placement& placement) {
  std::vector<NamedAddress> named;
  TESSERA_ASSIGN(const std::string token, worker_token(config));
  for (const DeviceName& name : placement.devices) {
    if (name.worker.find(':') == std::string::npos) continue;
    Result<worker::Address> address = worker::Address::parse(name.worker);
    if (!address) return std::move(address).error().in("--target-devices");
    named.push_back({*std::move(address), "--target-devices", name.worker});
  }
  for (const std::string& text : config.list("worker.experts")) {
    Result<worker::Address> address = worker::Address::parse(text);
    if (!address) return std::move(address).error().in("--expert-worker");
    named.push_back({*std::move(address), "--expert-worker", text});
  }
  TESSERA_TRY(check_once(named));
  for (const NamedAddress& one : named)
    if (one.address.kind == worker::Address::Kind::tcp)
      if (Status right = worker::check_token(token); !right)
        return std::move(right).error().in(fmt::format("{} {}", one.option, one.text));
  return {};
}

}  // namespace tessera::cli
