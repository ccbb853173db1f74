// ExpertPass: the routed experts of one layer over a ragged list of pairs, by a thread team.
//
//   ExpertPass pass({.matmul = kernels, .ops = ops, .moe = *layer.moe, .weights = weights},
//   buffers); pass.sort(pairs, 0, [&](std::size_t pair, std::int32_t place) { places[pair] = place;
//   }); team.run([&](TeamMember& member) { pass.run(member, x); });
//   // buffers.out + places[i] * n_embd: expert(x[row]) of the i-th pair, without its weight
//
// Pairs are taken expert by expert, so that an expert's weights are read once for all its rows. An
// expert that is not packed (a FileExperts is given) is read from the file (file_matrix.h). A
// pair's result has the same bits whatever other pairs there are.
//
// Members compute gate and up of every expert, then the activation of every pair, then down. Each
// waits for what it reads and for nothing else: by the time that one is at an expert's activation
// the others' products are under way, and nobody stands at a barrier. Of few experts each member
// has a part of every matrix, which it takes before it helps others: always the same one, so that
// its caches may have it already (fetch()).
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/thread_team.h"
#include "device/cpu/activations.h"
#include "device/cpu/file_matrix.h"
#include "device/cpu/matmul.h"
#include "device/cpu/vector_ops.h"
#include "device/cpu/weights.h"

namespace tessera::cpu {

// P pairs, X experts, F = n_ff, E = n_embd. A layer's pairs may come in several calls, each behind
// the one before: `first` of sort().
struct ExpertBuffers {
  std::int32_t* pair_rows = nullptr;    // [P] row of the pair at each place
  std::int32_t* expert_ends = nullptr;  // [X + 1]
  std::int32_t* done = nullptr;         // [2][X] pieces of gate and up, pairs activated
  float* gate = nullptr;                // [P][F]
  float* up = nullptr;                  // [P][F]
  ActivationRecord* records = nullptr;  // [P] x F
  float* out = nullptr;                 // [P][E]
  std::int64_t pairs = 0;               // P
  std::vector<int>* active = nullptr;   // experts that have pairs; room for X
};

// Where the experts that are not packed lie.
struct FileExperts {
  const TensorSlice* gate = nullptr;
  const TensorSlice* up = nullptr;
  const TensorSlice* down = nullptr;
  std::span<PackRoom> room;  // by member of the team
};

struct ExpertPassParts {
  const MatmulKernels& matmul;
  const VectorKernels& ops;
  const MoeSpec& moe;
  const LayerWeights& weights;
  const FileExperts* files = nullptr;  // nullptr: all experts of the pairs are packed
};

class ExpertPass {
 public:
  ExpertPass(const ExpertPassParts& parts, const ExpertBuffers& buffers)
      : parts_(parts), buffers_(buffers) {}

  // Gives every pair a place from `first` on, by expert and then in the order of the list, and
  // tells it: at(index of the pair, place).
  template <typename At>
  void sort(std::span<const RoutedPair> pairs, int first, At at);

  // Computes the sorted pairs over the rows of x, whose records are filled if any of the matrices
  // reads them. Ends with a barrier. Every member calls it.
  void run(TeamMember& member, const Activations& x) const;

  // Of the sorted pairs' experts in the file: brings what would be the member's own into its
  // caches, until `enough`. Whether the next pass has the same pairs or not, nothing depends on it.
  void fetch(const TeamMember& member, const std::function<bool()>& enough) const;

 private:
  struct Range {
    int first;
    int count;
  };
  // Some row groups of one matrix of an expert.
  struct Piece {
    int expert;
    TensorRole role;
    GroupRange groups;
  };
  // Of the matrices of `roles` of every active expert, all cut alike and shared out among members.
  struct Cut {
    std::span<const TensorRole> roles;
    int members;
    int groups, pieces;  // of a matrix
    int each;            // of the pieces of a matrix that a member has
    int count;           // items of a member's list
  };
  Cut cut(std::span<const TensorRole> roles, int members) const;
  std::optional<Piece> piece_of(const Cut& cut, int owner, int item) const;
  Range rows_of(int expert) const;
  int expert_at(int place) const;
  void multiply(TeamMember& member, const Piece& piece, const Activations& x,
                std::span<const std::int32_t> ids, int rows, float* out) const;
  void hidden(TeamMember& member, const Piece& piece, const Activations& x) const;
  void activate(int place, const Activations& hidden) const;
  void output(TeamMember& member, const Piece& piece, const Activations& hidden) const;
  bool fetch(const Piece& piece, const std::function<bool()>& enough) const;  // false: enough

  ExpertPassParts parts_;
  ExpertBuffers buffers_;
  int first_ = 0;
  int count_ = 0;
};

// Bytes of a PackRoom that serves all these matrices.
std::int64_t pack_room_bytes(std::span<const TensorSlice> tensors);

template <typename At>
void ExpertPass::sort(std::span<const RoutedPair> pairs, int first, At at) {
  first_ = first;
  count_ = static_cast<int>(pairs.size());
  const int n_expert = parts_.moe.n_expert;
  std::int32_t* ends = buffers_.expert_ends;
  std::fill_n(ends, n_expert + 1, first);
  std::fill_n(buffers_.done, 2 * n_expert, 0);
  for (const RoutedPair& pair : pairs) ++ends[pair.expert + 1];
  for (int e = 0; e < n_expert; ++e) ends[e + 1] += ends[e] - first;
  // ends[e] is now where expert e starts; filling moves it to where e ends.
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const std::int32_t place = ends[pairs[i].expert]++;
    buffers_.pair_rows[place] = pairs[i].row;
    at(i, place);
  }
  buffers_.active->clear();
  for (int e = 0; e < n_expert; ++e)
    if (rows_of(e).count > 0) buffers_.active->push_back(e);
}

}  // namespace tessera::cpu
