// The bundled model's card as data says what its files and its scores say: files that were swapped
// without their figures, or figures without their files, are seen.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <toml++/toml.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tests/cli/program.h"

namespace tessera::testing {
namespace {

const std::filesystem::path kModels = TESSERA_SOURCE_DIR "/models";

std::string content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string sha256(const std::string& data) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned length = 0;
  EXPECT_EQ(EVP_Digest(data.data(), data.size(), digest.data(), &length, EVP_sha256(), nullptr), 1);
  return fmt::format("{:02x}", fmt::join(digest.begin(), digest.begin() + length, ""));
}

struct Card {
  toml::table card = toml::parse(content(kModels / "tessera-mini.toml"));
  nlohmann::json scores = nlohmann::json::parse(content(kModels / "measured/scores.json"));
};

TEST(BundledCard, NamesFilesOfItsSizes) {
  const Card c;
  for (const char* part : {"model", "drafter"}) {
    const auto name = c.card[part]["file"].value<std::string>();
    ASSERT_TRUE(name) << part;
    EXPECT_EQ(static_cast<std::uintmax_t>(c.card[part]["bytes"].value_or<std::int64_t>(0)),
              std::filesystem::file_size(kModels / *name));
  }
}

nlohmann::json inspected(const std::string& file) {
  const Outcome outcome = run_program({{"inspect", kModels / file, "--json"}});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return nlohmann::json::parse(outcome.out);
}

// What the recipe's own writer wrote, read back by the program.
TEST(BundledCard, IsReadAsWritten) {
  const Card c;
  const auto model = inspected("tessera-mini.gguf"),
             drafter = inspected("tessera-mini-dflash.gguf");
  const auto& of_model = model.at("metadata");
  const auto& of_drafter = drafter.at("metadata");
  EXPECT_EQ(of_model.at("general.architecture"), c.card["model"]["architecture"].value_or(""));
  EXPECT_EQ(of_model.at("qwen35moe.context_length"), c.card["model"]["context"].value_or(0));
  std::int64_t parameters = 0;
  std::set<std::string> formats;
  for (const auto& tensor : model.at("tensors")) {
    std::int64_t n = 1;
    for (const auto& size : tensor.at("shape")) n *= size.get<std::int64_t>();
    parameters += n;
    formats.insert(tensor.at("type"));
  }
  EXPECT_EQ(parameters, c.card["model"]["parameters"].value_or<std::int64_t>(0));
  for (const std::string& format : formats)
    EXPECT_NE(c.card["model"]["formats"].value_or(std::string()).find(format), std::string::npos)
        << format;

  EXPECT_EQ(of_drafter.at("general.architecture"), c.card["drafter"]["architecture"].value_or(""));
  EXPECT_EQ(of_drafter.at("dflash.block_size"), c.card["drafter"]["block"].value_or(0));
  // The file counts a layer by its input, the card by its output.
  std::vector<int> captures;
  for (const int layer : of_drafter.at("dflash.target_layers")) captures.push_back(layer - 1);
  std::vector<int> said;
  for (const auto& layer : *c.card["drafter"]["captures"].as_array())
    said.push_back(layer.value_or(-1));
  EXPECT_EQ(captures, said);
}

TEST(BundledCard, WhatWasMeasuredIsOfTheseFiles) {
  std::map<std::string, std::string> found;
  for (const char* name :
       {"tessera-mini.gguf", "tessera-mini-dflash.gguf", "tessera-mini.spark.csv"})
    found[name] = sha256(content(kModels / name));
  std::set<std::string> named;
  for (const char* name : {"scores", "acceptance", "served", "agreement", "routing"}) {
    const auto measured =
        nlohmann::json::parse(content(kModels / "measured" / (std::string(name) + ".json")));
    ASSERT_TRUE(measured.contains("sha256")) << name;
    EXPECT_TRUE(measured["sha256"].contains("tessera-mini.gguf")) << name;
    for (const auto& [file, digest] : measured["sha256"].items()) {
      EXPECT_EQ(found[file], digest) << name << " of " << file;
      named.insert(file);
    }
  }
  EXPECT_EQ(named.size(), found.size());
}

TEST(BundledCard, HoldsTheMeasuredScores) {
  const Card c;
  const toml::table* said = c.card["scores"].as_table();
  ASSERT_TRUE(said);
  EXPECT_EQ(said->size(), c.scores["scores"].size());
  for (const auto& [task, score] : c.scores["scores"].items())
    for (const std::size_t i : {0U, 1U})
      EXPECT_EQ((*said)[task][i].value_or(-1), score["quantised"][i].get<int>()) << task;
}

}  // namespace
}  // namespace tessera::testing
