#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/loading.h"
#include "cli/output.h"
#include "cli/text_model.h"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

void print_ids(const Config& config, const text::Tokenizer& tokenizer,
               const std::vector<TokenId>& ids) {
  if (!config.flag("output.json")) {
    print_out("{}\n", fmt::join(ids, ","));
    return;
  }
  Json pieces = Json::array();
  for (const TokenId id : ids) pieces.push_back(std::string(tokenizer.piece(id, true)));
  print_out(json_text(Json{{"count", ids.size()}, {"tokens", ids}, {"pieces", pieces}}, -1) + "\n");
}

Status tokenize(const Config& config) {
  TESSERA_ASSIGN(const ModelPath path, model_path(config));
  Result<gguf::File> opened = gguf::File::open(path.path, {.allow_unknown_types = true});
  if (!opened && opened.error().code == ErrorCode::not_found && !config.given("text.text"))
    opened.error().message += "; text goes behind --text";
  TESSERA_ASSIGN(const gguf::File file, std::move(opened));
  TESSERA_ASSIGN(const TextModel model, read_text_model(file, config));
  std::string text = config.text("text.text");
  if (!config.given("text.text")) {
    TESSERA_ASSIGN(text, read_text_file("-"));
  }
  print_ids(config, model.tokenizer,
            model.tokenizer.encode(text, {.parse_special = config.flag("text.special")}));
  return {};
}

}  // namespace

int tokenize_command(const Config& config) {
  return exit_code(tokenize(config));
}

}  // namespace tessera::cli
