// A model that comes over a connection: that it is the client's, only what is needed of it, and
// what happens when either end does not keep to the rules.
#include "worker/received_model.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "model/test_edit.h"
#include "worker/channel_pair.h"
#include "worker/model_ranges.h"
#include "worker/model_sender.h"
#include "worker/receiving_handler.h"

namespace tessera::worker {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kEnough = std::uint64_t{1} << 32;

class Receiving : public testing::TestWithParam<AttachKind> {
 protected:
  Receiving() : Receiving("qwen35moe") {}
  explicit Receiving(const std::string& name)
      : model_(*Model::open(golden_path(name))), pair_(make_pair({.kind = GetParam()})) {}
  ~Receiving() override { end(); }

  const gguf::File& file() const { return model_.file(); }
  ShardLayout layout(int first, int last) const {
    ShardLayout layout;
    layout.first_layer = first;
    layout.end_layer = last;
    layout.embedding = first == 0;
    layout.head = last == model_.spec().n_layer();
    return layout;
  }
  // Answers as a client would, `most` bytes or until the worker has all.
  void send_up_to(std::uint64_t most) {
    end();
    client_ = std::thread([this, most] {
      ModelSender sender(file(), {});
      Frame frame;
      while (!sender.done() && sender.sent() < most) {
        const Result<bool> came = pair_.client->receive(frame, after(60s));
        if (!came || !*came || !sender.answer(*pair_.client, frame).ok()) break;
      }
      sent_ = sender.sent();
      if (!sender.done()) pair_.client->close();
    });
  }
  void end() {
    if (client_.joinable()) client_.join();
  }
  Result<std::unique_ptr<ReceivedModel>> receive(std::uint64_t budget = kEnough) {
    return ReceivedModel::receive(*pair_.worker, model_digest(file()),
                                  {.budget = budget, .patience = 60s});
  }

  Model model_;
  ChannelPair pair_;
  std::thread client_;
  std::uint64_t sent_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Transports, Receiving,
                         testing::Values(AttachKind::stream, AttachKind::rings),
                         [](const auto& info) {
                           return info.param == AttachKind::rings ? "rings" : "stream";
                         });

// Whether the bytes of a tensor are those of the file; which, where some are not.
bool has_tensor(const Model& received, const Model& original, const gguf::TensorInfo& tensor) {
  const gguf::TensorInfo* here = received.file().find_tensor(tensor.name);
  const gguf::TensorInfo* there = original.file().find_tensor(tensor.name);
  return here->bytes == there->bytes && std::memcmp(here->data, there->data, there->bytes) == 0;
}

TEST_P(Receiving, WhatAShardNeedsAndNoMore) {
  send_up_to(kEnough);
  auto received = receive();
  ASSERT_TRUE(received.ok()) << received.error().message;
  const Model& model = (*received)->model();
  EXPECT_EQ(model_digest(model.file()), model_digest(file()));
  ASSERT_TRUE((*received)->fetch(shard_ranges(model, layout(1, 2))).ok());
  end();
  EXPECT_EQ(sent_, (*received)->received());
  EXPECT_LT(sent_, file().file_bytes() / 2);
  int whole = 0, absent = 0;
  for (const TensorSlice& slice : model_.tensors()) {
    const bool here = has_tensor(model, model_, *slice.tensor);
    EXPECT_TRUE(here || slice.layer != 1) << slice.tensor->name;
    (here ? whole : absent) += 1;
  }
  EXPECT_GT(whole, 5);
  EXPECT_GT(absent, 5);
  // Dropped, it reads as zeros; fetched again, it is there again.
  (*received)->drop();
  const TensorSlice* router = model.find(TensorRole::router, 1);
  ASSERT_NE(router, nullptr);
  EXPECT_FALSE(has_tensor(model, model_, *router->tensor));
  EXPECT_EQ(model_digest(model_.file()), (*received)->digest());
  send_up_to(kEnough);
  ASSERT_TRUE((*received)->fetch(shard_ranges(model, layout(1, 2))).ok());
  EXPECT_TRUE(has_tensor(model, model_, *router->tensor));
}

TEST_P(Receiving, SomeExpertsAndNoOthers) {
  send_up_to(kEnough);
  auto received = receive();
  ASSERT_TRUE(received.ok()) << received.error().message;
  const Model& model = (*received)->model();
  ExpertSetLayout set{.first_layer = 1, .experts = {{}}, .max_rows = 1, .max_pairs = 1};
  const int n = model.spec().layers[1].moe->n_expert;
  for (int e = 0; e < n; ++e)
    set.experts[0].home.push_back(e % 2 == 1 ? ExpertHome::resident() : ExpertHome::worker(0));
  ASSERT_TRUE((*received)->fetch(expert_ranges(model, set)).ok());
  for (const TensorRole role : {TensorRole::moe_gate, TensorRole::moe_up, TensorRole::moe_down}) {
    const TensorSlice& here = *model.find(role, 1);
    const TensorSlice& there = *model_.find(role, 1);
    for (int e = 0; e < n; ++e) {
      // A sample of the digest may lie in one that was not asked for, not two.
      const auto bytes = static_cast<std::size_t>(here.rows * here.row_stride);
      const bool same = std::memcmp(here.data + e * here.matrix_stride,
                                    there.data + e * there.matrix_stride, bytes) == 0;
      EXPECT_EQ(same, e % 2 == 1) << "expert " << e;
    }
  }
}

TEST_P(Receiving, GoesOnWhereAConnectionBroke) {
  send_up_to(kEnough);
  auto received = receive();
  ASSERT_TRUE(received.ok()) << received.error().message;
  const FileRanges wanted = shard_ranges((*received)->model(), layout(0, model_.spec().n_layer()));
  pair_.client->close();
  end();
  pair_ = make_pair({.kind = GetParam()});
  (*received)->connect(*pair_.worker);
  const std::uint64_t before = (*received)->received();
  const std::uint64_t half = bytes_of(wanted) / 2;
  send_up_to(half);
  EXPECT_EQ((*received)->fetch(wanted).error().code, ErrorCode::unavailable);
  end();
  const std::uint64_t came = (*received)->received() - before;
  EXPECT_GT(came, half / 2);
  EXPECT_LE(came, sent_);

  pair_ = make_pair({.kind = GetParam()});
  (*received)->connect(*pair_.worker);
  send_up_to(kEnough);
  ASSERT_TRUE((*received)->fetch(wanted).ok());
  end();
  EXPECT_LE(sent_ + came, bytes_of(wanted));
  for (const TensorSlice& slice : model_.tensors())
    EXPECT_TRUE(has_tensor((*received)->model(), model_, *slice.tensor)) << slice.tensor->name;
  // And nothing is sent that is there.
  send_up_to(kEnough);
  ASSERT_TRUE((*received)->fetch(wanted).ok());
  end();
  EXPECT_EQ(sent_, 0u);
}

TEST_P(Receiving, ABudgetIsKept) {
  send_up_to(kEnough);
  const auto none = receive(4096);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::exhausted) << none.error().message;
  pair_.worker->close();
  end();
  EXPECT_EQ(sent_, 0u);

  pair_ = make_pair({.kind = GetParam()});
  send_up_to(kEnough);
  const auto some = receive(opening_bytes(file()) + 10'000);
  ASSERT_TRUE(some.ok()) << some.error().message;
  const FileRanges wanted = shard_ranges((*some)->model(), layout(0, model_.spec().n_layer()));
  EXPECT_EQ((*some)->fetch(wanted).error().code, ErrorCode::exhausted);
  pair_.worker->close();
  end();
  EXPECT_LE(sent_, opening_bytes(file()));
}

TEST_P(Receiving, AnotherModelThanItSays) {
  send_up_to(kEnough);
  ModelDigest other = model_digest(file());
  other[3] ^= std::byte{1};
  const auto received = ReceivedModel::receive(*pair_.worker, other, {.budget = kEnough});
  ASSERT_FALSE(received.ok());
  EXPECT_EQ(received.error().code, ErrorCode::not_found);
  pair_.worker->close();
}

TEST_P(Receiving, AClientThatStalls) {
  const auto received = ReceivedModel::receive(*pair_.worker, model_digest(file()),
                                               {.budget = kEnough, .patience = 50ms});
  ASSERT_FALSE(received.ok());
  EXPECT_EQ(received.error().code, ErrorCode::unavailable);
}

// What a client may send instead of the first bytes of its file.
TEST_P(Receiving, AClientThatLies) {
  for (const std::string how : {"short", "sequence", "op", "header", "info"}) {
    SCOPED_TRACE(how);
    end();
    pair_ = make_pair({.kind = GetParam()});
    client_ = std::thread([&, how] {
      Frame frame;
      ASSERT_TRUE(*pair_.client->receive(frame, after(60s)));
      ModelInfo info{.parts = {{.file_bytes = 1 << 30, .header_bytes = 1000}}};
      if (how == "info") info.parts[0].header_bytes = std::uint64_t{1} << 40;
      ASSERT_TRUE(pair_.client
                      ->send({.op = Op::model_info, .sequence = frame.header.sequence},
                             encode(info), after(60s))
                      .ok());
      const Result<bool> asked = pair_.client->receive(frame, after(60s));
      if (!asked || !*asked) return;
      // Junk where metadata is due: counts of all ones.
      std::vector<std::byte> bytes(how == "short" ? 999 : 1000, std::byte{0xff});
      std::memcpy(bytes.data(), "GGUF\3\0\0\0", 8);
      if (how == "op") bytes.clear();
      (void)pair_.client->send({.op = how == "op" ? Op::pong : Op::model_data,
                                .sequence = frame.header.sequence + (how == "sequence" ? 1 : 0)},
                               bytes, after(60s));
    });
    const auto received = receive();
    ASSERT_FALSE(received.ok());
    EXPECT_EQ(received.error().code, ErrorCode::invalid) << received.error().message;
    pair_.worker->close();
  }
}

// What a worker may ask a client for.
TEST_P(Receiving, AWorkerThatAsksForTooMuch) {
  const std::uint64_t size = file().file_bytes();
  for (const ModelRead& read :
       {ModelRead{.part = 1, .bytes = 1}, ModelRead{.bytes = 2, .offset = size - 1},
        ModelRead{.bytes = 1, .offset = size}, ModelRead{.bytes = 1, .offset = size + 1000}}) {
    ModelSender sender(file(), {});
    ASSERT_TRUE(pair_.worker->send({.op = Op::model_read}, encode(read), after(60s)).ok());
    Frame frame;
    ASSERT_TRUE(*pair_.client->receive(frame, after(60s)));
    EXPECT_EQ(sender.answer(*pair_.client, frame).error().code, ErrorCode::invalid);
    EXPECT_EQ(sender.sent(), 0u);
  }
  // The same again and again.
  ModelSender sender(file(), {});
  WireLimits limits;
  limits.max_model_bytes = kModelChunkBytes;
  pair_.worker->set_limits(limits);
  Status answered;
  std::uint64_t asked = 0;
  const auto ask = [&](const ModelRead& read) {
    ASSERT_TRUE(pair_.worker->send({.op = Op::model_read}, encode(read), after(60s)).ok());
    Frame frame, reply;
    ASSERT_TRUE(*pair_.client->receive(frame, after(60s)));
    answered = sender.answer(*pair_.client, frame);
    if (answered && read.bytes > 0) {
      ASSERT_TRUE(*pair_.worker->receive(reply, after(60s)));
    }
  };
  constexpr std::uint32_t kSocketHolds = 64 << 10;  // both ends are this thread
  while (answered.ok() && asked <= size + kSocketHolds) {
    ask({.bytes = kSocketHolds});
    asked += kSocketHolds;
  }
  EXPECT_FALSE(answered.ok());
  EXPECT_LE(sender.sent(), size);
  // And on after it said that it has all.
  ModelSender another(file(), {});
  for (int i = 0; i < 2; ++i) {
    Frame frame;
    ASSERT_TRUE(pair_.worker->send({.op = Op::model_read}, encode(ModelRead{}), after(60s)).ok());
    ASSERT_TRUE(*pair_.client->receive(frame, after(60s)));
    EXPECT_EQ(another.answer(*pair_.client, frame).ok(), i == 0);
  }
}

TEST_P(Receiving, SplitFiles) {
  const testing::TestInfo& info = *testing::UnitTest::GetInstance()->current_test_info();
  const std::string prefix =
      testing::TempDir() + fmt::format("split_{}_{}", ::getpid(), info.name()[0]);
  const auto path = [&](int i) { return fmt::format("{}-{:05}-of-00002.gguf", prefix, i + 1); };
  const std::size_t half = file().tensors().size() / 2;
  for (int i = 0; i < 2; ++i) {
    gguf::Writer out = *gguf::Writer::create(path(i));
    if (i == 0)
      for (const auto& entry : file().metadata().entries()) out.add(entry.key, entry.value);
    out.add("split.no", static_cast<std::uint16_t>(i));
    out.add("split.count", std::uint16_t{2});
    out.add("split.tensors.count", static_cast<std::int32_t>(file().tensors().size()));
    const auto tensors = i == 0 ? file().tensors().first(half) : file().tensors().subspan(half);
    for (const gguf::TensorInfo& tensor : tensors)
      out.add_tensor(tensor.name, tensor.type, tensor.ne);
    for (const gguf::TensorInfo& tensor : tensors)
      ASSERT_TRUE(out.write({tensor.data, tensor.bytes}).ok());
    ASSERT_TRUE(out.finish().ok());
  }
  const ModelDigest digest = model_digest(file());
  model_ = *Model::open(path(0));
  ASSERT_EQ(model_.file().shard_count(), 2);
  ASSERT_EQ(model_digest(file()), digest);
  send_up_to(kEnough);
  auto received = receive();
  ASSERT_TRUE(received.ok()) << received.error().message;
  const Model& model = (*received)->model();
  ASSERT_TRUE((*received)->fetch(shard_ranges(model, layout(0, model_.spec().n_layer()))).ok());
  for (const TensorSlice& slice : model_.tensors())
    EXPECT_TRUE(has_tensor(model, model_, *slice.tensor)) << slice.tensor->name;
  for (int i = 0; i < 2; ++i) std::remove(path(i).c_str());
}

// --- Through the handshake ---

Hello hello_for(const Model& model, int first, int end) {
  ShardLayout layout;
  layout.first_layer = first;
  layout.end_layer = end;
  layout.embedding = first == 0;
  layout.head = end == model.spec().n_layer();
  layout.max_rows = 16;
  layout.max_logit_rows = 16;
  layout.slots = 1;
  layout.kv_pages.assign(kv_groups(model.spec()).size(), 2);
  return layers_hello(model, layout, {.context = 128});
}

WorkerOffer offer_without_a_file() {
  return {.roles = role_bit(Role::layers), .receives = true};
}

struct Handshaken {
  Result<HandshakeReply> client = HandshakeReply(Refuse{});
  std::uint64_t sent = 0;
};
Handshaken shake_receiving(ReceivingHandler& handler, const Hello& hello, const gguf::File* file,
                           AttachKind kind) {
  Handshaken s;
  ChannelPair pair = make_pair({.kind = kind});
  handler.connect(*pair.worker);
  const Prepare prepare = [&](const Hello& h, const HelloAck& a) { return handler.prepare(h, a); };
  std::thread other(
      [&] { (void)worker_handshake(*pair.worker, offer_without_a_file(), prepare, after(60s)); });
  std::optional<ModelSender> sender;
  if (file != nullptr) sender.emplace(*file, SenderOptions{});
  s.client = client_handshake(*pair.client, hello, after(60s), sender ? &*sender : nullptr);
  if (!s.client) pair.client->close();
  other.join();
  if (sender) s.sent = sender->sent();
  return s;
}

TEST_P(Receiving, TheHandshakeBringsTheModelOnce) {
  ReceivingHandler handler(
      {.layers = {.device = {.device = "cpu", .threads = 1}}, .budget = std::int64_t{1} << 30});
  const Hello hello = hello_for(model_, 1, 3);
  const Handshaken first = shake_receiving(handler, hello, &file(), GetParam());
  ASSERT_TRUE(first.client.ok()) << first.client.error().message;
  EXPECT_TRUE(std::holds_alternative<HelloAck>(*first.client));
  EXPECT_GT(first.sent, 0u);
  EXPECT_LT(first.sent, file().file_bytes());
  // What it was asked for is loaded, whoever comes for it again.
  const Handshaken again = shake_receiving(handler, hello, &file(), GetParam());
  EXPECT_TRUE(std::holds_alternative<HelloAck>(*again.client));
  EXPECT_EQ(again.sent, 0u);
  // Other layers of it are sent, and its metadata is not.
  const Handshaken more = shake_receiving(handler, hello_for(model_, 0, 1), &file(), GetParam());
  EXPECT_TRUE(std::holds_alternative<HelloAck>(*more.client));
  EXPECT_EQ(more.sent, bytes_of(shard_ranges(model_, layout(0, 1))));
}

TEST_P(Receiving, TheHandshakeRefusesInTime) {
  const Hello hello = hello_for(model_, 0, model_.spec().n_layer());
  const auto kept = static_cast<std::int64_t>(opening_bytes(file()));
  ReceivingHandler small(
      {.layers = {.device = {.device = "cpu", .threads = 1}}, .budget = kept + 100'000});
  const Handshaken poor = shake_receiving(small, hello, &file(), GetParam());
  ASSERT_TRUE(poor.client.ok()) << poor.client.error().message;
  EXPECT_EQ(std::get<Refuse>(*poor.client).reason, RefuseReason::memory);
  EXPECT_LE(poor.sent, opening_bytes(file()));

  ReceivingHandler handler(
      {.layers = {.device = {.device = "cpu", .threads = 1}}, .budget = std::int64_t{1} << 30});
  Hello other = hello;
  other.model[0] ^= std::byte{1};
  EXPECT_EQ(std::get<Refuse>(*shake_receiving(handler, other, &file(), GetParam()).client).reason,
            RefuseReason::model);
  other = hello;
  other.dims.n_vocab += 1;
  EXPECT_EQ(std::get<Refuse>(*shake_receiving(handler, other, &file(), GetParam()).client).reason,
            RefuseReason::model);
  // A client that has nothing to send says so.
  const Handshaken bare = shake_receiving(handler, hello, nullptr, GetParam());
  EXPECT_EQ(bare.client.error().code, ErrorCode::unsupported) << bare.client.error().message;
}

}  // namespace
}  // namespace tessera::worker
