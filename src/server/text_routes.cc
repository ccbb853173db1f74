#include "server/text_routes.h"

namespace tessera::server {
namespace {

using Outcome = std::variant<Json, ApiError>;

HttpResponse answer(std::string_view body, const PrepareContext& context,
                    Outcome (*work)(const Json&, const PrepareContext&)) {
  auto json = parse_json_body(body);
  if (!json) return error_response(from_error(json.error()));
  if (!json->is_object()) return error_response(bad_request("the body must be a JSON object"));
  const Outcome outcome = work(*json, context);
  if (const auto* error = std::get_if<ApiError>(&outcome)) return error_response(*error);
  return json_response(std::get<Json>(outcome));
}

bool is_utf8(const std::string& bytes) {
  try {
    (void)Json(bytes).dump();
    return true;
  } catch (const Json::exception&) {
    return false;
  }
}

Json piece_json(TokenId id, const ServedModel& model) {
  const std::string piece = model.piece(id);
  Json out = {{"id", id}, {"piece", piece}};
  if (!is_utf8(piece)) {
    out["piece"] = Json::array();
    for (const char c : piece) out["piece"].push_back(static_cast<unsigned char>(c));
  }
  return out;
}

// Exactly one of content, prompt and messages.
std::variant<std::vector<TokenId>, ApiError> tokens_of(const Json& body, FieldReader& fields,
                                                       const PrepareContext& context) {
  const EncodeRules rules{.parse_special = fields.boolean("parse_special").value_or(true),
                          .add_bos = fields.boolean("add_special").value_or(false)};
  if (body.contains("messages")) {
    const ChatPrompt prompt = read_chat_prompt(fields, context.limits);
    if (!fields.ok()) return fields.error();
    auto rendered = render_prompt(prompt, context.model);
    if (auto* error = std::get_if<ApiError>(&rendered)) return std::move(*error);
    return context.model.encode_chat(std::get<0>(rendered));
  }
  auto text = fields.text("content");
  if (!text) text = fields.text("prompt");
  if (!text) fields.fail("content", "is missing; give content, prompt or messages");
  if (!fields.ok()) return fields.error();
  return context.model.encode(*text, rules);
}

Outcome tokenize(const Json& body, const PrepareContext& context) {
  FieldReader fields(body);
  const bool with_pieces = fields.boolean("with_pieces").value_or(false);
  auto tokens = tokens_of(body, fields, context);
  if (auto* error = std::get_if<ApiError>(&tokens)) return std::move(*error);
  Json list = Json::array();
  for (const TokenId id : std::get<0>(tokens)) {
    list.push_back(with_pieces ? piece_json(id, context.model) : Json(id));
  }
  const std::size_t count = list.size();
  return Json{{"tokens", std::move(list)}, {"count", count}, {"max_model_len", context.context}};
}

Outcome detokenize(const Json& body, const PrepareContext& context) {
  FieldReader fields(body);
  const Json* list = fields.array("tokens");
  if (fields.ok() && !list) fields.fail("tokens", "is missing; it must be a list of token ids");
  if (!fields.ok()) return fields.error();
  const auto ids = read_token_ids(fields, "tokens", *list, context.model.vocabulary);
  if (!fields.ok()) return fields.error();
  return Json{{"content", context.model.decode(ids)}};
}

Outcome apply_template(const Json& body, const PrepareContext& context) {
  FieldReader fields(body);
  const bool with_tokens = fields.boolean("tokens").value_or(false);
  const ChatPrompt prompt = read_chat_prompt(fields, context.limits);
  if (!fields.ok()) return fields.error();
  auto rendered = render_prompt(prompt, context.model);
  if (auto* error = std::get_if<ApiError>(&rendered)) return std::move(*error);
  const auto& segments = std::get<0>(rendered);
  std::string text;
  for (const PromptSegment& segment : segments) text += segment.text;
  Json out = {{"prompt", std::move(text)}};
  if (with_tokens) out["tokens"] = context.model.encode_chat(segments);
  return out;
}

}  // namespace

HttpResponse json_response(const Json& body, int status) {
  return {
      .status = status, .headers = {{"Content-Type", "application/json"}}, .body = dump_json(body)};
}

HttpResponse answer_tokenize(std::string_view body, const PrepareContext& context) {
  return answer(body, context, tokenize);
}
HttpResponse answer_detokenize(std::string_view body, const PrepareContext& context) {
  return answer(body, context, detokenize);
}
HttpResponse answer_apply_template(std::string_view body, const PrepareContext& context) {
  return answer(body, context, apply_template);
}

}  // namespace tessera::server
