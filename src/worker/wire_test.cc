#include "worker/wire.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>

#include "worker/byte_codec.h"
#include "worker/crc32c.h"
#include "worker/job_layout.h"
#include "worker/messages.h"

namespace tessera::worker {
namespace {

using Raw = std::array<std::byte, kHeaderBytes>;

Raw encoded_header(const FrameHeader& header) {
  Raw raw;
  encode_header(header, raw);
  return raw;
}

void reseal(Raw& raw) {
  store_le(raw.data() + 60, crc32c(std::span(raw).first<60>()));
}

std::string to_hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte b : bytes) text += fmt::format("{:02x}", static_cast<int>(b));
  return text;
}

const FrameHeader kExperts{.version = kVersionMax,
                           .op = Op::compute_experts,
                           .sequence = 0x0102030405060708,
                           .body_bytes = 2 * 8 + 3 * 64 * 2,
                           .layer = 4,
                           .rows = 3,
                           .items = 2,
                           .in_type = WireType::bf16,
                           .out_type = WireType::f32,
                           .deadline_us = 50000,
                           .body_sum = 9};

const WireLimits kWireLimits{.version = kVersionMax,
                             .n_layer = 5,
                             .n_embd = 64,
                             .n_vocab = 1000,
                             .n_expert = 8,
                             .max_rows = 16,
                             .max_logit_rows = 2,
                             .max_pairs = 32,
                             .max_page_changes = 4,
                             .in_types = kFloatTypes,
                             .out_types = type_bit(WireType::f32)};

TEST(Crc32c, PublishedValues) {
  const std::string digits = "123456789";
  EXPECT_EQ(crc32c(std::as_bytes(std::span(digits))), 0xe3069283u);
  std::array<std::byte, 32> block{};  // RFC 3720, B.4
  EXPECT_EQ(crc32c(block), 0x8a9136aau);
  block.fill(std::byte{0xff});
  EXPECT_EQ(crc32c(block), 0x62a8ab43u);
  for (std::size_t i = 0; i < block.size(); ++i) block[i] = static_cast<std::byte>(i);
  EXPECT_EQ(crc32c(block), 0x46dd794eu);
}

TEST(Crc32c, IsTheSameByInstructionAndByTable) {
  std::vector<std::byte> bytes(100);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37 + 11);
  for (std::size_t n = 0; n <= bytes.size(); ++n)
    EXPECT_EQ(crc32c(std::span(bytes).first(n)), crc32c_by_table(std::span(bytes).first(n))) << n;
}

TEST(Wire, GoldenHeader) {
  EXPECT_EQ(to_hex(encoded_header(kExperts)),
            "54535750"  // magic
            "0a00"
            "2000"              // version, op
            "0807060504030201"  // sequence
            "9001000000000000"  // body bytes
            "00000000"          // reserved
            "0400"
            "0000"  // layer, flags
            "03000000"
            "02000000"  // rows, items
            "03"
            "01"
            "0000"      // types, status
            "50c30000"  // deadline
            "00000000"
            "00000000"
            "09000000"  // the body's checksum
            "0caa0387");
}

TEST(Wire, RoundTripsEveryOp) {
  std::mt19937_64 random(1);
  for (int op = 0; op < 80; ++op) {
    FrameHeader header{.op = static_cast<Op>(op),
                       .sequence = random(),
                       .body_bytes = random(),
                       .layer = static_cast<std::uint16_t>(random()),
                       .flags = kFlagHead,
                       .rows = static_cast<std::uint32_t>(random()),
                       .items = static_cast<std::uint32_t>(random()),
                       .in_type = WireType::f16,
                       .out_type = WireType::bf16,
                       .status = JobStatus::failed,
                       .deadline_us = static_cast<std::uint32_t>(random()),
                       .queue_us = static_cast<std::uint32_t>(random()),
                       .compute_us = static_cast<std::uint32_t>(random()),
                       .body_sum = static_cast<std::uint32_t>(random())};
    const Result<FrameHeader> decoded = decode_header(encoded_header(header));
    ASSERT_TRUE(decoded.ok()) << decoded.error().message;
    EXPECT_EQ(*decoded, header);
  }
}

TEST(Wire, EveryFlippedBitIsFound) {
  const Raw good = encoded_header(kExperts);
  for (std::size_t bit = 0; bit < 8 * kHeaderBytes; ++bit) {
    Raw raw = good;
    raw[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    EXPECT_FALSE(decode_header(raw).ok()) << bit;
  }
}

TEST(Wire, RefusesValuesThatDoNotExist) {
  for (const auto& [at, value] :
       {std::pair{40, 4}, {40, 6}, {41, 6}, {42, 4}, {43, 1}, {30, 4}, {31, 1}, {24, 1}, {27, 1}}) {
    Raw raw = encoded_header(kExperts);
    raw[static_cast<std::size_t>(at)] = static_cast<std::byte>(value);
    reseal(raw);
    EXPECT_FALSE(decode_header(raw).ok()) << at;
  }
}

TEST(Wire, HoldsJobsAgainstLimits) {
  EXPECT_TRUE(check_frame(kExperts, kWireLimits).ok());
  const auto refused = [](auto change) {
    FrameHeader header = kExperts;
    change(header);
    return !check_frame(header, kWireLimits).ok();
  };
  EXPECT_TRUE(refused([](FrameHeader& h) { h.body_bytes += 1; }));
  EXPECT_TRUE(refused([](FrameHeader& h) { h.body_bytes = ~std::uint64_t{0}; }));
  EXPECT_TRUE(refused([](FrameHeader& h) { h.rows = 0; }));
  EXPECT_TRUE(refused([](FrameHeader& h) { h.rows = 17; }));
  EXPECT_TRUE(refused([](FrameHeader& h) { h.rows = 0xffffffff; }));
  EXPECT_TRUE(refused([](FrameHeader& h) { h.items = 33; }));
  EXPECT_TRUE(refused([](FrameHeader& h) { h.layer = 5; }));
  EXPECT_TRUE(refused([](FrameHeader& h) { h.layer = kNoLayer; }));
  EXPECT_TRUE(refused([](FrameHeader& h) { h.in_type = WireType::none; }));
  EXPECT_TRUE(refused([](FrameHeader& h) { h.out_type = WireType::f16; }));
  EXPECT_TRUE(refused([](FrameHeader& h) { h.version = 4; }));
  EXPECT_FALSE(check_frame(kExperts, WireLimits{}).ok());  // before the handshake
}

TEST(Wire, HoldsForwardAgainstLimits) {
  FrameHeader header{.op = Op::forward_layers,
                     .layer = 0,
                     .rows = 4,
                     .in_type = WireType::f32,
                     .out_type = WireType::f32};
  header.body_bytes = forward_body_bytes(
      {.rows = 4, .sequences = 2, .page_changes = 1, .logit_rows = 2}, 64, WireType::f32);
  EXPECT_TRUE(check_frame(header, kWireLimits).ok());
  header.body_bytes = 16;
  EXPECT_FALSE(check_frame(header, kWireLimits).ok());
  header.body_bytes = std::uint64_t{1} << 40;
  EXPECT_FALSE(check_frame(header, kWireLimits).ok());
}

TEST(Wire, HoldsResultsAgainstLimits) {
  FrameHeader header{.op = Op::result,
                     .body_bytes = 2 * 64 * 4,
                     .rows = 2,
                     .items = 64,
                     .out_type = WireType::f32};
  EXPECT_TRUE(check_frame(header, kWireLimits).ok());
  header.items = 1000;  // logits, of fewer rows than a job may have
  header.body_bytes = 2 * 1000 * 4;
  EXPECT_TRUE(check_frame(header, kWireLimits).ok());
  header.rows = 3;
  header.body_bytes = 3 * 1000 * 4;
  EXPECT_FALSE(check_frame(header, kWireLimits).ok());
  header.rows = 2;
  header.body_bytes = 2 * 64 * 4;
  header.items = 65;
  EXPECT_FALSE(check_frame(header, kWireLimits).ok());
  header.items = 64;
  header.status = JobStatus::expired;
  EXPECT_FALSE(check_frame(header, kWireLimits).ok());
  header.body_bytes = 0;
  EXPECT_TRUE(check_frame(header, kWireLimits).ok());
}

TEST(Wire, HoldsRoutingAgainstLimits) {
  const auto passes = [](std::uint16_t layer, std::uint64_t bytes) {
    return check_frame({.op = Op::routed, .body_bytes = bytes, .layer = layer}, kWireLimits).ok();
  };
  const auto layers = static_cast<std::uint16_t>(kWireLimits.n_layer);
  const std::uint64_t whole = routed_bytes(kWireLimits.n_expert);
  EXPECT_TRUE(passes(0, 0)) << "asks";
  EXPECT_TRUE(passes(static_cast<std::uint16_t>(layers - 1), whole));
  EXPECT_FALSE(passes(layers, whole));
  EXPECT_FALSE(passes(kNoLayer, 0));
  for (const std::uint64_t bytes : {whole - 1, whole + 1, 2 * whole, ~std::uint64_t{0}})
    EXPECT_FALSE(passes(0, bytes)) << bytes;
  EXPECT_FALSE(check_frame({.op = Op::routed, .layer = 0}, {}).ok()) << "before the handshake";
}

TEST(Wire, ControlFramesHaveTheirLengths) {
  EXPECT_TRUE(check_frame({.op = Op::ping}, {}).ok());
  EXPECT_FALSE(check_frame({.op = Op::ping, .body_bytes = 1}, {}).ok());
  EXPECT_FALSE(check_frame({.op = Op::hello, .body_bytes = kMaxHelloBytes + 1}, {}).ok());
  EXPECT_FALSE(check_frame({.op = Op::error, .body_bytes = 8 + kMaxErrorText + 1}, {}).ok());
  EXPECT_TRUE(check_frame({.op = static_cast<Op>(999), .body_bytes = 100}, {}).ok());
  EXPECT_FALSE(check_frame({.op = static_cast<Op>(999), .body_bytes = 65537}, {}).ok());
}

TEST(Wire, TheLongestBodyCoversWhatPasses) {
  EXPECT_GE(max_body_bytes(kWireLimits), kMaxHelloBytes);
  WireLimits large = kWireLimits;
  large.max_rows = 4096;
  large.n_embd = 8192;
  EXPECT_GE(max_body_bytes(large), std::uint64_t{4096} * 8192 * 4 + 32 * 8);
  EXPECT_LT(max_body_bytes(large), std::uint64_t{4096} * 8192 * 8);
  large.out_types = type_bit(WireType::f64);
  EXPECT_EQ(max_body_bytes(large), std::uint64_t{4096} * 8192 * 8);
}

// Sums may come in f64; rows never do.
TEST(Wire, OnlySumsAreWide) {
  WireLimits limits = kWireLimits;
  limits.out_types = type_bit(WireType::f64);
  FrameHeader result{.op = Op::result,
                     .body_bytes = 2 * std::uint64_t{kWireLimits.n_embd} * 8,
                     .rows = 2,
                     .items = kWireLimits.n_embd,
                     .out_type = WireType::f64};
  EXPECT_TRUE(check_frame(result, limits).ok());
  EXPECT_FALSE(check_frame(result, kWireLimits).ok());
  result.body_bytes /= 2;
  EXPECT_FALSE(check_frame(result, limits).ok());
  const FrameHeader job{.op = Op::compute_experts,
                        .body_bytes = 8 + std::uint64_t{kWireLimits.n_embd} * 8,
                        .layer = 0,
                        .rows = 1,
                        .items = 1,
                        .in_type = WireType::f64,
                        .out_type = WireType::f64};
  EXPECT_FALSE(check_frame(job, limits).ok());
}

}  // namespace
}  // namespace tessera::worker
