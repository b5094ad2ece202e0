#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/autograd/function.h>

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
/// The order of buckets is the same on all ranks, and nothing waits inside a backward, so flows may
/// differ between ranks. Gradients that come after their bucket has left go with the next one.
/// Collective over the data-parallel ranks. Threads: as GradientReducer.
class ShardReducer : public data_parallel::SettlingGradientPart {
 public:
  struct Options {
    /// Most elements of a bucket; a larger parameter travels alone.
    std::int64_t bucket_elements = 1 << 20;
    double scale = 1; // of the sum over all data-parallel ranks
  };

  /// `replicas`: ranks with the same parts. `control`: all data-parallel ranks, for agreements.
  ShardReducer(
      comm::World& world,
      const DividedParameters& parameters,
      comm::ProcessGroup& replicas,
      comm::ProcessGroup& control,
      const Options& options);
  ~ShardReducer() override;
  ShardReducer(const ShardReducer&) = delete;
  ShardReducer& operator=(const ShardReducer&) = delete;

  /// Before `begin`: how many microbatches the step has. Not collective.
  void expect_microbatches(int count) {
    microbatches_ = count;
  }
  void begin(bool reduce) override;
  /// A microbatch of the step is over on this rank. Not collective.
  void end_microbatch();
  bool had_backward() const override {
    return backward_;
  }
  void expect_backward() override {
    backward_ = true;
  }
  bool finish(const std::optional<std::string>& failure) override;
  void average_rest() override;
  /// The same on all data-parallel ranks: an error of `finish` where it was not.
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
    int count = 0; // additions in this microbatch
    int expected = 0; // additions in the last microbatch that had any
    int first_done = -1; // position in the order of completion
    int bucket = -1;
  };
  struct Bucket {
    std::vector<int> parameters;
    std::int64_t part_elements = 0; // of each rank
    int missing = 0;
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
  void make_buckets(const std::vector<int>& order);
  void learn_order();
  void added(int index);
  void expect_additions();
  void launch_through(int microbatch);
  void launch_ready();
  void launch(std::size_t bucket, bool zeros);
  void land(bool wait);
  static at::TensorOptions options_of_sum(const at::Tensor& part);
  void average(Parameter& parameter);
  void see(Parameter& parameter);
  void notice_zeroed(Parameter& parameter);
  void forget(Parameter& parameter, bool set_to_none);
  void show_handle(Parameter& parameter);
  at::Tensor& whole_gradient(const Parameter& parameter) const {
    return parameter.divided->whole.mutable_grad();
  }
  bool has_whole_gradient(const Parameter& parameter) const;

  comm::World& world_;
  const DividedParameters& divided_;
  comm::ProcessGroup& shards_;
  comm::ProcessGroup& replicas_;
  comm::ProcessGroup& control_;
  Options options_;
  std::vector<Parameter> parameters_;
  std::vector<int> order_;
  std::vector<Bucket> buckets_;
  std::deque<Flight> flights_;
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
