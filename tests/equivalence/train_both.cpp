#include "tests/equivalence/train_both.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>

#include <torch/torch.h>

#include "tessera/tessera.h"

#include "tests/equivalence/interpreter.h"

namespace tessera::equivalence {

namespace {

constexpr double kTolerance = 1e-5;
// Times the norm of all gradients: below it a gradient is a sum of terms that
// cancel, and its digits are those of rounding.
constexpr double kNoise = 3e-7;
// A loss is a mean of terms of about 1 that can cancel: a few last bits of such
// a term.
constexpr double kLossNoise = 1e-6;
// Half the distance of two f32 numbers, relative.
constexpr double kLastBit = 6e-8;

struct Batch {
  torch::Tensor x, y, ids;
  Batch rows(std::int64_t first, std::int64_t count) const {
    return {x.narrow(0, first, count), y.narrow(0, first, count), ids.narrow(0, first, count)};
  }
};

Batch batch_of(std::uint64_t seed, int number, int rows) {
  torch::manual_seed(seed * 1000 + static_cast<std::uint64_t>(number));
  return {
      torch::randn({rows, kWidth}),
      torch::randn({rows, kWidth}),
      torch::randint(0, kWords, {rows, kWidth}, torch::kLong)};
}

// Losses of one microbatch. The last term keeps a graph where nothing that the
// model returns has one.
template <typename Callee>
std::vector<torch::Tensor>
losses_of(Callee& callee, Signature signature, const torch::Tensor& x, const Batch& batch) {
  const Returned out = call_with(callee, signature, {x, torch::tanh(x), x * 0.5}, batch.ids, 4);
  auto one = torch::mse_loss(out.floats[0], batch.y);
  auto two = x.pow(2).mean() * 0.1;
  for (std::size_t i = 1; i < out.floats.size(); ++i) {
    two = two + torch::sin(out.floats[i]).mean() * (1.0 + 0.5 * i);
  }
  return {one + x.mean() * 0.1, two};
}

torch::Tensor gradient_or_zeros(const torch::Tensor& x) {
  return x.grad().defined() ? x.grad().clone() : torch::zeros_like(x);
}

using State = std::map<std::string, torch::Tensor>;

// After one optimizer step.
struct Snapshot {
  State gradients; // before the update; none where undefined
  State values; // parameters and buffers after it
};

struct Trained {
  // By training step, replica and microbatch.
  std::vector<std::vector<std::vector<torch::Tensor>>> losses;
  std::vector<std::vector<std::vector<torch::Tensor>>> input_gradients;
  std::vector<Snapshot> snapshots;
};

// Each tensor once, under its first name, as the library lists it.
std::map<std::string, torch::Tensor> named(
    const torch::OrderedDict<std::string, torch::Tensor>& all) {
  std::map<std::string, torch::Tensor> result;
  std::set<const void*> seen;
  for (const auto& item : all) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      result[item.key()] = item.value();
    }
  }
  return result;
}

torch::optim::SGDOptions options_of_optimizer() {
  return torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01);
}

// `shake`: every parameter begins with another last bit.
Trained train_plain(
    const std::shared_ptr<const Tree>& tree,
    const Strategy& strategy,
    int replicas,
    std::uint64_t seed,
    bool shake) {
  torch::manual_seed(seed);
  Program net = make_program(tree, {});
  const Signature signature = tree->modules[tree->root].signature;
  const auto parameters = named(net->named_parameters());
  const auto buffers = named(net->named_buffers());
  std::vector<torch::Tensor> list;
  for (const auto& [name, tensor] : parameters) {
    list.push_back(tensor);
  }
  if (shake) {
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& tensor : list) {
      tensor.mul_(1 + 2 * kLastBit * torch::randn_like(tensor).sign());
    }
  }
  // An optimizer refuses to have nothing to do.
  list.push_back(torch::zeros({1}, torch::requires_grad()));
  torch::optim::SGD optimizer(list, options_of_optimizer());
  const int microbatches = strategy.config.microbatches;
  const double scale = strategy.average ? 1.0 / microbatches : 1;
  Trained result;
  for (int step = 0; step < strategy.steps; ++step) {
    for (const torch::Tensor& tensor : list) {
      tensor.mutable_grad() = torch::Tensor(); // zeros would be decayed
    }
    for (int pass = 0; pass < strategy.passes; ++pass) {
      const Batch all =
          batch_of(seed, step * strategy.passes + pass, strategy.rows * microbatches * replicas);
      auto& losses = result.losses.emplace_back(replicas);
      auto& gradients = result.input_gradients.emplace_back(replicas);
      State before;
      for (const auto& [name, tensor] : buffers) {
        before[name] = tensor.clone();
      }
      State after;
      for (int replica = 0; replica < replicas; ++replica) {
        for (const auto& [name, tensor] : buffers) {
          tensor.copy_(before[name]); // of the first replica, on all
        }
        for (int i = 0; i < microbatches; ++i) {
          const Batch mine = all.rows((replica * microbatches + i) * strategy.rows, strategy.rows);
          auto x = mine.x.clone().requires_grad_();
          const auto parts = losses_of(net, signature, x, mine);
          const auto loss = parts[0] + parts[1];
          (loss * (scale / replicas)).backward();
          losses[replica].push_back(loss.detach());
          gradients[replica].push_back(gradient_or_zeros(x) * replicas);
        }
        if (replica == 0) {
          for (const auto& [name, tensor] : buffers) {
            after[name] = tensor.clone();
          }
        }
      }
      for (const auto& [name, tensor] : buffers) {
        tensor.copy_(after[name]);
      }
    }
    Snapshot& snapshot = result.snapshots.emplace_back();
    for (const auto& [name, tensor] : parameters) {
      if (tensor.grad().defined()) {
        snapshot.gradients[name] = tensor.grad().clone();
      }
    }
    optimizer.step();
    for (const auto* state : {&parameters, &buffers}) {
      for (const auto& [name, tensor] : *state) {
        snapshot.values[name] = tensor.detach().clone();
      }
    }
  }
  return result;
}

class Comparison {
 public:
  Outcome outcome;

  /// Whether all that differs are numbers.
  bool only_numbers = true;

  void same(
      const torch::Tensor& got,
      const torch::Tensor& wanted,
      const std::string& what,
      double noise = 0) {
    if (got.sizes() != wanted.sizes() || got.dtype() != wanted.dtype()) {
      add(tessera::str(
          what,
          ": ",
          got.toString(),
          got.sizes(),
          " instead of ",
          wanted.toString(),
          wanted.sizes()));
      return;
    }
    const auto x = got.to(torch::kDouble);
    const auto y = wanted.to(torch::kDouble);
    const double difference = (x - y).norm().item<double>();
    const double norm = y.norm().item<double>();
    const double allowed = std::max(kTolerance * norm, noise);
    if (allowed > 0) {
      outcome.worst = std::max(outcome.worst, kTolerance * difference / allowed);
    }
    if (!(difference <= allowed)) {
      only_numbers = only_numbers && std::isfinite(difference);
      outcome.differences.push_back(tessera::str(what, ": off by ", difference, ", norm ", norm));
    }
  }
  void add(std::string difference) {
    only_numbers = false;
    outcome.differences.push_back(std::move(difference));
  }
};

// Ends the library whichever way a case is left.
struct Ended {
  Ended() = default;
  Ended(const Ended&) = delete;
  Ended& operator=(const Ended&) = delete;
  ~Ended() {
    shutdown();
  }
};

double norm_of(const State& state) {
  double sum = 0;
  for (const auto& [name, tensor] : state) {
    sum += std::pow(tensor.norm().item<double>(), 2);
  }
  return std::sqrt(sum);
}

// What every rank of this pipeline holds, by name.
State gathered(const State& local) {
  State all;
  for (auto& part : allgather(local, Group::kPP)) {
    all.merge(part);
  }
  return all;
}

void compare_gradients(
    const State& got, // this rank's own
    const State& wanted,
    const NamedTensors& local,
    const std::string& when,
    Comparison& compare) {
  const double noise = kNoise * norm_of(wanted);
  for (const auto& [name, tensor] : local) {
    const auto mine = got.find(name);
    const auto theirs = wanted.find(name);
    const std::string what = tessera::str("gradient of ", name, when);
    if ((mine == got.end()) != (theirs == wanted.end())) {
      compare.add(tessera::str(what, mine == got.end() ? " is undefined" : " exists"));
    } else if (mine != got.end()) {
      compare.same(mine->second, theirs->second, what, noise);
    }
  }
}

double relative_error(const torch::Tensor& got, const torch::Tensor& wanted) {
  const double norm = wanted.to(torch::kDouble).norm().item<double>();
  const double error = (got.to(torch::kDouble) - wanted.to(torch::kDouble)).norm().item<double>();
  return norm > 0 ? error / norm : 0;
}

/// The largest relative error of what a case compares, between two trainings of
/// one process. An optimizer step that lets parameters grow without bound
/// makes any rounding large.
double furthest(const Trained& one, const Trained& other) {
  double result = 0;
  for (std::size_t i = 0; i < one.input_gradients.size(); ++i) {
    for (std::size_t replica = 0; replica < one.losses[i].size(); ++replica) {
      for (std::size_t m = 0; m < one.losses[i][replica].size(); ++m) {
        result = std::max(
            result,
            relative_error(
                one.input_gradients[i][replica][m], other.input_gradients[i][replica][m]));
      }
    }
  }
  for (std::size_t step = 0; step < one.snapshots.size(); ++step) {
    for (const auto& [name, tensor] : one.snapshots[step].values) {
      result = std::max(result, relative_error(tensor, other.snapshots[step].values.at(name)));
    }
  }
  return result;
}

} // namespace

Outcome train_both(
    const Tree& tree,
    const Strategy& strategy,
    int world,
    std::uint64_t seed,
    double plant) {
  const auto shared = std::make_shared<const Tree>(tree);
  const int replicas = world / strategy.config.pipeline_parallel_degree;
  const Trained wanted = train_plain(shared, strategy, replicas, seed, false);
  const Signature signature = tree.modules[tree.root].signature;
  Comparison compare;
  init(strategy.config);
  const Ended ended;
  ModelOptions options;
  options.overlapping_allreduce = strategy.overlap;
  options.backward_passes_per_step = strategy.passes;
  options.average_grads_across_microbatches = strategy.average;
  options.bucket_cap_mb = strategy.bucket_mb;
  // Only the first replica's parameters may count.
  torch::manual_seed(rdp_rank() == 0 ? seed : seed + 1);
  DistributedModel model(make_program(shared, strategy.scopes), options);
  std::vector<torch::Tensor> list = model.parameters();
  list.push_back(torch::zeros({1}, torch::requires_grad()));
  DistributedOptimizer optimizer(torch::optim::SGD(list, options_of_optimizer()));
  auto train_step = tessera::step([&](torch::Tensor in, torch::Tensor y, torch::Tensor ids) {
    auto x = in.clone().requires_grad_();
    const auto parts = losses_of(model, signature, x, {in, y, ids});
    if (strategy.two_losses) {
      model.backward(parts);
    } else {
      model.backward(parts[0] + parts[1]);
    }
    return std::make_pair((parts[0] + parts[1]).detach(), gradient_or_zeros(x));
  });
  const int microbatches = strategy.config.microbatches;
  int number = 0;
  for (int step = 0; step < strategy.steps; ++step) {
    optimizer.zero_grad();
    for (int pass = 0; pass < strategy.passes; ++pass, ++number) {
      const int rows = strategy.rows * microbatches;
      const Batch mine = batch_of(seed, number, rows * replicas).rows(dp_rank() * rows, rows);
      const auto [loss, gradient] = train_step(mine.x, mine.y, mine.ids);
      for (int i = 0; i < microbatches; ++i) {
        const std::string where = tessera::str(", step ", number, ", microbatch ", i);
        compare.same(loss[i], wanted.losses[number][dp_rank()][i], "loss" + where, kLossNoise);
        compare.same(
            gradient[i], wanted.input_gradients[number][dp_rank()][i], "input gradient" + where);
      }
    }
    const Snapshot& snapshot = wanted.snapshots[step];
    const std::string when = tessera::str(" at optimizer step ", step);
    State gradients;
    for (const auto& [name, parameter] : model.local_parameters()) {
      if (parameter.grad().defined()) {
        gradients[name] = parameter.grad().clone();
        if (plant > 0 && !compare.outcome.planted &&
            gradients[name].norm().item<double>() > 0.1 * norm_of(snapshot.gradients)) {
          gradients[name].mul_(1 + plant);
          compare.outcome.planted = true;
        }
      }
    }
    compare_gradients(gradients, snapshot.gradients, model.local_parameters(), when, compare);
    optimizer.step();
    State values;
    for (const auto& held : {model.local_parameters(), model.local_buffers()}) {
      for (const auto& [name, tensor] : held) {
        values[name] = tensor.detach().clone();
      }
    }
    values = gathered(values);
    // Buffers are those of the first replica.
    if (dp_rank() != 0) {
      for (const auto& item : model.net()->named_buffers()) {
        values.erase(item.key());
      }
    }
    std::size_t compared = 0;
    for (const auto& [name, tensor] : values) {
      const auto found = snapshot.values.find(name);
      if (found == snapshot.values.end()) {
        compare.add(tessera::str("the model has no tensor '", name, "'", when));
        continue;
      }
      ++compared;
      compare.same(tensor, found->second, name + when);
    }
    if (dp_rank() == 0 && compared != snapshot.values.size()) {
      compare.add(tessera::str(
          snapshot.values.size() - compared, " tensors of the model are on no rank", when));
    }
  }
  if (!compare.outcome.differences.empty() && compare.only_numbers) {
    compare.outcome.shaken = furthest(wanted, train_plain(shared, strategy, replicas, seed, true));
  }
  return compare.outcome;
}

} // namespace tessera::equivalence
