// What goes wrong beside a GPU, on its way to it, or on it without a word: the process lives, and
// the device does where the fault is not its own.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "base/log.h"
#include "tests/gpu/asking.h"
#include "tests/gpu/typed_model.h"

namespace tessera::testing {
namespace {

TypedModel asking_model() {
  return TypedModel("qwen35moe", BlockType::Q4_K,
                    {"expert_count=24", "expert_used_count=8", "block_count=2"});
}

// With functions of the program that a test makes.
std::unique_ptr<Device> device_with(const GpuHost& host, double seconds = 60) {
  const std::string vendor = device_kind_name(test_gpu().name->kind);
  const std::string path = plugin_folder() + "/libtessera-" + vendor + ".so";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  EXPECT_NE(library, nullptr) << path;
  const auto entry = reinterpret_cast<GpuPluginEntry>(dlsym(library, kGpuPluginEntry));
  const GpuDeviceOptions options{.index = *test_gpu().name->team,
                                 .load_threads = 2,
                                 .wait_seconds = seconds,
                                 .load_seconds = seconds};
  char why[256] = {};
  std::unique_ptr<Device> device(entry()->create(&options, &host, why, sizeof(why)));
  EXPECT_NE(device, nullptr) << why;
  return device;
}

// A deadline that passes soon, and that a busy machine keeps where all is well.
constexpr double kSoon = 10;

GpuHost silent() {
  return {.release = {}, .check_intact = {}, .tell = [](LogLevel, const std::string&) {}};
}

ShardLayout whole_shard(const ModelSpec& spec) {
  ShardLayout shard{.end_layer = spec.n_layer(), .max_rows = 8, .max_logit_rows = 1, .slots = 1};
  shard.kv_pages.assign(kv_groups(spec).size(), 16);
  return shard;
}

// Of one row, with its logits.
void enqueue_step(Device& device, const Model& model) {
  const std::vector<TokenId> ids = {5};
  const std::vector<std::int32_t> page = {3}, rows = {0};
  const std::vector<std::span<const std::int32_t>> pages(kv_groups(model.spec()).size(), page);
  const SequenceRows sequence{.n_rows = 1, .pages = pages};
  device.reset_slot(0);
  device.begin({.tokens = ids, .sequences = {&sequence, 1}, .logit_rows = rows});
  device.embed();
  for (int l = 0; l < model.spec().n_layer(); ++l) {
    device.mixer(l);
    device.route(l);
    device.all_experts(l);
    device.dense(l);
    device.finish_ffn(l);
  }
  device.head();
}

// --- Exceptions ---

TEST(GpuFaults, WhatIsThrownInALoadIsItsError) {
  GPU_OR_SKIP();
  const TypedModel file = asking_model();
  const Result<Model> model = Model::open(file.path());
  ASSERT_TRUE(model);
  const auto loaded = [&](const GpuHost& host) {
    return device_with(host)->load(*model, whole_shard(model->spec()), {});
  };
  GpuHost host = silent();
  host.release = [](const Model&, const TensorSlice&) { throw std::bad_alloc(); };  // of a thread
  const Status packed = loaded(host);
  ASSERT_FALSE(packed);
  EXPECT_EQ(packed.error().code, ErrorCode::exhausted);
  host = silent();
  host.check_intact = [](const Model&) -> Status { throw std::bad_alloc(); };
  const Status checked = loaded(host);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code, ErrorCode::exhausted);
  EXPECT_TRUE(loaded(silent()));
}

// --- Files ---

// A step's residual rows.
std::vector<float> step_of(Asking& asking) {
  asking.begin();
  asking.answer(0.25);
  return asking.hidden();
}

// What comes of a move.
Result<bool> moved_one(Device& device) {
  device.begin_replace_expert({.layer = 1, .expert = 1});
  Result<bool> moved = false;
  while (moved && !*moved) moved = device.expert_replaced();
  return moved;
}

TEST(GpuMoves, AFileThatIsNotReadEndsThemAlone) {
  GPU_OR_SKIP();
  const TypedModel file = asking_model();
  std::atomic<bool> broken{false};
  GpuHost host = silent();
  host.check_intact = [&](const Model&) -> Status {
    if (broken) return Error::make(ErrorCode::io, "a part of the file could not be read");
    return {};
  };
  Asking asking(file.path(), 60, true, false, -1, device_with(host));
  const std::vector<float> before = step_of(asking);
  broken = true;
  const Result<bool> moved = moved_one(asking.device());
  ASSERT_FALSE(moved);
  EXPECT_EQ(moved.error().code, ErrorCode::io);
  EXPECT_TRUE(asking.device().fault()) << asking.device().fault().error().message;
  EXPECT_TRUE(step_of(asking) == before);
}

// Whatever time the file takes: here until the test has seen that it was late.
TEST(GpuMoves, AFileThatIsLateEndsThemAlone) {
  GPU_OR_SKIP();
  const TypedModel file = asking_model();
  std::atomic<bool> stalls{false};
  GpuHost host = silent();
  host.check_intact = [&](const Model&) -> Status {
    stalls.wait(true);
    return {};
  };
  Asking asking(file.path(), 60, true, false, -1, device_with(host, kSoon));
  stalls = true;
  const Result<bool> moved = moved_one(asking.device());
  stalls = false;
  stalls.notify_all();
  ASSERT_FALSE(moved);
  EXPECT_EQ(moved.error().code, ErrorCode::io);
  EXPECT_TRUE(asking.device().fault()) << asking.device().fault().error().message;
}

// --- A queue on which nothing goes on ---

#define STALL_OR_SKIP() \
  if (std::getenv("EMULATED_STALL") == nullptr) GTEST_SKIP() << "no stall is emulated"

// EMULATED_STALL=0:0
TEST(GpuStall, EndsALoad) {
  STALL_OR_SKIP();
  const TypedModel file = asking_model();
  const Result<Model> model = Model::open(file.path());
  ASSERT_TRUE(model);
  std::unique_ptr<Device> device = device_with(silent(), kSoon);
  const Status loaded = device->load(*model, whole_shard(model->spec()), {});
  ASSERT_FALSE(loaded);
  EXPECT_NE(loaded.error().message.find(fmt::format("within {:g} s", kSoon)), std::string::npos)
      << loaded.error().message;
  const std::int64_t left = free_bytes();
  device.reset();
  EXPECT_EQ(free_bytes(), left) << "the GPU may write there still";
}

// With so many launches that a step begins and does not end.
TEST(GpuStall, EndsATeardown) {
  STALL_OR_SKIP();
  const TypedModel file = asking_model();
  const Result<Model> model = Model::open(file.path());
  ASSERT_TRUE(model);
  GpuHost host = silent();
  std::string told;
  host.tell = [&](LogLevel level, const std::string& line) {
    if (level == LogLevel::warn) told = line;
  };
  std::unique_ptr<Device> device = device_with(host, kSoon);
  const Status loaded = device->load(*model, whole_shard(model->spec()), {});
  ASSERT_TRUE(loaded) << loaded.error().message;
  enqueue_step(*device, *model);
  const std::int64_t left = free_bytes();
  device.reset();
  EXPECT_NE(told.find("its memory is left to the driver"), std::string::npos) << told;
  EXPECT_EQ(free_bytes(), left);
}

// --- Graphs ---

// EMULATED_NO_GRAPHS: so many are not made.
TEST(GpuGraphs, AreTriedAgain) {
  GPU_OR_SKIP();
  if (std::getenv("EMULATED_NO_GRAPHS") == nullptr) GTEST_SKIP() << "all graphs are made";
  const TypedModel file("qwen3", BlockType::Q4_K, {"block_count=1"});
  const Result<Model> model = Model::open(file.path());
  ASSERT_TRUE(model);
  std::vector<std::string> warned, told;
  GpuHost host = silent();
  host.tell = [&](LogLevel level, const std::string& line) {
    (level == LogLevel::warn ? warned : told).push_back(line);
  };
  std::unique_ptr<Device> device = device_with(host);
  ASSERT_TRUE(device->load(*model, whole_shard(model->spec()), {}));
  std::vector<float> first;
  for (int step = 0; step < 500 && told.empty(); ++step) {
    enqueue_step(*device, *model);
    const std::span<const float> logits = device->logits();
    if (first.empty()) first.assign(logits.begin(), logits.end());
    EXPECT_TRUE(std::equal(first.begin(), first.end(), logits.begin())) << step;
  }
  ASSERT_EQ(warned.size(), 1u);
  EXPECT_NE(warned[0].find("out of memory"), std::string::npos) << warned[0];
  ASSERT_EQ(told.size(), 1u);
  EXPECT_NE(told[0].find("at last"), std::string::npos) << told[0];
}

}  // namespace
}  // namespace tessera::testing
