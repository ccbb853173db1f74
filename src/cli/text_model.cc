#include "cli/text_model.h"

#include "cli/output.h"
#include "model/model.h"

namespace tessera::cli {
namespace {

std::string text_of(const text::Vocabulary& vocabulary, std::optional<TokenId> id) {
  return id ? std::string(vocabulary.text(*id)) : std::string();
}

}  // namespace

std::vector<TokenId> encode_segments(const text::Tokenizer& tokenizer,
                                     const std::vector<jinja::Segment>& segments) {
  std::vector<text::Segment> views;
  views.reserve(segments.size());
  for (const jinja::Segment& segment : segments) views.push_back({segment.text, segment.trusted});
  return tokenizer.encode(views, {.add_bos = true});
}

std::chrono::sys_seconds clock_now() {
  return std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
}

Result<std::vector<TokenId>> TextModel::encode_chat(const ChatInput& input) const {
  if (!chat) return Error::make(ErrorCode::invalid, "{}", no_chat);
  TESSERA_ASSIGN(const std::vector<jinja::Segment> segments, chat->render(input));
  return encode_segments(tokenizer, segments);
}

Result<TextModel> read_text_model(const gguf::File& file, const Config& config) {
  TESSERA_ASSIGN(text::TokenizerSpec spec, read_tokenizer_spec(file));
  std::string source = spec.chat_template;
  const std::string& path = config.text("text.chat_template_file");
  if (!path.empty()) {
    TESSERA_ASSIGN(source, read_text_file(path));
    if (source.empty()) return Error::make(ErrorCode::invalid, "{}: the template is empty", path);
  }
  Result<text::Tokenizer> tokenizer = text::Tokenizer::create(std::move(spec));
  if (!tokenizer) return std::move(tokenizer).error().in(file.path());
  TextModel model{.tokenizer = *std::move(tokenizer)};
  if (source.empty()) {
    model.no_chat = "the model has no chat template; give one with --chat-template-file";
    return model;
  }
  const text::Vocabulary& vocabulary = model.tokenizer.vocabulary();
  Result<ChatTemplate> chat = ChatTemplate::create(source, text_of(vocabulary, vocabulary.bos()),
                                                   text_of(vocabulary, vocabulary.eos()));
  if (chat) {
    model.chat = *std::move(chat);
  } else if (!path.empty()) {
    return std::move(chat).error().in(path);
  } else {
    model.no_chat = "the model's chat template does not work (" + chat.error().message +
                    "); give another with --chat-template-file";
  }
  return model;
}

}  // namespace tessera::cli
