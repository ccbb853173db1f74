#include "model/drafter.h"

#include <gtest/gtest.h>

#include "model/test_edit.h"

namespace tessera {
namespace {

const std::string kDrafter = TESSERA_SOURCE_DIR "/models/tessera-mini-dflash.gguf";

const ModelSpec& target() {
  static const ModelSpec kSpec =
      Model::open(TESSERA_SOURCE_DIR "/models/tessera-mini.gguf")->spec();
  return kSpec;
}

Result<DrafterSpec> read(const std::string& path, const ModelSpec& of = target()) {
  TESSERA_ASSIGN(const gguf::File file, gguf::File::open(path));
  return read_drafter(file, of);
}

TEST(Drafter, IsReadFromItsFile) {
  const Result<DrafterSpec> spec = read(kDrafter);
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->n_layer, 3);
  EXPECT_EQ(spec->n_embd, 256);
  EXPECT_EQ(spec->n_ff, 768);
  EXPECT_EQ(spec->n_head, 4);
  EXPECT_EQ(spec->n_kv_head, 2);
  EXPECT_EQ(spec->key_dim, 64);
  EXPECT_EQ(spec->value_dim, 64);
  EXPECT_EQ(spec->block_rows, 16);
  EXPECT_EQ(spec->captures, 3);
  // Q8_0 takes 34 bytes for 32 elements; norms are f32.
  const std::int64_t matrices = 768 * 256 + 3 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 768);
  const std::int64_t norms = 2 * 256 + 3 * (2 * 256 + 2 * 64);
  EXPECT_EQ(spec->weight_bytes, matrices / 32 * 34 + norms * 4);
}

TEST(Drafter, IsNoModelByItself) {
  const Result<Model> model = Model::open(kDrafter);
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, ErrorCode::unsupported);
  EXPECT_NE(model.error().message.find("this is a drafter"), std::string::npos)
      << model.error().message;
}

TEST(Drafter, IsRefusedWhereItDoesNotBelong) {
  const Result<DrafterSpec> model = read(golden_path("qwen3"));
  ASSERT_FALSE(model);
  EXPECT_NE(model.error().message.find("no drafter"), std::string::npos) << model.error().message;
  const Result<DrafterSpec> of_another =
      read(kDrafter, Model::open(golden_path("qwen35moe"))->spec());
  ASSERT_FALSE(of_another);
  EXPECT_NE(of_another.error().message.find("dflash.embedding_length: 256"), std::string::npos)
      << of_another.error().message;
}

void expect_refused(EditedFile& file, const std::string& part) {
  ASSERT_TRUE(file.write());
  const Result<DrafterSpec> spec = read(file.path());
  ASSERT_FALSE(spec) << part;
  EXPECT_EQ(spec.error().code, ErrorCode::invalid);
  EXPECT_NE(spec.error().message.find(part), std::string::npos) << spec.error().message;
}

TEST(Drafter, NumbersAndTensorsAreChecked) {
  for (const char* key :
       {"block_count", "feed_forward_length", "attention.head_count", "attention.head_count_kv",
        "attention.key_length", "attention.value_length", "block_size"})
    for (const std::uint32_t value : {0u, 3000000000u})
      expect_refused(EditedFile(kDrafter).set(std::string("dflash.") + key, value), key);
  for (const std::vector<std::int32_t>& layers : std::vector<std::vector<std::int32_t>>{
           {}, {0, 2, 4}, {2, 2, 4}, {4, 2, 6}, {2, 4, 1000000}, {-2, 4, 6}})
    expect_refused(EditedFile(kDrafter).set_array("dflash.target_layers", layers), "target_layers");
  expect_refused(
      EditedFile(kDrafter).set_array("dflash.target_layers", std::vector<std::int32_t>{2, 4}),
      "fc.weight: 256 rows of 768, where 256 of 512");
  expect_refused(EditedFile(kDrafter).drop_tensor("blk.2.ffn_down.weight"),
                 "blk.2.ffn_down.weight");
  expect_refused(EditedFile(kDrafter).set("dflash.block_count", std::uint32_t{4}),
                 "blk.3.attn_norm.weight");
}

}  // namespace
}  // namespace tessera
