#include "worker/messages.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "worker/job_layout.h"
#include "worker/jobs.h"

namespace tessera::worker {
namespace {

Hello example_hello() {
  Hello hello{.role = Role::experts,
              .dims = {.n_layer = 4,
                       .n_embd = 64,
                       .n_vocab = 1000,
                       .n_expert = 12,
                       .n_expert_used = 2,
                       .n_ff_expert = 32},
              .first_layer = 1,
              .end_layer = 3,
              .max_rows = 16,
              .max_pairs = 32,
              .credits = 4,
              .owned = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}}};
  hello.model[5] = std::byte{77};
  return hello;
}

HelloAck example_ack() {
  return {.credits = 2,
          .in_types = kFloatTypes,
          .out_types = type_bit(WireType::f32),
          .max_rows = 8,
          .max_pairs = 64,
          .memory_used = 1 << 20,
          .memory_free = 1 << 30,
          .build = {.isa = 2, .device = 1, .version = "1.2"}};
}

// Every proper prefix, and one byte too many, must be refused.
template <typename Decode>
void expect_exact_length(const std::vector<std::byte>& body, Decode decode) {
  EXPECT_TRUE(decode(std::span(body)).ok());
  for (std::size_t n = 0; n < body.size(); ++n)
    EXPECT_FALSE(decode(std::span(body).first(n)).ok()) << n;
  std::vector<std::byte> longer = body;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode(std::span<const std::byte>(longer)).ok());
}

TEST(Messages, RoundTrip) {
  const Hello hello = example_hello();
  EXPECT_EQ(*decode_hello(encode(hello)), hello);
  EXPECT_EQ(encode(hello).size(), kHelloFixedBytes + 4);
  EXPECT_EQ(*decode_hello_ack(encode(example_ack())), example_ack());
  EXPECT_EQ(encode(example_ack()).size(), kHelloAckFixedBytes + kBuildFixedBytes + 3);
  const Refuse refuse{.reason = RefuseReason::limits, .need = 10, .have = 5, .text = "too many"};
  EXPECT_EQ(*decode_refuse(encode(refuse)), refuse);
  const Stats stats{1, 2, 3, 4,
                    5, 6, 7, {8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23}};
  EXPECT_EQ(*decode_stats(encode(stats)), stats);
  const Probe probe{.version_min = 1,
                    .version_max = kVersionMax,
                    .roles = 6,
                    .build = example_ack().build,
                    .architectures = {"one", "another"}};
  EXPECT_EQ(*decode_probe(encode(probe)), probe);
  Attach attach{.kind = AttachKind::rings, .region_id = 7, .to_worker_bytes = 1 << 20};
  attach.nonce[31] = std::byte{9};
  EXPECT_EQ(*decode_attach(encode(attach)), attach);
  const ErrorReply error{.code = WireError::not_owned, .text = "expert 3 of layer 1"};
  EXPECT_EQ(*decode_error(encode(error)), error);
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte b : bytes) text += fmt::format("{:02x}", static_cast<int>(b));
  return text;
}

// Written down from the tables of docs/workers.md.
TEST(Messages, GoldenBodies) {
  EXPECT_EQ(hex(encode(example_hello())),
            "0a000a00012e2e0000000000004d000000000000000000000000000000000000"
            "00000000000000000400000040000000e80300000c0000000200000020000000"
            "0100000003000000100000002000000000000000000000000000000004000000"
            "0400000001020304");
  EXPECT_EQ(hex(encode(example_ack())),
            "0a0002002e020000080000004000000000000000000000000000100000000000"
            "00000040000000000200010003000000312e32");
  EXPECT_EQ(hex(encode(Refuse{.reason = RefuseReason::memory, .need = 258, .have = 1})),
            "050000000000000002010000000000000100000000000000");
}

TEST(Messages, LengthsAreExact) {
  expect_exact_length(encode(example_hello()), decode_hello);
  expect_exact_length(encode(example_ack()), decode_hello_ack);
  expect_exact_length(encode(Refuse{.reason = RefuseReason::busy}), decode_refuse);
  expect_exact_length(encode(Refuse{.reason = RefuseReason::memory, .text = "x"}), decode_refuse);
  expect_exact_length(encode(Stats{}), decode_stats);
  expect_exact_length(encode(Probe{.architectures = {"x", ""}}), decode_probe);
  expect_exact_length(encode(Attach{}), decode_attach);
  expect_exact_length(encode(ErrorReply{.code = WireError::internal, .text = "x"}), decode_error);
}

// Of role layers.
TEST(Messages, RoutingIsCountedOnlyWhereItIsAskedFor) {
  Hello hello = example_hello();
  hello.role = Role::layers;
  hello.owned.clear();
  std::vector<std::byte> body = encode(hello);
  EXPECT_FALSE(decode_hello(body)->layers.count_routing);
  hello.layers.count_routing = true;
  body = encode(hello);
  EXPECT_EQ(*decode_hello(body), hello);
  body[body.size() - 2] = std::byte{2};
  EXPECT_FALSE(decode_hello(body).ok());
}

TEST(Messages, RoutingHasAPlaceForEachExpert) {
  const std::vector<std::uint32_t> chosen = {1, 258, 0xffffffff};
  std::vector<std::byte> body;
  encode_routed(chosen, 4, body);
  EXPECT_EQ(hex(body), "0100000002010000ffffffff00000000");
  std::vector<std::uint32_t> read(4, 7);
  ASSERT_TRUE(decode_routed(body, read));
  EXPECT_EQ(read, (std::vector<std::uint32_t>{1, 258, 0xffffffff, 0}));
  for (const std::size_t n : {3u, 5u}) {
    read.resize(n);
    EXPECT_FALSE(decode_routed(body, read)) << n;
  }
}

TEST(Messages, HelloIsChecked) {
  const auto refused = [](auto change) {
    Hello hello = example_hello();
    change(hello);
    return !decode_hello(encode(hello)).ok();
  };
  EXPECT_TRUE(refused([](Hello& h) { h.version_min = kVersionMax + 1; }));
  EXPECT_TRUE(refused([](Hello& h) { h.role = static_cast<Role>(4); }));
  EXPECT_TRUE(refused([](Hello& h) { h.in_types = 0; }));
  EXPECT_TRUE(refused([](Hello& h) { h.out_types = 0xff; }));
  EXPECT_TRUE(refused([](Hello& h) { h.in_types = kResultTypes; }));
  EXPECT_TRUE(refused([](Hello& h) { h.end_layer = 5; }));
  EXPECT_TRUE(refused([](Hello& h) { h.first_layer = 3; }));
  EXPECT_TRUE(refused([](Hello& h) { h.owned.pop_back(); }));
  EXPECT_TRUE(refused([](Hello& h) { h.dims.n_embd = 0; }));
  EXPECT_TRUE(refused([](Hello& h) { h.dims.n_expert_used = 13; }));
  EXPECT_TRUE(refused([](Hello& h) { h.max_rows = kMaxWireRows + 1; }));
  EXPECT_TRUE(refused([](Hello& h) { h.credits = 0; }));
  EXPECT_TRUE(refused([](Hello& h) { h.max_logit_rows = 17; }));
  EXPECT_TRUE(refused([](Hello& h) { h.role = Role::layers; }));  // with owned experts
}

// What a worker computes with goes to logs, and is compared.
TEST(Messages, BuildsAreChecked) {
  const auto refused = [](const WorkerBuild& build) {
    HelloAck ack = example_ack();
    ack.build = build;
    const bool probe = decode_probe(encode(Probe{.build = build})).ok();
    EXPECT_EQ(decode_hello_ack(encode(ack)).ok(), probe);
    return !probe;
  };
  EXPECT_FALSE(refused({.isa = 3, .device = 2, .version = "0.1.0"}));
  EXPECT_TRUE(refused({.isa = 4})) << "no such instruction set";
  EXPECT_TRUE(refused({.device = 3})) << "no such device";
  const Probe rude{.build = {.version = "\x1b[2J\n" + std::string(200, 'x')}};
  const std::string version = decode_probe(encode(rude))->build.version;
  EXPECT_EQ(version, "?[2J?" + std::string(kMaxVersionText - 5, 'x'));
  std::vector<std::byte> endless = encode(Probe{});
  endless[kProbeFixedBytes + 4] = std::byte{kMaxVersionText + 1};
  endless.resize(endless.size() + kMaxVersionText + 1);
  EXPECT_FALSE(decode_probe(endless).ok());
  EXPECT_EQ(build_text({.isa = 2, .version = "0.1.0"}), "avx2 on cpu, version 0.1.0");
  EXPECT_EQ(build_text({.device = 1}), "kernels that it does not name on cuda");
}

TEST(Messages, ArchitecturesAreBounded) {
  const std::vector<std::string> many(kMaxArchitectures + 1, std::string(200, 'x') + "\n");
  const std::vector<std::byte> body = encode(Probe{.architectures = many});
  EXPECT_LE(body.size(), kMaxProbeBytes);
  const Result<Probe> probe = decode_probe(body);
  ASSERT_TRUE(probe.ok());
  EXPECT_EQ(probe->architectures,
            std::vector<std::string>(kMaxArchitectures, std::string(kMaxArchitectureText, 'x')));
  std::vector<std::byte> one = encode(Probe{.architectures = {"a\nb"}});
  EXPECT_EQ(decode_probe(one)->architectures, std::vector<std::string>{"a?b"});
  for (const std::size_t at : {kProbeFixedBytes + kBuildFixedBytes, one.size() - 7}) {
    std::vector<std::byte> more = one;  // a count, a length
    more[at] = std::byte{65};
    more.resize(kMaxProbeBytes);
    EXPECT_FALSE(decode_probe(more).ok()) << at;
  }
}

// Whatever the rest of its answer looks like, it is told by its versions.
TEST(Messages, AProbeOfAnotherVersion) {
  const Probe later{.version_min = kVersionMax + 1, .version_max = kVersionMax + 2};
  std::vector<std::byte> body = encode(later);
  for (const std::size_t bytes : {std::size_t{4}, std::size_t{72}}) {
    body.resize(bytes);
    const Result<Probe> probe = decode_probe(body);
    ASSERT_TRUE(probe.ok()) << bytes;
    EXPECT_EQ(*probe, later);
    EXPECT_FALSE(probe->speaks_our_version());
  }
}

TEST(Messages, MeasurementsAreNumbers) {
  Probe probe;
  EXPECT_TRUE(decode_probe(encode(probe)).ok());
  for (double Probe::*measured : {&Probe::bytes_per_second, &Probe::op_per_second}) {
    for (const double speed : {1e6, 20e9, 1e15}) {
      probe.*measured = speed;
      const Result<Probe> decoded = decode_probe(encode(probe));
      ASSERT_TRUE(decoded.ok()) << speed;
      EXPECT_EQ(*decoded, probe);
    }
    for (const double speed :
         {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), -1.0,
          1e-300, 999e3, 1.1e15}) {
      Probe wrong = probe;
      wrong.*measured = speed;
      EXPECT_FALSE(decode_probe(encode(wrong)).ok()) << speed;
    }
  }
}

TEST(Messages, ErrorTextIsBoundedAndPrintable) {
  const ErrorReply error{.code = WireError::internal, .text = std::string(2000, 'x') + "\n"};
  EXPECT_EQ(decode_error(encode(error))->text.size(), kMaxErrorText);
  const ErrorReply rude{.code = WireError::internal, .text = "a\x1b[2J\nb"};
  EXPECT_EQ(decode_error(encode(rude))->text, "a?[2J?b");
  const Refuse refuse{.reason = RefuseReason::memory, .text = error.text};
  EXPECT_EQ(decode_refuse(encode(refuse))->text.size(), kMaxErrorText);
  const Refuse worse{.reason = RefuseReason::memory, .text = rude.text};
  EXPECT_EQ(refusal_text(*decode_refuse(encode(worse))), "memory: a?[2J?b");
}

const WireLimits kLimits{.n_layer = 4,
                         .n_embd = 4,
                         .n_vocab = 100,
                         .n_expert = 12,
                         .max_rows = 8,
                         .max_logit_rows = 2,
                         .max_pairs = 8,
                         .max_page_changes = 4,
                         .in_types = kFloatTypes,
                         .out_types = kFloatTypes};

TEST(Jobs, ExpertPairs) {
  const std::vector<WirePair> pairs = {{0, 11, 0.5f}, {1, 0, -1.25f}, {0, 11, 2.0f}};
  std::vector<std::byte> body;
  encode_experts_head(pairs, body);
  EXPECT_EQ(body.size(), 24u);
  EXPECT_EQ(body[2], std::byte{11});
  EXPECT_EQ(body[7], std::byte{0x3f});
  const std::vector<float> rows = {1, 2, 3, 4, 5, 6, 7, 8};
  body.resize(24 + 16);
  pack_rows(rows, WireType::bf16, std::span(body).subspan(24));
  const FrameHeader header{.op = Op::compute_experts,
                           .body_bytes = body.size(),
                           .layer = 1,
                           .rows = 2,
                           .items = 3,
                           .in_type = WireType::bf16,
                           .out_type = WireType::f32};
  ASSERT_TRUE(check_frame(header, kLimits).ok());
  ExpertsBody job;
  const Status decoded = decode_experts(header, body, kLimits, job);
  ASSERT_TRUE(decoded.ok()) << decoded.error().message;
  EXPECT_EQ(job.pairs, pairs);
  std::vector<float> back(8);
  unpack_rows(job.rows, WireType::bf16, back);
  EXPECT_EQ(back, rows);

  for (const WirePair bad : {WirePair{2, 0, 1.0f}, WirePair{0, 12, 1.0f},
                             WirePair{0, 0, std::numeric_limits<float>::infinity()}}) {
    std::vector<std::byte> head;
    encode_experts_head(std::vector<WirePair>{pairs[0], pairs[1], bad}, head);
    std::copy(head.begin(), head.end(), body.begin());
    EXPECT_FALSE(decode_experts(header, body, kLimits, job).ok());
  }
}

TEST(Jobs, RowTypesRoundTrip) {
  const std::vector<float> values = {0.0f, -0.0f, 1.0f, -2.5f, 1024.0f};
  for (const WireType type : {WireType::f32, WireType::f16, WireType::bf16, WireType::int16}) {
    std::vector<std::byte> bytes(wire_bytes(type, values.size()));
    pack_rows(values, type, bytes);
    std::vector<float> back(values.size());
    unpack_rows(bytes, type, back);
    EXPECT_EQ(back, values);
  }
}

TEST(Jobs, FiniteValuesStayFiniteInF16) {
  const std::vector<float> values = {1e5f, -1e5f, 65504.0f, std::numeric_limits<float>::infinity()};
  std::vector<std::byte> bytes(wire_bytes(WireType::f16, values.size()));
  pack_rows(values, WireType::f16, bytes);
  std::vector<float> back(values.size());
  unpack_rows(bytes, WireType::f16, back);
  EXPECT_EQ(back, (std::vector<float>{65504.0f, -65504.0f, 65504.0f, values.back()}));
}

TEST(Jobs, SumTypesRoundTrip) {
  std::vector<double> sums(600, -2.5);  // more than are converted at a time
  sums[599] = 1024.0;
  for (const WireType type :
       {WireType::f64, WireType::f32, WireType::f16, WireType::bf16, WireType::int16}) {
    std::vector<std::byte> bytes(wire_bytes(type, sums.size()));
    pack_sums(sums, type, bytes);
    std::vector<double> back(sums.size());
    unpack_sums(bytes, type, back);
    EXPECT_EQ(back, sums);
  }
  sums[1] = 1.0 + 0x1p-36;
  std::vector<std::byte> bytes(sums.size() * sizeof(double));
  pack_sums(sums, WireType::f64, bytes);
  std::vector<double> back(sums.size());
  unpack_sums(bytes, WireType::f64, back);
  EXPECT_EQ(back, sums);
}

TEST(Jobs, SumsMustBeFiniteInF32) {
  std::vector<double> sums(40, std::numeric_limits<float>::max());
  EXPECT_TRUE(all_finite(std::span<const double>(sums)));
  for (const double bad : {1e39, -1e39, std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::quiet_NaN()}) {
    sums[7] = bad;
    EXPECT_FALSE(all_finite(std::span<const double>(sums))) << bad;
  }
}

ForwardBody example_forward() {
  ForwardBody job;
  job.tokens = {1, 2, 3};
  job.sequences = {{2, 5, 1}, {1, 0, 0}};
  job.page_changes = {{1, 0, 0, 3}, {0, 1, 0, -1}};
  job.logit_rows = {1, 2};
  job.choices = {{.temperature = 0.5f, .uniform = 0.25, .n_top = 3, .n_changes = 2},
                 {.given = 7, .n_top = 0}};
  job.logit_changes = {{.id = 4, .bias = -1.0f}, {.id = 99, .penalty = 1.5f, .less = 0.5f}};
  return job;
}

const ForwardLimits kForward{.slots = 2, .kv_pages = {4, 2}, .max_positions = 128};

Result<ForwardBody> coded(const ForwardBody& job, std::vector<std::byte>& body) {
  encode_forward_head(job, body);
  body.resize(body.size() + 3 * 4 * 2, std::byte{1});
  const FrameHeader header{.op = Op::forward_layers,
                           .body_bytes = body.size(),
                           .layer = 0,
                           .flags = static_cast<std::uint16_t>(
                               job.choices.empty() ? kFlagHead : kFlagHead | kFlagChoose),
                           .rows = 3,
                           .in_type = WireType::f16,
                           .out_type = WireType::f32};
  EXPECT_TRUE(check_frame(header, kLimits).ok());
  ForwardBody back;
  TESSERA_TRY(decode_forward(header, body, kLimits, kForward, back));
  return back;
}

TEST(Jobs, Forward) {
  std::vector<std::byte> body;
  const ForwardBody job = example_forward();
  const Result<ForwardBody> back = coded(job, body);
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(back->tokens, job.tokens);
  EXPECT_EQ(back->sequences, job.sequences);
  EXPECT_EQ(back->page_changes, job.page_changes);
  EXPECT_EQ(back->logit_rows, job.logit_rows);
  EXPECT_EQ(back->choices, job.choices);
  EXPECT_EQ(back->logit_changes, job.logit_changes);
  EXPECT_EQ(back->rows.size(), 24u);
}

TEST(Jobs, ForwardIsChecked) {
  const auto refused = [](auto change) {
    ForwardBody job = example_forward();
    change(job);
    std::vector<std::byte> body;
    return !coded(job, body).ok();
  };
  EXPECT_TRUE(refused([](ForwardBody& j) { j.tokens[0] = -1; }));
  EXPECT_TRUE(refused([](ForwardBody& j) { j.tokens[0] = 100; }));
  EXPECT_TRUE(refused([](ForwardBody& j) { j.sequences[0].rows = 1; }));
  EXPECT_TRUE(refused([](ForwardBody& j) { j.sequences[0].rows = 0xffffffff; }));
  EXPECT_TRUE(refused([](ForwardBody& j) { j.sequences[0].slot = 0; }));
  EXPECT_TRUE(refused([](ForwardBody& j) { j.sequences[0].slot = 2; }));
  EXPECT_TRUE(refused([](ForwardBody& j) { j.sequences[0].first_position = 127; }));
  EXPECT_TRUE(refused([](ForwardBody& j) { j.page_changes[0].page = 4; }));
  EXPECT_TRUE(refused([](ForwardBody& j) { j.page_changes[0].page = -2; }));
  EXPECT_TRUE(refused([](ForwardBody& j) { j.page_changes[0].kv_group = 2; }));
  EXPECT_TRUE(refused([](ForwardBody& j) { j.logit_rows = {2, 1}; }));
  EXPECT_TRUE(refused([](ForwardBody& j) { j.logit_rows = {3}; }));
  EXPECT_TRUE(refused([](ForwardBody& j) { j.logit_rows = {0, 1, 2}; }));
  EXPECT_TRUE(refused([](ForwardBody& j) { j.choices.clear(); }));
  EXPECT_TRUE(refused([](ForwardBody& j) { j.choices.pop_back(); }));
  EXPECT_TRUE(refused([](ForwardBody& j) { j.logit_changes.pop_back(); }));
  EXPECT_TRUE(refused([](ForwardBody& j) { j.choices[0].n_changes = 1; }));
}

}  // namespace
}  // namespace tessera::worker
