#include "experts/routing_profile.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "base/read_file.h"

namespace tessera {
namespace {

constexpr std::size_t kMostBytes = std::size_t{64} << 20;
constexpr int kMostLayers = 4096;
constexpr int kMostExperts = 65536;
constexpr double kForgotten = 1e-3;

std::string_view take_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

template <typename Number>
bool parse_number(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// "key=value" of the first line; empty if it is not there.
std::string_view value_of(std::string_view line, std::string_view key) {
  for (std::size_t at = 0; (at = line.find(key, at)) != std::string_view::npos; ++at) {
    if (at == 0 || line[at - 1] != ' ') continue;
    if (line.substr(at + key.size(), 1) != "=") continue;
    const std::string_view value = line.substr(at + key.size() + 1);
    return value.substr(0, value.find(' '));
  }
  return {};
}

bool is_hex_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
}

struct Shape {
  int layers = 0;
  int experts = 0;
  int used = 0;
};

Result<Shape> parse_shape(std::string_view line) {
  Shape shape;
  const auto number = [&](std::string_view key, int most, int& value) {
    return parse_number(value_of(line, key), value) && value >= 0 && value <= most;
  };
  if (!line.starts_with("# hotness table:") || !number("n_layer", kMostLayers, shape.layers) ||
      !number("n_expert", kMostExperts, shape.experts) ||
      !number("n_expert_used", kMostExperts, shape.used))
    return Error::make(ErrorCode::invalid,
                       "line 1: no routing profile; it begins '# hotness table: n_layer=N "
                       "n_expert=N n_expert_used=N'");
  return shape;
}

Result<std::vector<double>> parse_row(std::string_view line, const Shape& shape) {
  std::vector<double> row;
  if (line == "-") return row;
  for (std::string_view rest = line;;) {
    const std::size_t comma = rest.find(',');
    double count = 0.0;
    if (!parse_number(rest.substr(0, comma), count) || !std::isfinite(count) || count < 0.0)
      return Error::make(ErrorCode::invalid, "'{}' is no count", rest.substr(0, comma));
    if (count > RoutingProfile::kMostCount)
      return Error::make(ErrorCode::invalid, "'{}' is more than was ever counted; {:.0f} is most",
                         rest.substr(0, comma), RoutingProfile::kMostCount);
    row.push_back(count);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (row.size() != static_cast<std::size_t>(shape.experts))
    return Error::make(ErrorCode::invalid, "{} counts, the first line says {} experts", row.size(),
                       shape.experts);
  return row;
}

Error io_error(const std::string& path, const char* what) {
  return Error::make(ErrorCode::io, "{}: cannot {}: {}", path, what, std::strerror(errno));
}

// All of it on the disk, or an error.
Status write_file(const std::string& path, std::string_view text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return io_error(path, "be written");
  Status status;
  while (!text.empty() && status) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) status = io_error(path, "be written");
    if (n >= 0) text.remove_prefix(static_cast<std::size_t>(n));
  }
  if (status && fsync(fd) != 0) status = io_error(path, "be written");
  close(fd);
  return status;
}

}  // namespace

RoutingProfile::RoutingProfile(const ModelSpec& spec, std::string model)
    : model_(std::move(model)) {
  for (const LayerSpec& layer : spec.layers) {
    counts_.emplace_back(layer.moe ? static_cast<std::size_t>(layer.moe->n_expert) : 0, 0.0);
    if (layer.moe) n_used_ = layer.moe->n_used;
  }
}

Result<RoutingProfile> RoutingProfile::read(const std::string& path) {
  TESSERA_ASSIGN(const std::string text, read_file(path, kMostBytes));
  Result<RoutingProfile> profile = parse(text);
  if (!profile) return std::move(profile).error().in(path);
  return profile;
}

Result<RoutingProfile> RoutingProfile::parse(std::string_view text) {
  if (text.size() > kMostBytes)
    return Error::make(ErrorCode::invalid, "{} bytes are no routing profile", text.size());
  RoutingProfile profile;
  const std::string_view first = take_line(text);
  TESSERA_ASSIGN(const Shape shape, parse_shape(first));
  profile.n_used_ = shape.used;
  profile.model_ = value_of(first, "model");
  if (!std::all_of(profile.model_.begin(), profile.model_.end(), is_hex_digit))
    return Error::make(
        ErrorCode::invalid,
        "line 1: model= is no digest; it is hexadecimal, as tessera calibrate writes");
  for (int number = 2; !text.empty(); ++number) {
    const std::string_view line = take_line(text);
    if (line.empty() || line.starts_with('#')) continue;
    Result<std::vector<double>> row = parse_row(line, shape);
    if (!row) return std::move(row).error().in(fmt::format("line {}", number));
    profile.counts_.push_back(*std::move(row));
  }
  if (profile.counts_.size() != static_cast<std::size_t>(shape.layers))
    return Error::make(ErrorCode::invalid, "{} layers, the first line says {}",
                       profile.counts_.size(), shape.layers);
  return profile;
}

std::string RoutingProfile::text() const {
  std::size_t experts = 0;
  for (const auto& layer : counts_) experts = std::max(experts, layer.size());
  std::string text =
      fmt::format("# hotness table: n_layer={} n_expert={} n_expert_used={}{}\n", counts_.size(),
                  experts, n_used_, model_.empty() ? "" : " model=" + model_);
  text += "# a line a layer: how often each expert was chosen, older choices counting less\n";
  for (const auto& layer : counts_) {
    if (layer.empty()) text += '-';
    for (std::size_t e = 0; e < layer.size(); ++e)
      fmt::format_to(std::back_inserter(text), "{}{:.7g}", e > 0 ? "," : "", layer[e]);
    text += '\n';
  }
  return text;
}

Status RoutingProfile::write(const std::string& path) const {
  struct stat present {};
  if (stat(path.c_str(), &present) == 0 && !S_ISREG(present.st_mode))
    return Error::make(ErrorCode::invalid, "{}: no ordinary file; it is not replaced", path);
  const std::string temporary = fmt::format("{}.{}.new", path, getpid());
  Status status = write_file(temporary, text());
  if (status && std::rename(temporary.c_str(), path.c_str()) != 0)
    status = io_error(path, "be replaced");
  if (!status) std::remove(temporary.c_str());
  return status;
}

Status RoutingProfile::check(const ModelSpec& spec, std::string_view model) const {
  if (counts_.size() != spec.layers.size())
    return Error::make(ErrorCode::invalid, "a routing profile of {} layers; the model has {}",
                       counts_.size(), spec.layers.size());
  for (std::size_t l = 0; l < counts_.size(); ++l) {
    const auto& moe = spec.layers[l].moe;
    const std::size_t experts = moe ? static_cast<std::size_t>(moe->n_expert) : 0;
    // Layers without experts may also stand there as zeros.
    const bool zeros = experts == 0 && std::all_of(counts_[l].begin(), counts_[l].end(),
                                                   [](double count) { return count == 0.0; });
    if (counts_[l].size() != experts && !zeros)
      return Error::make(ErrorCode::invalid,
                         "a routing profile of {} experts in layer {}; the model has {}",
                         counts_[l].size(), l, experts);
  }
  if (!model_.empty() && !model.empty() && model_ != model)
    return Error::make(ErrorCode::invalid,
                       "a routing profile of another model ({}...); make one for this with "
                       "tessera calibrate",
                       model_.substr(0, 12));
  return {};
}

void RoutingProfile::age(int layer, double keep) {
  for (double& count : counts_[static_cast<std::size_t>(layer)]) {
    count *= keep;
    if (count < kForgotten) count = 0.0;
  }
}

}  // namespace tessera
