// The bodies of /tokenize, /detokenize and /apply-template. Called on worker threads.
#pragma once

#include "server/prepare.h"

namespace tessera::server {

HttpResponse answer_tokenize(std::string_view body, const PrepareContext& context);
HttpResponse answer_detokenize(std::string_view body, const PrepareContext& context);
HttpResponse answer_apply_template(std::string_view body, const PrepareContext& context);

HttpResponse json_response(const Json& body, int status = 200);

}  // namespace tessera::server
