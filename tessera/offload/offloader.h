#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "tessera/offload/entry.h"
#include "tessera/offload/host.h"
#include "tessera/offload/task_order.h"
#include "tessera/recompute/keeper.h"

namespace tessera::offload {

struct Options {
  /// How many tasks before its backward a microbatch's tensors begin to come back.
  int horizon = 4;
  /// With one pipeline rank: a task is the run of one region, and tensors come back region by
  /// region; else all tensors of a microbatch come back together.
  bool by_region = false;
};

/// Moves what regions keep to a Host after their forward, and back before their backward.
///
/// Without `by_region` a backward that has begun may wait for another rank while those behind it
/// begin. What they need comes back only as the microbatches before them run their regions again;
/// else all that has left would be here at once.
///
/// A tensor stays where its backward is within the horizon, where it is small or without memory,
/// and where it is a parameter, which the model holds anyhow. Tensors that are the same view of one
/// storage are copied once. Memory is freed at the next region or task after the copy out.
///
/// Not collective. Threads: as recompute::Keeper.
/// Source: Karakus et al. 2021, appendix H.3.
class Offloader : public recompute::Keeper {
 public:
  /// Smaller tensors stay. Units: bytes.
  static constexpr std::int64_t kSmallest = 4096;

  Offloader(std::shared_ptr<Host> host, Options options);
  ~Offloader() override;
  Offloader(const Offloader&) = delete;
  Offloader& operator=(const Offloader&) = delete;

  /// Throws: ConfigError also when an earlier copy out has failed.
  std::unique_ptr<recompute::KeptTensors> keep(std::vector<at::Tensor> tensors, int microbatch)
      override;
  void step_begins(std::uint64_t kind) override;
  /// With `by_region` the forward of a microbatch says that regions are counted from 0 again, its
  /// backward that they run backward from now on.
  void task_begins(recompute::PipelineTask task) override;
  void step_ended() override;

  const Host& host() const {
    return *host_;
  }
  const Counters& counters() const {
    return *counters_;
  }

 private:
  struct Group; // what one call of a region keeps
  class Kept;

  bool stays(int group) const;
  std::shared_ptr<Entry> entry_of(const at::Tensor& tensor);
  void settle() noexcept;
  void throw_failure();
  void fetch_all(const std::vector<int>& groups);
  void fetch(int group);
  bool is_kept(int group) const;
  bool waits_for_a_backward(int microbatch);
  void region_runs_again(int region);
  void turn_backward();

  std::shared_ptr<Host> host_;
  Options options_;
  std::shared_ptr<Counters> counters_ = std::make_shared<Counters>();
  TaskOrder order_;
  std::uint64_t kind_ = 0;
  int regions_ = 0; // of this microbatch so far, with `by_region`
  bool backward_ = false; // they run again, with `by_region`
  /// Microbatches whose backward has begun and that may keep something, without `by_region`.
  std::set<int> in_backward_;
  int runs_again_ = -1; // the microbatch whose region ran again last
  /// By microbatch, or region; each list in the order of the forwards.
  std::unordered_map<int, std::vector<std::weak_ptr<Group>>> groups_;
  std::unordered_map<const void*, std::vector<std::weak_ptr<Entry>>> entries_; // by storage
  std::deque<std::weak_ptr<Entry>> leaving_; // in the order of their copies
  std::exception_ptr failure_; // of a copy out
  /// A Kept may outlive this; then it holds nullptr.
  std::shared_ptr<Offloader*> self_ = std::make_shared<Offloader*>(this);
};

} // namespace tessera::offload
