// Chat templates of synthetic files: the families' turn formats, tools and reasoning, in few lines.
// All white space that counts is inside string literals, so block trimming changes nothing.
#include "model/synth/vocabulary.h"

namespace tessera::synth {
namespace {

// Turns between <|im_start|> and <|im_end|>; tool calls as XML-like parameters.
constexpr std::string_view kQwen35Template = R"jinja(
{%- set lead = messages[0].content if messages[0].role == 'system' else '' -%}
{%- if tools or lead -%}
  {{- '<|im_start|>system\n' -}}
  {%- if tools -%}
    {{- '# Tools\n\nThe functions that may be called, one JSON schema a line:\n<tools>\n' -}}
    {%- for tool in tools -%}
      {{- tool | tojson }}{{ '\n' -}}
    {%- endfor -%}
    {{- '</tools>\n\nWrite a call as\n<tool_call>\n<function=name>\n<parameter=key>\nvalue\n' -}}
    {{- '</parameter>\n</function>\n</tool_call>' -}}
    {{- '\n\n' if lead else '' -}}
  {%- endif -%}
  {{- lead + '<|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
  {%- if message.role == 'tool' -%}
    {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' -%}
      {{- '<|im_start|>user' -}}
    {%- endif -%}
    {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' -}}
    {%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}
      {{- '<|im_end|>\n' -}}
    {%- endif -%}
  {%- elif message.role != 'system' or not loop.first -%}
    {{- '<|im_start|>' + message.role + '\n' + (message.content or '') -}}
    {%- for call in message.tool_calls or [] -%}
      {%- set f = call.function if call.function is defined else call -%}
      {{- '\n<tool_call>\n<function=' + f.name + '>\n' -}}
      {%- for key, value in f.arguments | items -%}
        {{- '<parameter=' + key + '>\n' -}}
        {{- value if value is string else value | tojson -}}
        {{- '\n</parameter>\n' -}}
      {%- endfor -%}
      {{- '</function>\n</tool_call>' -}}
    {%- endfor -%}
    {{- '<|im_end|>\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\n<think>\n' -}}
  {%- if enable_thinking is defined and not enable_thinking -%}
    {{- '\n</think>\n\n' -}}
  {%- endif -%}
{%- endif -%}
)jinja";

// The same turns; tool calls as JSON; the model opens its own <think>.
constexpr std::string_view kQwen3Template = R"jinja(
{%- set lead = messages[0].content if messages[0].role == 'system' else '' -%}
{%- if tools or lead -%}
  {{- '<|im_start|>system\n' + lead -}}
  {%- if tools -%}
    {{- '\n\n' if lead else '' -}}
    {{- '# Tools\n\nThe functions that may be called, one JSON schema a line:\n<tools>\n' -}}
    {%- for tool in tools -%}
      {{- tool | tojson }}{{ '\n' -}}
    {%- endfor -%}
    {{- '</tools>\n\nWrite a call as\n<tool_call>\n' -}}
    {{- '{"name": "name", "arguments": {"key": "value"}}\n</tool_call>' -}}
  {%- endif -%}
  {{- '<|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
  {%- if message.role == 'tool' -%}
    {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' -%}
      {{- '<|im_start|>user' -}}
    {%- endif -%}
    {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' -}}
    {%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}
      {{- '<|im_end|>\n' -}}
    {%- endif -%}
  {%- elif message.role != 'system' or not loop.first -%}
    {{- '<|im_start|>' + message.role + '\n' + (message.content or '') -}}
    {%- for call in message.tool_calls or [] -%}
      {%- set f = call.function if call.function is defined else call -%}
      {{- '\n<tool_call>\n{"name": "' + f.name + '", "arguments": ' -}}
      {{- f.arguments | tojson -}}
      {{- '}\n</tool_call>' -}}
    {%- endfor -%}
    {{- '<|im_end|>\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\n' -}}
  {%- if enable_thinking is defined and not enable_thinking -%}
    {{- '<think>\n\n</think>\n\n' -}}
  {%- endif -%}
{%- endif -%}
)jinja";

// Turns as tag pairs; tool calls as key and value tags.
constexpr std::string_view kLagunaTemplate = R"jinja(
{{- '〈|EOS|〉' -}}
{%- set lead = messages[0].content if messages[0].role == 'system' else '' -%}
{%- if tools or lead -%}
  {{- '<system>' + lead -}}
  {%- if tools -%}
    {{- '\n\n### Tools\n\nThe functions that may be called, one JSON schema a line:\n' -}}
    {{- '<available_tools>\n' -}}
    {%- for tool in tools -%}
      {{- tool | tojson }}{{ '\n' -}}
    {%- endfor -%}
    {{- '</available_tools>' -}}
  {%- endif -%}
  {{- '</system>\n' -}}
{%- endif -%}
{%- for message in messages -%}
  {%- if message.role == 'tool' -%}
    {{- '<tool_response>' + message.content + '</tool_response>\n' -}}
  {%- elif message.role == 'assistant' -%}
    {{- '<assistant></think>' + (message.content or '') -}}
    {%- for call in message.tool_calls or [] -%}
      {%- set f = call.function if call.function is defined else call -%}
      {{- '<tool_call>' + f.name -}}
      {%- for key, value in f.arguments | items -%}
        {{- '<arg_key>' + key + '</arg_key><arg_value>' -}}
        {{- value if value is string else value | tojson -}}
        {{- '</arg_value>' -}}
      {%- endfor -%}
      {{- '</tool_call>' -}}
    {%- endfor -%}
    {{- '</assistant>\n' -}}
  {%- elif message.role != 'system' or not loop.first -%}
    {{- '<' + message.role + '>' + message.content + '</' + message.role + '>\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<assistant>' -}}
  {{- '</think>' if enable_thinking is defined and not enable_thinking else '<think>' -}}
{%- endif -%}
)jinja";

// Turns between <|turn> and <turn|>; tool calls and responses stay inside the model's turn.
constexpr std::string_view kGemma4Template = R"jinja(
{%- macro argument(value) -%}
  {%- if value is string -%}
    {{- '<|"|>' + value + '<|"|>' -}}
  {%- elif value is mapping -%}
    {{- '{' -}}
    {%- for key, item in value | dictsort -%}
      {{- key + ':' }}{{ argument(item) }}{{ '' if loop.last else ',' -}}
    {%- endfor -%}
    {{- '}' -}}
  {%- elif value is sequence -%}
    {{- '[' -}}
    {%- for item in value -%}
      {{- argument(item) }}{{ '' if loop.last else ',' -}}
    {%- endfor -%}
    {{- ']' -}}
  {%- else -%}
    {{- value | tojson -}}
  {%- endif -%}
{%- endmacro -%}
{{- bos_token -}}
{%- set has_lead = messages[0].role in ['system', 'developer'] -%}
{%- set lead = messages[0].content if has_lead else '' -%}
{%- set thinking = enable_thinking is defined and enable_thinking -%}
{%- if tools or lead or thinking -%}
  {{- '<|turn>system\n' }}{{ '<|think|>\n' if thinking else '' }}{{ lead -}}
  {%- for tool in tools or [] -%}
    {%- set f = tool.function if tool.function is defined else tool -%}
    {{- '<|tool>declaration:' + f.name }}{{ argument(f.parameters or {}) }}{{ '<tool|>' -}}
  {%- endfor -%}
  {{- '<turn|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
  {%- set more = not loop.last and messages[loop.index0 + 1].role == 'tool' -%}
  {%- if message.role == 'tool' -%}
    {{- '<|tool_response>response:' + (message.name or 'tool') + '{value:' -}}
    {{- argument(message.content) }}{{ '}<tool_response|>' -}}
  {%- elif loop.index0 > 0 or not has_lead -%}
    {%- set inside = loop.index0 > 0 and messages[loop.index0 - 1].role == 'tool' -%}
    {%- if not (inside and message.role == 'assistant') -%}
      {{- '<|turn>' + ('model' if message.role == 'assistant' else message.role) + '\n' -}}
    {%- endif -%}
    {{- message.content or '' -}}
    {%- for call in message.tool_calls or [] -%}
      {%- set f = call.function if call.function is defined else call -%}
      {{- '<|tool_call>call:' + f.name }}{{ argument(f.arguments) }}{{ '<tool_call|>' -}}
    {%- endfor -%}
    {{- '' if more else '<turn|>\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and messages[-1].role != 'tool' -%}
  {{- '<|turn>model\n' }}{{ '' if thinking else '<|channel>thought\n<channel|>' -}}
{%- endif -%}
)jinja";

}  // namespace

std::string_view chat_template(std::string_view architecture) {
  if (architecture == "laguna") return kLagunaTemplate;
  if (architecture == "gemma4") return kGemma4Template;
  if (architecture == "qwen3") return kQwen3Template;
  return kQwen35Template;
}

}  // namespace tessera::synth
