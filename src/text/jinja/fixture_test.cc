// The fixtures made with Python's jinja2 (tests/tools/make_template_fixtures.py): equal bytes where
// it gives text, an error where it raises.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "text/jinja/template.h"

namespace tessera::jinja {
namespace {

using nlohmann::ordered_json;
using namespace std::chrono_literals;

std::string read_file(const std::string& name) {
  std::ifstream file(std::string(TESSERA_SOURCE_DIR "/tests/data/templates/") + name);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

ordered_json fixture(const std::string& name) {
  return ordered_json::parse(read_file(name));
}

RenderOptions options() {
  RenderOptions out;
  out.now = std::chrono::sys_days(2024y / std::chrono::July / 26);
  return out;
}

Result<std::string> render_text(std::string_view source, const ordered_json& variables,
                                const ordered_json& trusted = ordered_json::object()) {
  TESSERA_ASSIGN(const Template compiled, Template::parse(source));
  Inputs inputs;
  for (const auto& [name, value] : variables.items()) inputs.data.emplace_back(name, &value);
  for (const auto& [name, value] : trusted.items())
    inputs.trusted.emplace_back(name, value.get<std::string>());
  TESSERA_ASSIGN(const std::vector<Segment> segments, compiled.render(inputs, options()));
  return concatenated(segments);
}

void expect_like_python(const ordered_json& expected, const Result<std::string>& got) {
  if (expected.contains("text")) {
    ASSERT_TRUE(got.ok()) << got.error().message;
    EXPECT_EQ(*got, expected["text"].get<std::string>());
  } else {
    ASSERT_FALSE(got.ok()) << "Python raised " << expected["error"] << ", got: " << *got;
    EXPECT_EQ(got.error().message.find('\n'), std::string::npos);
    EXPECT_TRUE(got.error().message.starts_with("chat template line ")) << got.error().message;
  }
}

TEST(JinjaFixtures, SmallTemplates) {
  const ordered_json document = fixture("micro.json");
  EXPECT_GE(document["cases"].size(), 250u);
  for (const ordered_json& expected : document["cases"]) {
    SCOPED_TRACE(expected["template"].get<std::string>());
    expect_like_python(expected,
                       render_text(expected["template"].get<std::string>(), document["variables"]));
  }
}

class PublishedTemplate : public testing::TestWithParam<const char*> {};

TEST_P(PublishedTemplate, RendersLikePython) {
  const std::string name = GetParam();
  const std::string source = read_file(name + ".jinja");
  const ordered_json document = fixture(name + ".json");
  EXPECT_GE(document["cases"].size(), 60u);
  for (const ordered_json& expected : document["cases"]) {
    SCOPED_TRACE(expected["name"].get<std::string>());
    expect_like_python(expected, render_text(source, expected["variables"], document["tokens"]));
  }
}

INSTANTIATE_TEST_SUITE_P(All, PublishedTemplate,
                         testing::Values("Qwen-Qwen3-0.6B", "Qwen3.5-4B", "google-gemma-4-31B-it",
                                         "poolside-Laguna-XS.2"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           for (char& c : name)
                             if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
                           return name;
                         });

}  // namespace
}  // namespace tessera::jinja
