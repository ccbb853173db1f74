#include "device/cpu/kv_layout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "quant/half.h"

namespace tessera::cpu {
namespace {

std::size_t to_index(int value) {
  return static_cast<std::size_t>(value);
}

// One element as the header describes its place.
float read(const KvGeometry& g, const std::byte* page, bool key, int head, int token, int dim) {
  const std::size_t width = to_index(key ? g.head_dim_k : g.head_dim_v);
  const std::byte* part = page + (key ? kv_k_offset(g, head) : kv_v_offset(g, head));
  const std::size_t at =
      key ? to_index(dim) * 64 + to_index(token) : to_index(token) * width + to_index(dim);
  if (g.type == KvType::f16) return load_half(part + 2 * at);
  if (g.type == KvType::f32) {
    float value;
    std::memcpy(&value, part + 4 * at, 4);
    return value;
  }
  const std::size_t group = to_index(dim) / 32;
  const std::size_t scale =
      key ? group * 64 + to_index(token) : to_index(token) * (width / 32) + group;
  return static_cast<float>(static_cast<signed char>(part[at])) *
         load_half(part + width * 64 + 2 * scale);
}

TEST(KvLayout, StoresEveryElementWhereTheHeaderSays) {
  std::mt19937 engine(3);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  for (const KvType type : {KvType::f16, KvType::f32, KvType::q8_0}) {
    const KvGeometry g{3, 64, 96, type};
    const std::size_t bytes = kv_layer_page_bytes(g);
    EXPECT_EQ(bytes % 64, 0u);
    std::vector<std::byte> page(bytes + 64, std::byte{0xff});
    std::vector<std::vector<float>> keys, values;
    for (int t = 0; t < 64; ++t) {
      std::vector<float> k(3 * 64), v(3 * 96);
      for (float& x : k) x = normal(engine);
      for (float& x : v) x = normal(engine);
      if (t == 5) std::fill(k.begin(), k.begin() + 32, 0.0f);
      store_kv(g, page.data(), t, k.data(), v.data());
      keys.push_back(k);
      values.push_back(v);
    }
    const float relative = type == KvType::f32 ? 0.0f : type == KvType::f16 ? 5e-4f : 0.0f;
    const float absolute = type == KvType::q8_0 ? 0.05f : 0.0f;
    for (int t = 0; t < 64; ++t) {
      for (int h = 0; h < 3; ++h) {
        for (int d = 0; d < 64; ++d) {
          const float x = keys[to_index(t)][to_index(h * 64 + d)];
          ASSERT_NEAR(read(g, page.data(), true, h, t, d), x, relative * std::fabs(x) + absolute);
        }
        for (int d = 0; d < 96; ++d) {
          const float x = values[to_index(t)][to_index(h * 96 + d)];
          ASSERT_NEAR(read(g, page.data(), false, h, t, d), x, relative * std::fabs(x) + absolute);
        }
      }
    }
    for (std::size_t i = bytes; i < page.size(); ++i) EXPECT_EQ(page[i], std::byte{0xff});
  }
}

TEST(KvLayout, BytesPerToken) {
  EXPECT_EQ(kv_layer_page_bytes({2, 256, 256, KvType::f16}), 64u * 2 * 512 * 2);
  EXPECT_EQ(kv_layer_page_bytes({2, 256, 256, KvType::q8_0}), 64u * 2 * 512 * 34 / 32);
}

TEST(KvLayout, RefusesHeadDimensionsItCannotHold) {
  EXPECT_TRUE(validate({8, 128, 128, KvType::f16}).ok());
  EXPECT_TRUE(validate({1, 16, 48, KvType::f32}).ok());
  EXPECT_FALSE(validate({0, 128, 128, KvType::f16}).ok());
  EXPECT_FALSE(validate({1, 24, 128, KvType::f16}).ok());
  EXPECT_FALSE(validate({1, 128, 48, KvType::q8_0}).ok());
  EXPECT_FALSE(validate({1, -16, 16, KvType::f16}).ok());
}

}  // namespace
}  // namespace tessera::cpu
