#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>

#include "tessera/comm/world.h"
#include "tessera/data_parallel/comm_hook.h"
#include "tessera/data_parallel/gradient_part.h"

namespace tessera::data_parallel {

/// Averages the gradients of data-parallel replicas in buckets that travel
/// while the step's backward still runs.
///
/// A bucket leaves when each of its parameters has been added to as often as in the previous step,
/// in an order that all ranks share. Later additions are noticed at the end of the step and sent
/// again, so data-dependent flow costs time, never correctness. A parameter that has no gradient on
/// any rank stays without one. A sparse gradient travels by itself at the end of the step, as rows
/// (sparse_sum.h); where other ranks have a dense one, the average is dense. Collective over the
/// group. Threads: construction, begin and finish on the step thread; gradients are counted on
/// whichever thread holds the baton. Source: Karakus et al. 2021, section 3.2; Li et al. 2020,
/// section 3.2.
class GradientReducer : public GradientPart {
 public:
  struct Options {
    std::int64_t bucket_bytes = 25 << 20;
    /// false: all buckets leave at the end of the step
    bool overlap = true;
    /// Of the ranks' sum; not given: one over the size of the group.
    std::optional<double> scale = {};
    /// What this rank's gradients are multiplied by before they are added. Those of all ranks add
    /// up to the size of the group.
    double weight = 1;
    /// A GradientOrder says when a parameter is complete, so which part of a
    /// gradient travels when depends on neither timing nor the step before.
    bool ordered = false;
    /// Gradients of 16-bit parameters travel and are averaged in f32, and stay so: somebody sees to
    /// it that they are added up in f32 too (F32Gradients).
    bool f32_sums = false;
    /// Gradients are views of the buckets in which they travel. false: tensors of their own; the
    /// one that a parameter has when its bucket leaves gets the average.
    bool views = true;
    /// A parameter that the backward passes since the last average have not reached on this rank is
    /// a problem (`take_problem`).
    bool all_used = false;
  };

  /// `parameters`: those of this rank, the same on all ranks of the group;
  /// which of them need gradients may change from step to step.
  /// `control`: a second group of the same ranks, for agreements that must not
  /// queue behind buckets.
  GradientReducer(
      comm::World& world,
      comm::ProcessGroup& group,
      comm::ProcessGroup& control,
      std::vector<std::pair<std::string, at::Tensor>> parameters,
      Options options);
  ~GradientReducer() override;
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// From now on the average of parameter i goes to rank owners[i] of the group alone, and the
  /// other ranks have no gradient after a step; -1: every rank has it. An average that is there
  /// already stays with its owner; one that only its owner has goes when all are to have it.
  /// Between steps, alike on all ranks. Not collective.
  void set_owners(const std::vector<int>& owners);

  /// From the next step on buckets are averaged by the hook; nullptr: by an all-reduce, as sparse
  /// gradients and what is added outside of steps are in any case. Alike on all ranks; no parameter
  /// has an owner. Not collective.
  void set_hook(CommHook hook) {
    hook_ = std::move(hook);
  }
  /// Returns this rank's first error of the hook since the step began, or what `all_used` has found
  /// in it, once: the step went on, also on ranks that do not have these parameters. After an error
  /// of the hook averages mean nothing. After `finish`. Not collective.
  std::optional<std::string> take_problem() {
    return std::exchange(problem_, std::nullopt);
  }

  /// The rows of this rank's batch in the step that runs; 0: not known.
  void set_rows(std::int64_t rows) {
    rows_ = rows;
  }
  /// Returns whether ranks of the group said other rows in the last step that had a backward on any
  /// of them. After `finish`, alike on all ranks.
  bool rows_differ() const {
    return rows_differ_;
  }

  /// A number that all ranks of the group have alike in the step that runs.
  void set_agreed(std::uint64_t number) {
    agreed_ = number;
  }
  /// Returns whether they had not in the last step. After `finish`, alike on all ranks.
  bool agreed_differs() const {
    return agreed_differs_;
  }

  /// Starts counting; `reduce` false: gradients of this step only add up.
  void begin(bool reduce) override;

  /// Returns whether this step has added to any gradient here so far.
  bool had_backward() const override {
    return backward_;
  }
  /// A backward reached this model on some rank, perhaps not here: gradients of
  /// earlier steps that wait to be averaged are averaged in this step. Gradients
  /// that no rank of the group adds to are otherwise left alone.
  void expect_backward() override {
    backward_ = true;
  }

  /// Sends what has not left, agrees with the other ranks on who has which
  /// gradient, and makes the averages the parameters' grad: new tensors, which
  /// lie in the buckets, where `views`; a handle taken before keeps what it held. Between the
  /// start of its bucket and the end of the step a parameter has no gradient.
  /// `failure`: this rank's step failed; takes part so that no rank hangs.
  /// Returns whether any rank had a backward in this step.
  /// Throws: UserError with the failing rank's text when any rank failed; on every rank where
  /// gradients were added to an average that only its owner has, see `average_rest`.
  bool finish(const std::optional<std::string>& failure) override;

  /// The first parameter whose gradient is not the replicas' average, as far as
  /// this rank knows: something was added outside of a step or in a step that
  /// did not average, or the gradient is another tensor than the last average.
  /// "" when there is none. A gradient that was changed in place counts as the
  /// average it was: scaling and clipping keep replicas equal; zeros are one.
  /// Not collective.
  std::string unaveraged_gradient() const;

  /// Returns what `average_rest` refuses on this rank. Not collective.
  std::optional<std::string> refused_gradient() const;

  /// Averages the gradients of which `unaveraged_gradient` tells on any rank, in
  /// place. Gradients that are equal on all ranks stay what they are, so an
  /// average to which something was added becomes the average of the sum. A
  /// gradient that any rank has, all have then, or its owner. So does a tensor that a script has
  /// put in the place of an average: it is divided by the ranks of the group, whatever `scale` is,
  /// where what a backward has added is multiplied by that. Throws: UserError on every rank, naming
  /// parameter and rank, where the sum cannot be known: an average that only its owner has was
  /// added to or replaced.
  void average_rest();

  void forget_averages(const ParameterSet* of, bool set_to_none) override;

 private:
  // A weak handle tells a gradient from a later one at the same address, and
  // does not keep its memory.
  using StrongGradient = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  using WeakGradient = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Parameter {
    std::string name;
    at::Tensor tensor;
    // The node that adds to its gradient, once it needed one, with our hook.
    std::shared_ptr<torch::autograd::Node> accumulator;
    std::uintptr_t hook = 0;
    bool trainable = false;
    /// Some rank had a sparse gradient, so it travels outside of the buckets.
    bool by_itself = false;
    bool travels = false; // its gradient left with a bucket in this step
    at::Tensor own; // the gradient that did, without `views`
    /// Its gradient grew by a part that no bucket took along.
    bool grown = false;
    int owner = -1; // rank that gets the average; -1: all
    at::Tensor base; // the owner's average of earlier steps, while a step adds to it
    /// What the script sees in the place of `base`: zeros, to which backward adds. A script that
    /// puts something else there has set its gradient to zero.
    std::optional<WeakGradient> zeros = std::nullopt;
    std::int64_t zeros_version = 0; // before anybody wrote to them
    /// Grew on top of an average that other ranks do not have.
    bool mixed = false;
    /// The gradient that did; of none where another tensor may hold the sum as well.
    WeakGradient mixed_in{StrongGradient()};
    WeakGradient average{StrongGradient()}; // the gradient as handed back
    int count = 0; // additions in this step
    int expected = 0; // additions in the step before
    int first_done = -1; // position in the order of completion
  };
  struct Bucket {
    std::vector<int> parameters;
    std::vector<std::int64_t> offsets; // of theirs in the buffer, in elements
    std::int64_t elements = 0;
    at::Tensor flat;
    at::Tensor late_parts; // what came after the bucket had left
    comm::WorkPtr work;
    int owner = -1;
    bool left = false; // in this step
    int missing = 0; // parameters that are not complete yet
    bool late = false;
  };

  void hook(int index);
  at::TensorOptions options_of_sum(const at::Tensor& parameter) const;
  bool in_bucket(int index) const {
    return bucket_of_[index] >= 0;
  }
  void counted(int index);
  void no_longer_missing(Bucket& bucket);
  void complete(int index);
  void before_late(int index);
  bool is_unaveraged(const Parameter& parameter) const;
  void find_trainable();
  void make_buckets(const std::vector<int>& order);
  at::Tensor slice_of(const Bucket& bucket, std::size_t i) const;
  at::Tensor average_of(const Bucket& bucket, std::size_t i);
  bool is_free_but_for_its_gradients(const Bucket& bucket) const;
  at::Tensor place(int index);
  void fill(Bucket& bucket, at::Tensor& flat, bool zeros);
  void weigh(const at::Tensor& flat) const;
  comm::WorkPtr start_average(const at::Tensor& flat, int owner);
  comm::WorkPtr start_sum(const at::Tensor& flat, int owner);
  void end_average(comm::Work& work, const at::Tensor& flat, int owner);
  comm::WorkPtr start_bucket(const Bucket& bucket, const at::Tensor& flat);
  void launch(Bucket& bucket, bool zeros);
  void launch_ready();
  void send_late_parts(Bucket& bucket);
  void hand_back(Bucket& bucket);

  // Averages that only their owners have (gradient_reducer_owners.cpp).
  bool is_elsewhere(int owner) const {
    return owner >= 0 && owner != group_.rank();
  }
  bool is_here(int owner) const {
    return owner == group_.rank();
  }
  double scale() const {
    return options_.scale.value_or(1.0 / group_.size());
  }
  std::int64_t bucket_bytes() const;
  bool reduces_to_owner(at::ScalarType type) const;
  bool stays_apart(const Parameter& parameter) const;
  static bool is_all_zero(const at::Tensor& gradient);
  void note_mixed(Parameter& parameter) const;
  void set_averages_aside();
  void notice_zeroed(Parameter& parameter);
  void add_averages_back();
  void free_what_has_arrived();
  std::optional<std::string> refused_addition() const;
  std::optional<std::string> unused_parameter() const;
  bool shares() const;

  struct EndOfStep;
  void launch_rest(bool zeros);
  void end_averages();
  void give_up();
  void take_averages(const EndOfStep& end);
  void add_sparse_average(Parameter& parameter, const at::Tensor& own);
  void count_as_average(const Parameter& parameter) const;
  void average_in_place(const std::vector<Parameter*>& list);
  void learn_order();

  comm::World& world_;
  comm::ProcessGroup& group_;
  comm::ProcessGroup& control_;
  Options options_;
  CommHook hook_;
  std::int64_t rows_ = 0; // of this rank's batch
  bool rows_differ_ = false;
  std::uint64_t agreed_ = 0;
  bool agreed_differs_ = false;
  std::optional<std::string> problem_; // of this step
  std::vector<Parameter> parameters_;
  std::vector<int> order_; // of completion, as far as it is known
  std::vector<int> bucket_of_; // -1: needs no gradient, or travels by itself
  std::vector<Bucket> buckets_;
  std::size_t next_bucket_ = 0;
  int completed_ = 0;
  bool reduce_ = true;
  bool active_ = false;
  bool backward_ = false;
  bool learnt_ = false;
};

} // namespace tessera::data_parallel
