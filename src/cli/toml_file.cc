#include "cli/toml_file.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <string>

#include "base/read_file.h"

namespace tessera::cli {
namespace {

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  Status read(const toml::table& table, const std::string& prefix) {
    for (const auto& [name, node] : table) {
      const std::string key = prefix + std::string(name.str());
      if (const toml::table* inner = node.as_table()) {
        TESSERA_TRY(read(*inner, key + "."));
        continue;
      }
      TomlEntry entry{.key = key, .line = static_cast<int>(node.source().begin.line)};
      if (const toml::array* array = node.as_array()) {
        entry.is_array = true;
        for (const toml::node& element : *array) TESSERA_TRY(add(entry, element));
      } else {
        TESSERA_TRY(add(entry, node));
      }
      entries_.push_back(std::move(entry));
    }
    return {};
  }

  std::vector<TomlEntry> take() { return std::move(entries_); }

 private:
  Status add(TomlEntry& entry, const toml::node& node) const {
    if (const auto* text = node.as_string())
      entry.values.push_back(text->get());
    else if (const auto* integer = node.as_integer())
      entry.values.push_back(fmt::format("{}", integer->get()));
    else if (const auto* number = node.as_floating_point())
      entry.values.push_back(fmt::format("{}", number->get()));
    else if (const auto* boolean = node.as_boolean())
      entry.values.emplace_back(boolean->get() ? "true" : "false");
    else
      return Error::make(ErrorCode::invalid,
                         "{}:{}: {} is neither text, a number, a boolean nor a list of them", path_,
                         entry.line, entry.key);
    return {};
  }

  const std::string& path_;
  std::vector<TomlEntry> entries_;
};

}  // namespace

Result<std::vector<TomlEntry>> read_toml_file(const std::string& path) {
  TESSERA_ASSIGN(const std::string text, read_file(path, kMostTextBytes));
  try {
    const toml::table table = toml::parse(text, path);
    Reader reader(path);
    TESSERA_TRY(reader.read(table, ""));
    return reader.take();
  } catch (const toml::parse_error& error) {
    return Error::make(ErrorCode::invalid, "{}:{}: {}", path, error.source().begin.line,
                       error.description());
  }
}

}  // namespace tessera::cli
