#include "model/synth.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "model/model.h"
#include "model/synth/vocabulary.h"
#include "text/jinja/template.h"
#include "text/tokenizer.h"

namespace tessera {
namespace {

// A file in the test's temporary folder that goes away with it.
class TempFile {
 public:
  explicit TempFile(const std::string& name)
      : path_(testing::TempDir() + "tessera_" + std::to_string(::getpid()) + "_" + name) {}
  ~TempFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

  std::string bytes() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

 private:
  std::string path_;
};

SynthOptions tiny(const std::string& family, const std::string& types = "q4_k_m") {
  return {.family = family, .preset = "tiny", .types = types};
}

struct Published {
  const char* family;
  std::size_t tensors;
  double gigabytes;  // of the q4_k_m file, 0 where none is known
};

TEST(SynthTensors, FullPresetsHaveThePublishedCounts) {
  const Published published[] = {{"qwen35moe", 733}, {"qwen35", 851},    {"laguna", 678},
                                 {"gemma4", 833},    {"gemma4moe", 658}, {"qwen3", 310}};
  for (const Published& model : published) {
    const auto tensors = synth_tensors({.family = model.family, .preset = "full"});
    ASSERT_TRUE(tensors.ok()) << tensors.error().message;
    EXPECT_EQ(tensors->size(), model.tensors) << model.family;
    std::set<std::string> names;
    for (const SynthTensor& tensor : *tensors) names.insert(tensor.name);
    EXPECT_EQ(names.size(), tensors->size()) << model.family;
  }
}

int count_type(const std::vector<SynthTensor>& tensors, BlockType type) {
  return static_cast<int>(std::ranges::count(tensors, type, &SynthTensor::type));
}

TEST(SynthTensors, FullPresetsHaveThePublishedTypes) {
  const auto qwen = synth_tensors({.family = "qwen35moe", .preset = "full"});
  EXPECT_EQ(count_type(*qwen, BlockType::F32), 301);
  const auto laguna = synth_tensors({.family = "laguna", .preset = "full"});
  EXPECT_EQ(count_type(*laguna, BlockType::F32), 239);
  EXPECT_EQ(count_type(*laguna, BlockType::Q4_K), 379);
  EXPECT_EQ(count_type(*laguna, BlockType::Q6_K), 60);
  const auto gemma = synth_tensors({.family = "gemma4", .preset = "full"});
  EXPECT_EQ(count_type(*gemma, BlockType::F32), 422);
  const auto moe = synth_tensors({.family = "gemma4moe", .preset = "full"});
  EXPECT_EQ(count_type(*moe, BlockType::F32), 392);
  EXPECT_GT(count_type(*moe, BlockType::Q5_0), 0);  // rows of 704 and 2112
  EXPECT_GT(count_type(*moe, BlockType::Q8_0), 0);
  const auto qwen3 = synth_tensors({.family = "qwen3", .preset = "full", .types = "q8_0"});
  EXPECT_EQ(count_type(*qwen3, BlockType::F32), 113);
  EXPECT_EQ(count_type(*qwen3, BlockType::Q8_0), 197);
}

TEST(SynthTensors, MtpBlockAddsItsTensors) {
  SynthOptions options{.family = "qwen35moe", .preset = "full"};
  options.overrides = {"block_count=41", "nextn_predict_layers=1"};
  const auto tensors = synth_tensors(options);
  ASSERT_TRUE(tensors.ok()) << tensors.error().message;
  EXPECT_EQ(tensors->size(), 753u);
}

TEST(SynthOverrides, AreCheckedAndNamed) {
  const auto error = [](std::vector<std::string> overrides) {
    SynthOptions options{.family = "qwen35moe", .preset = "tiny"};
    options.overrides = std::move(overrides);
    const auto tensors = synth_tensors(options);
    return tensors.ok() ? std::string() : tensors.error().message;
  };
  EXPECT_EQ(error({"block_count=12", "expert_count=96", "qwen35moe.vocab_size=65536"}), "");
  EXPECT_NE(error({"expert_cout=96"}).find("nearest is expert_count"), std::string::npos);
  EXPECT_NE(error({"block_count"}).find("key=value"), std::string::npos);
  EXPECT_NE(error({"block_count=many"}).find("integer"), std::string::npos);
  EXPECT_NE(error({"block_count="}).find("left out"), std::string::npos);
  EXPECT_NE(error({"block_count=0"}).find("block_count"), std::string::npos);
  EXPECT_NE(error({"embedding_length=0"}).find("extent of 0"), std::string::npos);
  EXPECT_NE(error({"ssm.time_step_rank=0"}).find("ssm.inner_size"), std::string::npos);
  EXPECT_NE(error({"embedding_length=1073741824", "expert_feed_forward_length=1073741824",
                   "expert_count=1073741824"})
                .find("too large"),
            std::string::npos);
  EXPECT_FALSE(synth_tensors({.family = "llama"}).ok());
  EXPECT_FALSE(synth_tensors({.preset = "huge"}).ok());
  EXPECT_FALSE(synth_tensors({.types = "q3"}).ok());
}

TEST(SynthOverrides, ThatContradictEachOtherLeaveNoFile) {
  const TempFile file("contradiction.gguf");
  SynthOptions options = tiny("qwen3");
  options.overrides = {"attention.head_count_kv=3"};
  const Status status = write_synthetic_model(options, file.path());
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("head_count_kv"), std::string::npos);
  EXPECT_FALSE(std::ifstream(file.path()).good());
}

class SynthFamily : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, SynthFamily, testing::ValuesIn(synth_families()),
                         [](const auto& info) { return info.param; });

TEST_P(SynthFamily, OpensInEveryTypeMix) {
  for (const char* types : {"q4_k_m", "q8_0", "bf16", "f32"}) {
    const TempFile file(GetParam() + types);
    const SynthOptions options = tiny(GetParam(), types);
    const Status status = write_synthetic_model(options, file.path());
    ASSERT_TRUE(status.ok()) << types << ": " << status.error().message;
    const auto model = Model::open(file.path());
    ASSERT_TRUE(model.ok()) << types << ": " << model.error().message;
    EXPECT_LE(model->ignored_tensors(), 1);  // rope_freqs
    EXPECT_EQ(model->file().tensors().size(), synth_tensors(options)->size());
  }
}

double mean_square(const TensorSlice& slice) {
  std::vector<float> row(static_cast<std::size_t>(slice.cols));
  double sum = 0;
  for (std::int64_t r = 0; r < slice.rows; ++r) {
    dequantize_row(slice.type, slice.data + r * slice.row_stride, slice.cols, row.data());
    for (const float v : row) {
      EXPECT_TRUE(std::isfinite(v));
      sum += static_cast<double>(v) * static_cast<double>(v);
    }
  }
  return sum / static_cast<double>(slice.rows * slice.cols);
}

TEST_P(SynthFamily, LogitsAndNormsHaveTheirScale) {
  const TempFile file(GetParam() + "scale");
  ASSERT_TRUE(write_synthetic_model(tiny(GetParam()), file.path()).ok());
  const auto model = Model::open(file.path());
  ASSERT_TRUE(model.ok()) << model.error().message;
  const TensorSlice* head = model->find(TensorRole::output);
  if (head == nullptr) head = model->find(TensorRole::token_embd);
  const double logit_std = std::sqrt(mean_square(*head) * static_cast<double>(head->cols));
  EXPECT_GT(logit_std, 2.0);
  EXPECT_LT(logit_std, 3.0);
  const double norm = mean_square(*model->find(TensorRole::output_norm));
  EXPECT_NEAR(norm, 13.0 / 12, 0.15);
  for (const TensorSlice& slice : model->tensors()) {
    if (slice.role != TensorRole::gdn_a) continue;
    const auto* values = reinterpret_cast<const float*>(slice.data);
    for (std::int64_t i = 0; i < slice.cols; ++i) EXPECT_LT(values[i], 0.0f);
  }
}

TEST_P(SynthFamily, TokenizerRoundTrips) {
  const TempFile file(GetParam() + "tokens");
  SynthOptions options = tiny(GetParam());
  options.overrides = {"vocab_size=2048"};
  ASSERT_TRUE(write_synthetic_model(options, file.path()).ok());
  const auto model = Model::open(file.path());
  ASSERT_TRUE(model.ok()) << model.error().message;
  auto spec = read_tokenizer_spec(model->file());
  ASSERT_TRUE(spec.ok()) << spec.error().message;
  EXPECT_EQ(spec->tokens.size(), 2048u);
  EXPECT_FALSE(spec->chat_template.empty());
  const std::size_t merges = spec->merges.size();
  EXPECT_GT(merges, 1000u);
  const auto tokenizer = text::Tokenizer::create(*std::move(spec));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  const std::string text = "The quick brown fox, 42 bananas\n\n  and \t a d\u00e9j\u00e0 vu!";
  const auto ids = tokenizer->encode(text);
  EXPECT_EQ(tokenizer->decode(ids), text);
  EXPECT_LT(ids.size(), text.size());
  EXPECT_LE(tokenizer->encode("kibovu").size(), 3u);
}

std::string render(std::string_view architecture, bool tools) {
  using Json = nlohmann::ordered_json;
  const Json messages = Json::parse(R"([
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "", "tool_calls": [
      {"function": {"name": "weather", "arguments": {"city": "Rome", "days": 2}}}]},
    {"role": "tool", "name": "weather", "content": "sunny"}])");
  const Json tool_list = Json::parse(R"([{"type": "function", "function": {"name": "weather",
    "parameters": {"type": "object"}}}])");
  const Json yes = true;
  const auto parsed = jinja::Template::parse(synth::chat_template(architecture));
  if (!parsed) return parsed.error().message;
  jinja::Inputs inputs;
  inputs.data.emplace_back("messages", &messages);
  inputs.data.emplace_back("add_generation_prompt", &yes);
  if (tools) inputs.data.emplace_back("tools", &tool_list);
  inputs.trusted.emplace_back("bos_token", "<bos>");
  const auto segments = parsed->render(inputs);
  return segments ? jinja::concatenated(*segments) : segments.error().message;
}

TEST(SynthTemplate, RendersTheFamilysTurns) {
  EXPECT_EQ(render("qwen35moe", false),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWeather?<|im_end|>\n"
            "<|im_start|>assistant\n\n<tool_call>\n<function=weather>\n<parameter=city>\nRome\n"
            "</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call><|im_end|>\n"
            "<|im_start|>user\n<tool_response>\nsunny\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\n<think>\n");
  EXPECT_EQ(render("laguna", false),
            "〈|EOS|〉<system>Be brief.</system>\n<user>Weather?</user>\n<assistant></think>"
            "<tool_call>weather<arg_key>city</arg_key><arg_value>Rome</arg_value><arg_key>days"
            "</arg_key><arg_value>2</arg_value></tool_call></assistant>\n"
            "<tool_response>sunny</tool_response>\n<assistant><think>");
  EXPECT_EQ(render("gemma4", false),
            "<bos><|turn>system\nBe brief.<turn|>\n<|turn>user\nWeather?<turn|>\n<|turn>model\n"
            "<|tool_call>call:weather{city:<|\"|>Rome<|\"|>,days:2}<tool_call|>"
            "<|tool_response>response:weather{value:<|\"|>sunny<|\"|>}<tool_response|>");
  EXPECT_NE(
      render("qwen3", false).find("{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\""),
      std::string::npos)
      << render("qwen3", false);
  for (const char* architecture : {"qwen35", "qwen3", "laguna", "gemma4"}) {
    EXPECT_NE(render(architecture, true).find("weather"), std::string::npos);
    EXPECT_NE(render(architecture, true).find("object"), std::string::npos)
        << render(architecture, true);
  }
}

TEST(Synth, SameBytesWhateverTheThreads) {
  const TempFile one("one"), three("three"), other("other");
  SynthOptions options = tiny("qwen35moe");
  options.threads = 1;
  ASSERT_TRUE(write_synthetic_model(options, one.path()).ok());
  options.threads = 3;
  std::int64_t reported = 0;
  ASSERT_TRUE(write_synthetic_model(options, three.path(), [&](std::int64_t done, std::int64_t) {
                reported = done;
              }).ok());
  options.seed = 2;
  ASSERT_TRUE(write_synthetic_model(options, other.path()).ok());
  EXPECT_EQ(one.bytes(), three.bytes());
  EXPECT_NE(one.bytes(), other.bytes());
  const auto tensors = synth_tensors(options);
  ASSERT_TRUE(tensors.ok());
  std::int64_t total = 0;
  for (const SynthTensor& tensor : *tensors) total += tensor.bytes;
  EXPECT_EQ(reported, total);
}

TEST(Synth, MiniIsTheAgreedModel) {
  const auto tensors = synth_tensors({.family = "qwen35moe", .preset = "mini"});
  ASSERT_TRUE(tensors.ok());
  const auto shape = [&](const std::string& name) {
    for (const SynthTensor& tensor : *tensors) {
      if (tensor.name == name) return tensor.ne;
    }
    return std::vector<std::int64_t>{};
  };
  using Ne = std::vector<std::int64_t>;
  EXPECT_EQ(shape("token_embd.weight"), (Ne{1024, 32768}));
  EXPECT_EQ(shape("blk.0.attn_qkv.weight"), (Ne{1024, 4096}));
  EXPECT_EQ(shape("blk.0.ssm_alpha.weight"), (Ne{1024, 16}));
  EXPECT_EQ(shape("blk.3.attn_q.weight"), (Ne{1024, 2048}));
  EXPECT_EQ(shape("blk.7.attn_k.weight"), (Ne{1024, 256}));
  EXPECT_EQ(shape("blk.7.ffn_gate_exps.weight"), (Ne{1024, 256, 64}));
  EXPECT_EQ(shape("blk.7.ffn_down_shexp.weight"), (Ne{256, 1024}));
  EXPECT_TRUE(shape("blk.8.attn_norm.weight").empty());
}

}  // namespace
}  // namespace tessera
