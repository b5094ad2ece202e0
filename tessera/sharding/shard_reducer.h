#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/autograd/function.h>

#include "tessera/autograd/f32_gradients.h"
#include "tessera/comm/world.h"
#include "tessera/data_parallel/gradient_part.h"
#include "tessera/sharding/divided_parameters.h"
#include "tessera/sharding/parted_tensor.h"

namespace tessera::sharding {

/// Gradients of divided parameters. In every microbatch each bucket is reduce-scattered in the
/// shard group once, as soon as its parameters have been added to as often as in the microbatch
/// before, and this rank adds its part to a sum; a rank whose flow reached none of them sends
/// zeros. At the end of the last backward pass before an update the sums are averaged with the
/// ranks that keep the same parts.
///
/// The order of buckets is the same on all ranks, and nothing depends on a wait inside a backward,
/// so flows may differ between ranks: a rank that is ahead of the others stops until two buckets
/// are on their way at most, for a bounded time, since another rank may send its own only at the
/// end of the step. Gradients that come after their bucket has left go with the next one. Where
/// microbatches overlap, a rank knows only how often a parameter was added to: a bucket leaves as
/// often as there are microbatches, each time after as many additions as one has. Collective over
/// the data-parallel ranks. Threads: as GradientReducer.
class ShardReducer : public data_parallel::SettlingGradientPart {
 public:
  /// How the microbatches of a step follow each other on this rank.
  enum class Microbatches {
    kInTurn, // one ends before the next begins, which `end_microbatch` tells
    kOverlapping, // in a pipeline; `end_microbatch` is nothing
    kOrdered, // so too, but each parameter is added to in one order (GradientOrder)
  };
  struct Options {
    /// Most elements of a bucket; a parameter of kAloneElements or of more than these travels
    /// alone.
    std::int64_t bucket_elements = 500'000'000;
    double scale = 1; // of the sum over all data-parallel ranks
    double weight = 1; // of this rank's gradients in it
    Microbatches microbatches = Microbatches::kInTurn;
    /// Gradients of 16-bit parameters are f32 tensors, of which averages are not rounded either.
    bool f32_sums = false;
  };
  /// A gradient of so many elements (1 MiB of f32) leaves as it is, without a copy into a bucket,
  /// where its elements divide by the ranks of the shard group.
  static constexpr std::int64_t kAloneElements = std::int64_t{1} << 18;
  /// Groups outlive the reducer; no other reducer sends in `shards` or `replicas`.
  struct Groups {
    comm::ProcessGroup& shards; // hold one copy of the parameters together
    comm::ProcessGroup& replicas; // keep the same parts
    comm::ProcessGroup& control; // all that average together, for agreements
  };

  /// `parameters` outlive the reducer.
  ShardReducer(
      comm::World& world,
      const std::vector<const DividedParameter*>& parameters,
      const Groups& groups,
      const Options& options);
  ~ShardReducer() override;
  ShardReducer(const ShardReducer&) = delete;
  ShardReducer& operator=(const ShardReducer&) = delete;

  /// Sets how many microbatches the step has, before `begin`. Not collective.
  void expect_microbatches(int count) {
    microbatches_ = count;
  }
  void begin(bool reduce) override;
  /// Is called when a microbatch of the step is over on this rank. Not collective.
  void end_microbatch();
  bool had_backward() const override {
    return backward_;
  }
  void expect_backward() override {
    backward_ = true;
  }
  bool finish(const std::optional<std::string>& failure) override;
  void average_rest() override;
  /// Is called on all data-parallel ranks alike; where it was not, `finish` throws.
  void forget_averages(const data_parallel::ParameterSet* of, bool set_to_none) override;
  /// Forgets gradients whose handle the script has dropped. Not collective.
  void settle();

 private:
  // A weak handle tells a gradient from a later one at the same address.
  using WeakGradient = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Parameter {
    const DividedParameter* divided;
    std::shared_ptr<GradientSlot> slot;
    std::shared_ptr<torch::autograd::Node> accumulator; // with our hook, once it needed gradients
    std::uintptr_t hook = 0;
    bool trainable = false;
    int reached_in = -1; // the last microbatch of this step that has added to it on this rank
    /// What this rank has left in the script's sight; other things there were put by the script,
    /// which then has set its gradient to zero.
    std::optional<WeakGradient> seen = std::nullopt;
    int zeroed_in = -1; // the last microbatch of this step in which the script has done so
    int count = 0; // additions in this microbatch; where they overlap, in this step
    int expected = 0; // additions in the last microbatch that had any
    int first_done = -1; // position in the order of completion
    int bucket = -1;
    std::int64_t offset = 0; // of its part in the bucket's
    bool packed = false; // into the bucket that leaves next
    std::deque<at::Tensor> rounds = {}; // kOrdered: of microbatches whose bucket has not left
  };
  struct Bucket {
    std::vector<int> parameters;
    std::int64_t part_elements = 0; // of each rank
    int missing = 0; // kInTurn
    at::Tensor flat = {}; // [ranks, part_elements] that leaves next, from its first gradient on
    // Memory of the last one that has arrived, for the next microbatch of the step: new memory of
    // this size comes from the system page by page, which takes longer than the sum over the ranks.
    at::Tensor used_flat = {};
    at::Tensor used_part = {};
  };
  /// A bucket on its way.
  struct Flight {
    std::size_t bucket;
    int microbatch; // what a later one sets to zero is dropped
    at::Tensor flat;
    at::Tensor part;
    comm::WorkPtr work;
  };

  void find_trainable();
  bool travels_alone(const Parameter& parameter) const;
  void make_buckets(const std::vector<int>& order);
  void learn_order();
  void added(int index);
  void expect_additions();
  bool overlaps() const {
    return options_.microbatches != Microbatches::kInTurn;
  }
  void added_while_overlapping(Parameter& parameter);
  void expect_mean_additions();
  bool is_ready(const Bucket& bucket) const;
  void launch_through(int microbatch);
  void launch_ready();
  void launch(std::size_t bucket);
  void take_along(Parameter& parameter);
  void take_gradient(Parameter& parameter);
  bool is_bucket(const Bucket& bucket, const at::Tensor& gradient) const;
  at::Tensor new_flat(Bucket& bucket) const;
  void pack(Parameter& parameter, const at::Tensor& gradient);
  at::Tensor slice_of(const Parameter& parameter, int rank) const;
  void land(bool wait);
  void await_room();
  void take_part(const Flight& flight);
  at::TensorOptions options_of_sum(const at::Tensor& part) const;
  void average(Parameter& parameter);
  void see(Parameter& parameter);
  bool is_replaced(const Parameter& parameter) const;
  void notice_zeroed(Parameter& parameter);
  void forget(Parameter& parameter, bool set_to_none);
  static std::string text_of_zeroing(const std::string& name);
  void show_handle(Parameter& parameter);
  at::Tensor& whole_gradient(const Parameter& parameter) const {
    return parameter.divided->whole.mutable_grad();
  }
  bool has_whole_gradient(const Parameter& parameter) const;
  bool has_left(int bucket) const;
  bool waits(const Parameter& parameter) const;

  comm::World& world_;
  comm::ProcessGroup& shards_;
  comm::ProcessGroup& replicas_;
  comm::ProcessGroup& control_;
  Options options_;
  std::vector<Parameter> parameters_;
  std::unique_ptr<F32Gradients> f32_gradients_; // where `f32_sums`
  std::vector<int> order_;
  std::vector<Bucket> buckets_;
  std::deque<Flight> flights_;
  std::chrono::microseconds patience_ = std::chrono::seconds(1); // of await_room
  int microbatches_ = 1;
  int microbatch_ = 0; // that runs
  int launching_ = 0; // microbatch of the next bucket to launch
  std::size_t next_bucket_ = 0;
  int completed_ = 0;
  bool reduce_ = true;
  bool active_ = false;
  bool backward_ = false;
  bool learnt_ = false;
};

} // namespace tessera::sharding
