#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::runtime {

/// Makes the forwards of a step's microbatches change each buffer of this rank
/// (running statistics, for instance) in the order of the schedule's forwards.
///
/// A change of a buffer cannot be deferred as a gradient can, so a part of a forward that changes a
/// buffer has to wait for the earlier microbatches. The first step of each kind runs its forwards
/// one after the other and shows which part (turn of a task) changes which buffer; in later steps
/// of the kind a part waits only for the parts of earlier microbatches that change the same
/// buffers. Two things are not detected: state outside of registered buffers, and a buffer that a
/// part reads and does not change.
///
/// Not collective. Threads: whichever thread holds the rank's baton.
class BufferOrder {
 public:
  struct TurnId {
    std::uint64_t task = 0;
    int number = 0; // how often the task had the baton before
    auto operator<=>(const TurnId&) const = default;
  };

  explicit BufferOrder(std::vector<std::pair<std::string, at::Tensor>> buffers);

  /// Begins a step. Steps of one `kind` take the same path. `positions` holds for each microbatch
  /// its place in the order, each of 0 .. n-1 once.
  void begin(std::uint64_t kind, std::vector<int> positions);
  /// Returns whether a step of this kind has shown its changes. The result is equal on all ranks.
  bool known() const {
    return known_ != nullptr;
  }
  /// Returns whether this part of the microbatch's forward may begin.
  bool may_start(int microbatch, const TurnId& turn) const;
  /// Called at the end of each turn, and before its results leave the rank; a second call changes
  /// nothing. Returns whether the turn changed a buffer.
  /// Throws: UserError that names a buffer when another part of the step changes it than in the
  /// first step of the kind, or a part after the microbatch's first backward. `forward` says that
  /// there was no backward yet.
  bool turn_ends(int microbatch, const TurnId& turn, bool forward);
  /// Called when no forward of this microbatch comes any more, whatever was expected.
  void forward_ended(int microbatch);
  /// Called when the step has completed: what it showed holds for its kind.
  void completed();

 private:
  struct Changes {
    int microbatch = 0;
    std::set<int> buffers;
  };
  using Kind = std::map<TurnId, Changes>;

  std::set<int> changed_since_last();

  std::vector<std::pair<std::string, at::Tensor>> buffers_;
  // By kind and number of microbatches.
  std::map<std::pair<std::uint64_t, std::size_t>, Kind> kinds_;
  // Of the step that runs:
  std::pair<std::uint64_t, std::size_t> kind_;
  const Kind* known_ = nullptr;
  Kind shown_;
  std::vector<int> positions_;
  std::vector<std::vector<int>> expected_; // by position and buffer: turns to come
  std::set<TurnId> ended_;
  std::vector<std::uint32_t> versions_;
  std::vector<at::Tensor> copies_; // while the kind is not known
};

} // namespace tessera::runtime
