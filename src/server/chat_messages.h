// The canonical form of a conversation: what every chat template is given.
//
// Roles are system, user, assistant and tool (developer becomes system, function becomes tool).
// `content` is always a string: parts are joined, null is empty. An assistant's `tool_calls` have
// arguments as objects where they parse as such; its reasoning is in `reasoning_content`. Order of
// keys and of tools is the client's, so that equal conversations render to equal prefixes.
#pragma once

#include "server/fields.h"

namespace tessera::server {

// Failures are left in `fields`.
Json read_messages(FieldReader& fields);
Json read_tools(FieldReader& fields, int most);

}  // namespace tessera::server
