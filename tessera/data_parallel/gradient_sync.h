#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/autograd/f32_gradients.h"
#include "tessera/context/context.h"
#include "tessera/data_parallel/gradient_reducer.h"
#include "tessera/data_parallel/state_owners.h"
#include "tessera/tensor/named_tensors.h"

namespace tessera::data_parallel {

/// Keeps the gradients of one model's replicas equal: a reducer over the DP_GROUP for what all its
/// ranks hold, and with tensor parallelism a second one over the RDP_GROUP for distributed
/// parameters. With one data-parallel rank it has none, and every method returns at once.
///
/// A distributed parameter that met the samples of its whole TP_GROUP has the sum of that group's
/// gradients already, so only the replicas' sum is missing. Both sums are divided by the number of
/// different batches. Where these have unlike sizes (replica_samples), a rank's gradients count by
/// its samples.
///
/// With `f32_sums` of the reducers' options gradients of 16-bit parameters are f32 (F32Gradients),
/// also where there are no replicas.
/// Threads: step thread only.
class GradientSync {
 public:
  struct Options {
    GradientReducer::Options reducer;
    /// Steps whose gradients add up before they are averaged.
    int backward_passes_per_step = 1;
    /// With several models reducers need groups of their own, named after this number: buckets
    /// leave during a backward, and ranks would have to start those of all models in one order.
    std::optional<int> own_groups = {};
  };

  /// `equal`: parameters of which the DP_GROUP holds the same; `scaled`: the others. Collective
  /// over the world. `context` must outlive every call but the destructor.
  GradientSync(Context& context, NamedTensors equal, NamedTensors scaled, const Options& options);

  /// Gradients of parameters that are neither `equal` nor `scaled`; `part` outlives every call but
  /// the destructor. Only with replicas. Not collective.
  void add(SettlingGradientPart& part);

  /// GradientReducer::set_hook.
  void set_hook(const CommHook& hook);
  /// Returns whether `take_problem` may give something, on every rank of the world alike. Not
  /// collective.
  bool may_have_problem() const {
    return has_replicas() && (has_hook_ || all_used_);
  }
  /// GradientReducer::take_problem, this rank's first, of the step that `finish` has ended. Not
  /// collective.
  std::optional<std::string> take_problem();

  bool has_replicas() const {
    return !reducers_.empty();
  }
  /// Returns whether gradients of several steps add up before they are averaged.
  bool counts_passes() const {
    return has_replicas() && passes_per_step_ > 1;
  }

  /// Starts a step. Not collective.
  void begin();
  /// Returns whether this step has added to a gradient on this rank.
  bool had_backward() const;
  /// Tells that this step has added to a gradient on some rank of the world.
  void expect_backward();

  /// GradientReducer::set_agreed and agreed_differs, of the DP_GROUP. Not collective.
  void set_agreed(std::uint64_t number);
  bool agreed_differs() const;
  /// GradientReducer::set_rows and rows_differ, of the DP_GROUP. Not collective.
  void set_rows(std::int64_t rows);
  bool rows_differ() const;

  /// Averages the gradients of step `step`. `failure`: this rank's step failed.
  /// Collective over the data-parallel ranks.
  /// Throws: UserError when any data-parallel rank's step failed.
  void finish(const std::optional<std::string>& failure, std::int64_t step);

  /// Makes every gradient the average over replicas, where a backward outside of a step or a step
  /// that did not average has added to one on any rank; else one agreement of two bytes.
  /// Collective over the DP_GROUP, with tensor parallelism over the world.
  /// What was added to a distributed parameter counts as in a step: it met the samples that its
  /// TP_GROUP has met. A tensor that a script has put in the place of its average, such as a
  /// clamped one, stays what it is where the ranks that hold the parameter have done the same.
  /// Throws: UserError on all those ranks for a distributed parameter that has an average already,
  /// to which something was added, naming it and the rank; as GradientReducer::average_rest.
  void average_rest();

  /// Shares the optimizer's state of exactly these parameters out over the ranks that hold them:
  /// from now on their averages go to their owners alone. Gradients are averages when it is called.
  /// Between steps, alike on all ranks. Not collective.
  void share_state(const ParameterSet& parameters);
  /// Of the DP_GROUP and of the RDP_GROUP, in this order; none without replicas.
  const std::vector<std::unique_ptr<StateOwners>>& state_owners() const {
    return state_owners_;
  }
  /// GradientPart::forget_averages.
  void forget_averages(const ParameterSet* of, bool set_to_none);

 private:
  void add(
      comm::ProcessGroup& group,
      comm::ProcessGroup& control,
      NamedTensors parameters,
      const GradientReducer::Options& options);
  comm::ProcessGroup& group_for(Group kind, const Options& options);

  Context& context_;
  comm::WorldPtr world_; // keeps the groups usable until the reducers are gone
  std::unique_ptr<F32Gradients> f32_gradients_; // where `f32_sums`, with or without replicas
  std::vector<comm::ProcessGroupPtr> own_groups_;
  std::vector<std::unique_ptr<GradientReducer>> reducers_;
  std::vector<std::unique_ptr<StateOwners>> state_owners_; // for each of them
  std::vector<GradientPart*> parts_; // the reducers, and what was added
  std::vector<SettlingGradientPart*> added_;
  bool has_hook_ = false;
  bool all_used_;
  int passes_per_step_;
  int passes_ = 0; // steps since gradients were last averaged
};

} // namespace tessera::data_parallel
