#include "base/read_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace tessera {
namespace {

TEST(ReadFile, ReadsAllOrSaysWhyNot) {
  const std::string path = ::testing::TempDir() + "read_file_test";
  for (const std::size_t size : {0u, 1u, 65535u, 65536u, 65537u, 200000u}) {
    std::string written(size, 'x');
    for (std::size_t i = 0; i < size; ++i) written[i] = static_cast<char>(i % 251);
    std::ofstream(path, std::ios::binary) << written;
    const Result<std::string> all = read_file(path, size);
    ASSERT_TRUE(all) << all.error().message;
    EXPECT_TRUE(*all == written) << size;
    if (size == 0) continue;
    const Result<std::string> longer = read_file(path, size - 1);
    ASSERT_FALSE(longer);
    EXPECT_EQ(longer.error().code, ErrorCode::invalid);
  }
  std::filesystem::remove(path);
  for (const std::string& none : {path, ::testing::TempDir(), std::string("/proc/self/mem")}) {
    const Result<std::string> text = read_file(none, 100);
    ASSERT_FALSE(text) << none;
    EXPECT_EQ(text.error().code, ErrorCode::io);
    EXPECT_NE(text.error().message.find(none), std::string::npos) << text.error().message;
  }
}

TEST(ReadFile, WhatHasNoEndIsLeft) {
  const Result<std::string> text = read_file("/dev/zero", 100000);
  ASSERT_FALSE(text);
  EXPECT_NE(text.error().message.find("/dev/zero: longer than"), std::string::npos);
}

}  // namespace
}  // namespace tessera
