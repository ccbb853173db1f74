// Device: what can hold layers and run them. One per GPU, CPU thread team or (through a worker)
// machine.
//
// A device implements blocks, not tensor operations. The caller (pipeline/) drives one step as
//
//   begin(batch); embed();
//   for each layer: mixer(l); route(l); all_experts(l); dense(l); finish_ffn(l);
//   head(); logits();
//
// Calls enqueue and return: activations live on the device as [rows][n_embd] f32 residual rows, and
// the device keeps the order. Only logits(), read_hidden() and routed_pairs() wait for it. What a
// block computes is given by the layer's LayerSpec (model/spec.h); the CPU device is the reference.
//
// Ownership: the device owns its weights, KV pages, recurrent slots and scratch, all sized by the
// plan and allocated before the first step; a step allocates nothing. Page and slot numbers are the
// caller's to hand out (state/). One thread drives a device. Errors: only loading and allocation
// can fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/result.h"
#include "device/batch.h"
#include "model/model.h"

namespace tessera {

enum class KvType : std::uint8_t { f16, f32, q8_0 };
const char* kv_type_name(KvType type);
Result<KvType> parse_kv_type(std::string_view name);

// One (row, expert, weight) of a MoE layer; slot is its place among the row's chosen experts.
struct RoutedPair {
  std::int32_t row;
  std::int32_t expert;
  std::int32_t slot;
  float weight;
};

// What a device is asked to hold. Sizes are final: they are the plan's.
struct ShardLayout {
  int first_layer = 0;
  int end_layer = 0;
  bool embedding = true;
  bool head = true;
  int max_rows = 0;        // rows of the largest batch
  int max_logit_rows = 0;  // rows of the largest head call
  int slots = 0;           // recurrent-state slots
  KvType kv_type = KvType::f16;
  std::vector<int> kv_pages;  // pages of each KV group (kv_groups order)
};

// Called with bytes loaded so far and in all, from the loading thread.
using LoadProgress = std::function<void(std::int64_t done, std::int64_t total)>;

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;

  // Loads the layers, repacks their weights, allocates state and scratch. Called once. The model's
  // file is not read after it returns; its spec is copied.
  virtual Status load(const Model& model, const ShardLayout& layout,
                      const LoadProgress& progress) = 0;

  // --- One step ---
  virtual void begin(const BatchView& batch) = 0;  // the view's spans must outlive the step
  virtual void embed() = 0;
  virtual void mixer(int layer) = 0;
  virtual void route(int layer) = 0;
  // Computes the given pairs of the last route() for the layer's MoE sum. Every pair must be given
  // exactly once before finish_ffn, by one call or several; the weights are those of the routing.
  virtual void experts(int layer, std::span<const RoutedPair> pairs) = 0;
  virtual void all_experts(int layer) = 0;  // every pair, without the host having seen them
  virtual void dense(int layer) = 0;
  virtual void finish_ffn(int layer) = 0;
  virtual void head() = 0;

  // [logit_rows][n_vocab] of the last head(), until the next begin().
  virtual std::span<const float> logits() = 0;
  // The routing of the last route(): row-major, slot ascending.
  virtual std::span<const RoutedPair> routed_pairs() = 0;
  // Residual rows across a shard boundary, [rows][n_embd].
  virtual void read_hidden(std::span<float> out) = 0;
  virtual void write_hidden(std::span<const float> rows) = 0;

  // --- State ---
  virtual void reset_slot(int slot) = 0;
  virtual void copy_slot(int from, int to) = 0;
  virtual void copy_page(int kv_group, int from, int to) = 0;
};

}  // namespace tessera
