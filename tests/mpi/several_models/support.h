#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tessera/nn/parallel/marking.h"

#include "tests/mpi/runtime/support.h"

/// One script for two "labs": plain libtorch and this library.
///
/// A script is a callable `script(lab)` that makes models with `lab.model(net)`
/// and optimizers with `lab.sgd(parameters)`, runs its step functions with
/// `lab.run(function, step)` and says with `lab.keep(name, model)` what is
/// compared at the end.
namespace tessera::testing {

inline Batch batch_of(int step) {
  return random_batches(16, kWidth)(step);
}

template <typename Net>
class PlainModel {
 public:
  PlainModel(Net net, int slices) : net_(std::move(net)), slices_(slices) {}

  template <typename... Args>
  auto operator()(Args&&... args) const {
    return net_(std::forward<Args>(args)...);
  }
  void backward(const torch::Tensor& loss) const {
    (loss / slices_).backward();
  }
  std::vector<torch::Tensor> parameters() const {
    return net_->parameters();
  }
  void train() const {
    const_cast<Net&>(net_)->train();
  }
  void eval() const {
    const_cast<Net&>(net_)->eval();
  }
  TensorMap state_dict() const {
    TensorMap state;
    for (const auto& item : net_->named_parameters()) {
      state[item.key()] = item.value().detach().clone();
    }
    for (const auto& item : net_->named_buffers()) {
      state[item.key()] = item.value().detach().clone();
    }
    return state;
  }
  void load_state_dict(const TensorMap& state) const {
    const torch::NoGradGuard no_grad;
    for (auto& item : net_->named_parameters()) {
      item.value().copy_(state.at(item.key()));
    }
    for (auto& item : net_->named_buffers()) {
      item.value().copy_(state.at(item.key()));
    }
  }
  Net& net() {
    return net_;
  }

 private:
  Net net_;
  int slices_;
};

class PlainOptimizer {
 public:
  explicit PlainOptimizer(std::vector<torch::Tensor> parameters)
      : parameters_(parameters),
        sgd_(std::move(parameters), torch::optim::SGDOptions(0.1).momentum(0.9)) {}
  void zero_grad() {
    for (torch::Tensor& parameter : parameters_) {
      parameter.mutable_grad() = torch::Tensor();
    }
  }
  void step() {
    sgd_.step();
  }
  double clip_grad_norm(double max_norm) {
    return torch::nn::utils::clip_grad_norm_(parameters_, max_norm);
  }

 private:
  std::vector<torch::Tensor> parameters_;
  torch::optim::SGD sgd_;
};

struct Kept {
  std::vector<double> numbers; // losses and norms in the order they were kept
  std::map<std::string, TensorMap> states;
};

class PlainLab {
 public:
  explicit PlainLab(int slices) : slices_(slices) {}

  template <typename Net>
  auto model(Net net, ModelOptions = {}) {
    return PlainModel<Net>(std::move(net), slices_);
  }
  PlainOptimizer sgd(const std::vector<torch::Tensor>& parameters) {
    return PlainOptimizer(parameters);
  }
  /// The mean of the function's loss over the batch of step `step`.
  template <typename Function>
  void run(const Function& function, int step) {
    double mean = 0;
    for (int i = 0; i < slices_; ++i) {
      Batch part = part_of(batch_of(step), slices_, i);
      mean += function(part.x, part.y).template item<double>() / slices_;
    }
    number(mean);
  }
  void number(double value) {
    kept.numbers.push_back(value);
  }
  template <typename Model>
  void keep(const std::string& name, const Model& model) {
    kept.states[name] = model.state_dict();
  }

  Kept kept;

 private:
  int slices_;
};

class DistributedLab {
 public:
  template <typename Net>
  auto model(Net net, ModelOptions options = {}) {
    if (dp_rank() > 0) { // only the first replica's parameters may count
      const torch::NoGradGuard no_grad;
      for (auto& parameter : net->parameters()) {
        parameter.add_(1);
      }
    }
    return DistributedModel<Net>(std::move(net), std::move(options));
  }
  DistributedOptimizer sgd(const std::vector<torch::Tensor>& parameters) {
    return testing::sgd(parameters);
  }
  template <typename Function>
  void run(const Function& function, int step) {
    const Batch mine = mine_of(batch_of(step));
    const double loss =
        tessera::step(function)(mine.x, mine.y).reduce_mean().template item<double>();
    double mean = 0;
    for (const double value : allgather(loss, Group::kDP)) {
      mean += value / dp_size();
    }
    number(mean);
  }
  void number(double value) {
    kept.numbers.push_back(value);
  }
  template <typename Model>
  void keep(const std::string& name, const Model& model) {
    if (pp_size() > 1) {
      EXPECT_FALSE(model.local_parameters().empty()) << name << " is not on rank " << rank();
    }
    kept.states[name] = model.state_dict();
  }

  Kept kept;
};

struct Strategy {
  int pp;
  int microbatches;
  std::string mode; // "dynamic", "static" or "fast"
  int tp = 1; // of the data-parallel ranks
  std::string text() const {
    return str("pp ", pp, ", tp ", tp, ", microbatches ", microbatches, ", ", mode);
  }
};

/// What a script is made for.
struct Suits {
  bool static_mode = true; // its steps take the same way every time
  bool tensor_parallel = true; // takes parameters from its models only
};

/// Every strategy with at most two replicas that fits the number of ranks.
inline std::vector<Strategy> strategies(Suits suits) {
  std::vector<Strategy> list;
  for (const int pp : {1, 2, 4}) {
    if (world_size() % pp != 0 || world_size() / pp > 2) {
      continue;
    }
    for (const int microbatches : {1, 2}) {
      for (const char* mode : {"dynamic", "static", "fast"}) {
        if (mode == std::string("dynamic") || (pp > 1 && suits.static_mode)) {
          list.push_back({pp, microbatches, mode});
        }
      }
    }
    if (world_size() / pp == 2 && suits.tensor_parallel) {
      list.push_back({pp, 2, "dynamic", 2});
    }
  }
  return list;
}

inline Config config_of(const Strategy& strategy) {
  Config config = config_of(strategy.pp, strategy.microbatches);
  config.tensor_parallel_degree = strategy.tp;
  config.static_mode = strategy.mode != "dynamic";
  config.fast_mode = strategy.mode == "fast";
  config.static_mode_steps = config.static_mode ? 1 : 5;
  return config;
}

inline void expect_equal(const Kept& got, const Kept& wanted, const std::string& what) {
  ASSERT_EQ(got.numbers.size(), wanted.numbers.size()) << what;
  for (std::size_t i = 0; i < got.numbers.size(); ++i) {
    EXPECT_NEAR(got.numbers[i], wanted.numbers[i], 1e-5 * std::abs(wanted.numbers[i]))
        << what << ", number " << i;
  }
  for (const auto& [model, state] : wanted.states) {
    ASSERT_TRUE(got.states.contains(model));
    EXPECT_EQ(got.states.at(model).size(), state.size()) << what << ", " << model;
    for (const auto& [name, tensor] : state) {
      ASSERT_TRUE(got.states.at(model).contains(name)) << what << ", " << model << ": " << name;
      EXPECT_LE(relative_error(got.states.at(model).at(name), tensor), 1e-5)
          << what << ", " << model << ": " << name;
    }
  }
}

/// Runs the script both ways under every strategy that suits it.
template <typename Script>
void expect_same_as_plain(const Script& script, Suits suits = {}) {
  for (const Strategy& strategy : strategies(suits)) {
    PlainLab plain(strategy.microbatches * (world_size() / strategy.pp));
    torch::manual_seed(7);
    script(plain);
    DistributedLab lab;
    {
      init(config_of(strategy));
      const Ended ended;
      const tensor_parallelism marked(strategy.tp > 1);
      torch::manual_seed(7);
      script(lab);
    }
    expect_equal(lab.kept, plain.kept, strategy.text());
  }
}

/// A chain of blocks, enough of them for four ranks.
struct StackImpl : torch::nn::Module {
  StackImpl() {
    layers = register_module("layers", nn::Sequential(Block(), Block(), Block(), Block()));
    out = register_module("out", nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return out(layers(x));
  }
  nn::Sequential layers{nullptr};
  nn::Linear out{nullptr};
};
TESSERA_MODULE(Stack);

} // namespace tessera::testing
