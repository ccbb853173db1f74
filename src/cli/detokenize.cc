#include <limits>

#include "cli/commands.h"
#include "cli/loading.h"
#include "cli/output.h"
#include "cli/text_model.h"

namespace tessera::cli {
namespace {

Status detokenize(const Config& config, const std::vector<TokenId>& ids) {
  TESSERA_ASSIGN(const ModelPath path, model_path(config));
  TESSERA_ASSIGN(const gguf::File file, gguf::File::open(path.path, {.allow_unknown_types = true}));
  TESSERA_ASSIGN(const TextModel model, read_text_model(file, config));
  const int size = model.tokenizer.vocabulary().size();
  for (const TokenId id : ids)
    if (id >= size)
      return Error::make(ErrorCode::invalid, "token {}: the vocabulary has ids 0 to {}", id,
                         size - 1);
  print_out(model.tokenizer.decode(ids, true) + "\n");
  return {};
}

}  // namespace

int detokenize_command(const Config& config) {
  if (!config.given("run.ids"))
    return misuse(Error::make(ErrorCode::invalid, "give the tokens with --ids, as in --ids 1,2,3"));
  const Result<std::vector<int>> ids =
      parse_int_list(config.text("run.ids"), 0, std::numeric_limits<int>::max());
  if (!ids) return misuse(Error(ids.error()).in("--ids"));
  return exit_code(detokenize(config, *ids));
}

}  // namespace tessera::cli
