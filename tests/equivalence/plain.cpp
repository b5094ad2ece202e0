#include "tests/equivalence/plain.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <utility>

#include "tessera/half/operators.h"

#include "tests/equivalence/dropout.h"

namespace tessera::equivalence {

namespace {

using torch::Tensor;

/// Half the distance of two numbers of the type, relative.
double last_bit(at::ScalarType type) {
  switch (type) {
    case at::kHalf:
      return 4.9e-4;
    case at::kBFloat16:
      return 3.9e-3;
    default:
      return 6e-8;
  }
}

/// A loss scale, as the documentation describes it.
class Scale {
 public:
  explicit Scale(const optim::LossScaleOptions& options)
      : options_(options),
        value_(
            options.dynamic_loss_scale ? options.dynamic_loss_args.init_scale
                                       : options.static_loss_scale) {}
  double value() const {
    return value_;
  }
  void update(bool overflow) {
    if (!options_.dynamic_loss_scale) {
      return;
    }
    const auto& args = options_.dynamic_loss_args;
    if (overflow) {
      value_ = std::max(value_ / args.scale_factor, args.min_scale);
      clean_ = 0;
    } else if (++clean_ % args.scale_window == 0) {
      value_ *= args.scale_factor;
    }
  }

 private:
  optim::LossScaleOptions options_;
  double value_;
  std::int64_t clean_ = 0;
};

class PlainTraining {
 public:
  PlainTraining(
      const Case& one,
      int world,
      std::uint64_t seed,
      bool shake,
      const SummedOverGroup& summed)
      : case_(one),
        summed_(summed),
        world_(world),
        seed_(seed),
        type_(one.course.type),
        signature_(one.tree.modules[one.tree.root].signature),
        scale_(one.course.loss_scale) {
    torch::manual_seed(seed);
    net_ = make_program(std::make_shared<const Tree>(one.tree), {});
    parameters_ = named(net_->named_parameters());
    buffers_ = named(net_->named_buffers());
    for (auto& [name, tensor] : parameters_) {
      trainable_[name] = tensor.requires_grad();
    }
    const torch::NoGradGuard no_grad;
    if (shake) {
      for (auto& [name, tensor] : parameters_) {
        tensor.mul_(1 + 2 * last_bit(type_) * torch::randn_like(tensor).sign());
      }
    }
    if (type_ != at::kFloat) {
      convert();
    }
    Named list;
    for (auto& [name, tensor] : parameters_) {
      list.emplace_back(name, type_ == at::kFloat ? tensor : masters_.at(name));
    }
    optimizer_ = make_optimizer(case_.course, list, /*plain=*/true);
  }

  Trained train() {
    int step = 0;
    for (; part_ < case_.parts.size(); ++part_) {
      const Strategy& strategy = case_.parts[part_];
      zero(/*set_to_none=*/true); // a checkpoint holds no gradients
      for (int i = 0; i < strategy.steps; ++i, ++step) {
        step_of_part_ = i;
        optimizer_step(strategy, step);
      }
    }
    return std::move(result_);
  }

 private:
  void convert() {
    if (type_ == at::kHalf) {
      half::support_processor();
    }
    for (auto& [name, tensor] : parameters_) {
      masters_[name] = tensor.detach().clone().requires_grad_();
      tensor.set_data(tensor.detach().to(type_));
    }
    for (auto& [name, tensor] : buffers_) {
      if (tensor.is_floating_point()) {
        tensor.set_data(tensor.to(type_));
      }
    }
  }

  void zero(bool set_to_none) {
    for (auto& [name, tensor] : parameters_) {
      Tensor& gradient = tensor.mutable_grad();
      if (set_to_none) {
        gradient = Tensor();
      } else if (gradient.defined()) {
        gradient = gradient.detach().zero_();
      }
    }
  }

  void zero(Zeroing how) {
    if (how != Zeroing::kKept) {
      zero(how == Zeroing::kNone);
    }
  }

  /// Runs a step of every replica; all begin with the same buffers, and those of the first one that
  /// has data are those of all after it. `replica_done` is called after the last microbatch of
  /// each.
  template <typename Run, typename Done>
  void on_replicas(
      const Strategy& strategy,
      StepKind kind,
      int number,
      const Run& run,
      const Done& replica_done) {
    State before;
    for (const auto& [name, tensor] : buffers_) {
      before[name] = tensor.clone();
    }
    State after;
    const int replicas = replicas_of(strategy.config, world_);
    for (int replica = 0; replica < replicas; ++replica) {
      for (auto& [name, tensor] : buffers_) {
        tensor.copy_(before[name]);
      }
      const Batch mine = batch_of(strategy, world_, seed_, kind, number, replica);
      const auto rows = mine.x.size(0) / strategy.config.microbatches;
      std::int64_t before = 0;
      for (int other = 0; other < replica; ++other) {
        before += std::int64_t{rows_of(strategy, number, other)} * strategy.config.microbatches;
      }
      for (int i = 0; i < strategy.config.microbatches; ++i) {
        const auto masks = masks_of(strategy, before + i * rows, rows);
        run(replica, mine.rows(i * rows, rows));
      }
      replica_done();
      if (replica == strategy.ways.first(step_of_part_)) {
        for (const auto& [name, tensor] : buffers_) {
          after[name] = tensor.clone();
        }
      }
    }
    for (auto& [name, tensor] : buffers_) {
      tensor.copy_(after[name]);
    }
    ++steps_;
  }

  std::unique_ptr<MasksOfOneProcess>
  masks_of(const Strategy& strategy, std::int64_t before, std::int64_t samples) const {
    if (!case_.course.drops) {
      return nullptr;
    }
    return std::make_unique<MasksOfOneProcess>(
        MaskPlace{static_cast<std::uint64_t>(strategy.config.seed), steps_, before, samples});
  }

  PerReplica evaluated(const Strategy& strategy) {
    PerReplica losses(replicas_of(strategy.config, world_));
    const torch::NoGradGuard no_grad;
    net_->eval();
    const auto run = [&](int replica, const Batch& b) {
      const auto parts = losses_of(net_, signature_, b.x, b, type_);
      losses[replica].push_back(parts[0] + parts[1]);
    };
    on_replicas(strategy, StepKind::kEvaluation, evaluations_++, run, [] {});
    net_->train();
    return losses;
  }

  void train_step(const Strategy& strategy, bool last_pass) {
    const int replicas = replicas_of(strategy.config, world_);
    const double factor = strategy.average ? 1.0 / strategy.config.microbatches : 1;
    // What overflows f16 depends on where a gradient is divided by the replicas: after the last
    // backward before an update, or after that of each microbatch, for a parameter of which ranks
    // keep parts; and whether its replicas are summed first.
    const bool divides_after = type_ == at::kHalf;
    const bool divides_each = divides_after && strategy.config.sharded_data_parallel_degree > 1;
    const double divided_before = divides_after ? 1 : replicas;
    auto& losses = result_.losses.emplace_back(replicas);
    auto& gradients = result_.input_gradients.emplace_back(replicas);
    State sums = divides_after ? taken_gradients() : State();
    const auto divide = [&](std::int64_t least_elements, double weight) {
      for (const auto& [name, gradient] : taken_gradients(least_elements)) {
        Tensor& sum = sums[name];
        const Tensor own = gradient * (weight / replicas); // of sums in f32
        sum = sum.defined() ? sum + own : own;
      }
    };
    const auto run = [&](int replica, const Batch& b) {
      auto x = b.x.clone().requires_grad_();
      const auto parts = losses_of(net_, signature_, x, b, type_);
      const auto loss = parts[0] + parts[1];
      const double weight = weight_of(strategy, replica);
      const double share = divides_after ? 1 : weight / divided_before;
      const double part =
          strategy.ways.weight(step_of_part_, replica, strategy.rows_of_replica); // 0: joined
      (loss * (factor * scale() * share * part)).backward();
      losses[replica].push_back(loss.detach());
      gradients[replica].push_back(gradient_or_zeros(x) / share);
      if (divides_each) {
        divide(strategy.config.sdp_param_persistence_threshold, weight);
      }
    };
    int replica = 0;
    undivided_.resize(replicas);
    on_replicas(strategy, StepKind::kTraining, trained_++, run, [&] {
      if (!divides_after) {
        return;
      }
      const double weight = weight_of(strategy, replica);
      const int own = replica++;
      for (const auto& [name, gradient] : taken_gradients()) {
        Tensor& sum = undivided_.at(first_summed_with(strategy, own, name))[name];
        const Tensor weighted = weight == 1 ? gradient : gradient * weight;
        sum = sum.defined() ? sum + weighted : weighted;
      }
    });
    if (last_pass) {
      for (const State& own : std::exchange(undivided_, {})) {
        for (const auto& [name, gradient] : own) {
          Tensor& sum = sums[name];
          sum = sum.defined() ? sum + gradient / replicas : gradient / replicas;
        }
      }
    }
    for (const auto& [name, sum] : sums) {
      parameters_.at(name).mutable_grad() = sum;
    }
    if (last_pass && strategy.ways.hook == HookKind::kEverySecond && replicas > 1) {
      for (auto& [name, tensor] : parameters_) {
        if (tensor.grad().defined()) {
          tensor.mutable_grad() = every_second(tensor.grad());
        }
      }
    }
  }

  /// The first of the replicas whose sum of this gradient is one sum before it is divided.
  int first_summed_with(const Strategy& strategy, int replica, const std::string& name) const {
    const config::Config& config = strategy.config;
    const bool is_summed = summed_.at(part_).contains(name);
    const int together = is_summed && !config.prescaled_batch ? config.tensor_parallel_degree : 1;
    return replica - replica % together;
  }

  /// Leaves parameters of so many elements or more without gradients.
  State taken_gradients(std::int64_t least_elements = 0) {
    State taken;
    for (auto& [name, tensor] : parameters_) {
      if (tensor.grad().defined() && tensor.numel() >= least_elements) {
        taken[name] = std::exchange(tensor.mutable_grad(), Tensor());
      }
    }
    return taken;
  }

  double scale() const {
    return type_ == at::kHalf ? scale_.value() : 1;
  }

  /// The gradients that the optimizer uses, by name.
  State stepped_gradients() {
    State gradients;
    for (auto& [name, tensor] : parameters_) {
      if (type_ != at::kFloat) {
        Tensor& gradient = masters_.at(name).mutable_grad();
        gradient = tensor.grad().defined() ? tensor.grad().to(at::kFloat) / scale() : Tensor();
        if (gradient.defined()) {
          gradients[name] = gradient;
        }
      } else if (tensor.grad().defined()) {
        gradients[name] = tensor.grad();
      }
    }
    return gradients;
  }

  void update(Snapshot& snapshot) {
    for (const auto& [name, tensor] : parameters_) {
      if (tensor.grad().defined()) {
        snapshot.gradients[name] = tensor.grad().clone();
      }
    }
    State gradients = stepped_gradients();
    snapshot.norm = norm_of(gradients);
    snapshot.overflow = type_ == at::kHalf && !std::isfinite(snapshot.norm);
    if (snapshot.overflow) {
      zero(true);
    } else {
      if (case_.course.clip && snapshot.norm > *case_.course.clip) {
        const double factor = *case_.course.clip / (snapshot.norm + 1e-6);
        for (auto& [name, gradient] : gradients) {
          gradient.mul_(factor);
          if (type_ != at::kFloat) { // those of 16 bits are clipped as well, and may be kept
            parameters_.at(name).mutable_grad().mul_(factor);
          }
        }
      }
      optimizer_->step();
      const torch::NoGradGuard no_grad;
      for (auto& [name, master] : masters_) {
        parameters_.at(name).copy_(master);
      }
    }
    scale_.update(snapshot.overflow);
    snapshot.loss_scale = scale();
    for (const auto* state : {&parameters_, &buffers_}) {
      for (const auto& [name, tensor] : *state) {
        snapshot.values[name] = tensor.detach().clone();
      }
    }
  }

  void optimizer_step(const Strategy& strategy, int step) {
    const Around& around = case_.course.steps.at(step);
    Snapshot& snapshot = result_.snapshots.emplace_back();
    for (auto& [name, tensor] : parameters_) {
      tensor.set_requires_grad(trainable_.at(name) && kind_of(name) != around.frozen);
    }
    zero(around.zeroing);
    if (around.evaluates) {
      snapshot.evaluated = evaluated(strategy);
    }
    for (int pass = 0; pass < strategy.passes; ++pass) {
      train_step(strategy, pass + 1 == strategy.passes);
    }
    set_rate(*optimizer_, case_.course, around.rate);
    update(snapshot);
    if (around.zeroes_after) {
      zero(true);
    }
  }

  const Case& case_;
  const SummedOverGroup& summed_;
  std::size_t part_ = 0;
  int world_;
  std::uint64_t seed_;
  at::ScalarType type_;
  Signature signature_;
  Scale scale_;
  Program net_{nullptr};
  State parameters_, buffers_;
  State masters_; // of 16-bit parameters
  std::map<std::string, bool> trainable_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  Trained result_;
  int step_of_part_ = 0;
  int trained_ = 0;
  int evaluations_ = 0;
  std::vector<State> undivided_; // by replica, sums of f16 gradients since the last update
  std::uint32_t steps_ = 0; // of both kinds
};

} // namespace

Batch batch_of(
    const Strategy& strategy,
    int world,
    std::uint64_t seed,
    StepKind kind,
    int number,
    int replica) {
  const int microbatches = strategy.config.microbatches;
  const int replicas = replicas_of(strategy.config, world);
  int first = 0;
  int all = 0;
  for (int i = 0; i < replicas; ++i) {
    const int rows = rows_of(strategy, number, i) * microbatches;
    first += i < replica ? rows : 0;
    all += rows;
  }
  const int apart = kind == StepKind::kEvaluation ? 500 : 0;
  torch::manual_seed(seed * 1000 + static_cast<std::uint64_t>(number + apart));
  const Batch batch = {
      torch::randn({all, kWidth}),
      torch::randn({all, kWidth}),
      torch::randint(0, kWords, {all, kWidth}, torch::kLong)};
  return batch.rows(first, rows_of(strategy, number, replica) * microbatches);
}

Tensor gradient_or_zeros(const Tensor& x) {
  return x.grad().defined() ? x.grad().clone() : torch::zeros_like(x);
}

State named(const torch::OrderedDict<std::string, Tensor>& all) {
  State result;
  std::set<const void*> seen;
  for (const auto& item : all) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      result[item.key()] = item.value();
    }
  }
  return result;
}

double norm_of(const State& state) {
  double sum = 0;
  for (const auto& [name, tensor] : state) {
    sum += std::pow(tensor.to(torch::kDouble).norm().item<double>(), 2);
  }
  return std::sqrt(sum);
}

Trained train_plain(
    const Case& one,
    int world,
    std::uint64_t seed,
    bool shake,
    const SummedOverGroup& summed) {
  return PlainTraining(one, world, seed, shake, summed).train();
}

} // namespace tessera::equivalence
