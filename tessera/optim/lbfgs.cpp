#include "tessera/optim/lbfgs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/comm/process_group.h"
#include "tessera/optim/strong_wolfe.h"
#include "tessera/state/optimizer_state_key.h"

namespace tessera::optim {

namespace {

using torch::optim::Optimizer;

/// One tensor for each parameter of this rank.
using Vector = std::vector<at::Tensor>;

constexpr double kNone = -std::numeric_limits<double>::infinity();
// A pair of differences with a smaller product is left out of the history.
constexpr double kLeastCurvature = 1e-10;

Vector scaled(const Vector& vector, double factor) {
  Vector result;
  for (const at::Tensor& tensor : vector) {
    result.push_back(tensor * factor);
  }
  return result;
}

Vector difference(const Vector& a, const Vector& b) {
  Vector result;
  for (std::size_t i = 0; i < a.size(); ++i) {
    result.push_back(a[i] - b[i]);
  }
  return result;
}

Vector copy_of(const Vector& vector) {
  Vector result;
  for (const at::Tensor& tensor : vector) {
    result.push_back(tensor.detach().clone());
  }
  return result;
}

void add(const Vector& to, const Vector& vector, double factor) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    to[i].detach().add_(vector[i], factor);
  }
}

void assign(const Vector& to, const Vector& from) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    to[i].detach().copy_(from[i]);
  }
}

/// Numbers over the whole model from vectors of which each rank has a part.
class Space {
 public:
  Space(const WholeModel& model, const Vector& parameters)
      : model_(model), parameters_(parameters) {}

  std::vector<double> dots(
      const std::vector<std::pair<const Vector*, const Vector*>>& pairs) const {
    std::vector<double> sums;
    for (const auto& [a, b] : pairs) {
      double& sum = sums.emplace_back(0);
      for (std::size_t i = 0; i < parameters_.size(); ++i) {
        const auto left = model_.counted(parameters_[i], (*a)[i]);
        const auto right = model_.counted(parameters_[i], (*b)[i]);
        for (std::size_t part = 0; part < left.size(); ++part) {
          sum += (left[part].to(at::kDouble) * right[part].to(at::kDouble)).sum().item<double>();
        }
      }
    }
    return model_.reduce(sums, comm::ReduceOp::kSum);
  }
  double dot(const Vector& a, const Vector& b) const {
    return dots({{&a, &b}})[0];
  }

  double sum_of_sizes(const Vector& vector) const {
    double sum = 0;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      for (const at::Tensor& part : model_.counted(parameters_[i], vector[i])) {
        sum += part.to(at::kDouble).abs().sum().item<double>();
      }
    }
    return model_.reduce({sum}, comm::ReduceOp::kSum)[0];
  }
  double largest_size(const Vector& vector) const {
    double largest = 0;
    for (const at::Tensor& tensor : vector) {
      if (tensor.numel() > 0) {
        const double size = tensor.abs().max().item<double>();
        largest = std::isnan(size) ? size : std::max(largest, size);
      }
    }
    return largest_of({largest})[0];
  }
  std::vector<double> largest_of(const std::vector<double>& numbers) const {
    return model_.reduce(numbers, comm::ReduceOp::kMax);
  }

 private:
  const WholeModel& model_;
  const Vector& parameters_;
};

/// The state of all parameters at once.
struct Memory {
  std::int64_t n_iter = 0;
  std::int64_t func_evals = 0;
  double t = 0;
  double h_diag = 1;
  Vector d;
  Vector prev_grad;
  std::deque<Vector> old_dirs;
  std::deque<Vector> old_stps;
  std::deque<double> ro;
};

at::Tensor or_zeros(const at::Tensor& tensor, const at::Tensor& parameter) {
  return tensor.defined() ? tensor : at::zeros_like(parameter.detach());
}

at::Tensor
at_or_zeros(const std::deque<at::Tensor>* list, std::size_t index, const at::Tensor& parameter) {
  return or_zeros(list != nullptr ? list->at(index) : at::Tensor(), parameter);
}

/// Reads the parameters' states. A rank may own no parameter, or parameters
/// without a state yet: it takes the numbers of the other ranks.
Memory recall(const Optimizer& optimizer, const Vector& parameters, const Space& space) {
  std::vector<const LBFGSParamState*> states;
  const LBFGSParamState* any = nullptr;
  for (const at::Tensor& parameter : parameters) {
    const auto found = optimizer.state().find(state::optimizer_state_key(parameter));
    const bool known = found != optimizer.state().end() && found->second != nullptr;
    states.push_back(known ? static_cast<const LBFGSParamState*>(found->second.get()) : nullptr);
    any = states.back() != nullptr ? states.back() : any;
  }
  std::vector<double> numbers(5, kNone);
  if (any != nullptr) {
    numbers = {
        static_cast<double>(any->n_iter),
        static_cast<double>(any->func_evals),
        any->t,
        any->h_diag,
        static_cast<double>(any->ro.size())};
  }
  numbers = space.largest_of(numbers);
  Memory memory;
  if (numbers[0] == kNone) {
    return memory; // no step has been made yet
  }
  memory.n_iter = static_cast<std::int64_t>(numbers[0]);
  memory.func_evals = static_cast<std::int64_t>(numbers[1]);
  memory.t = numbers[2];
  memory.h_diag = numbers[3];
  const auto pairs = static_cast<std::size_t>(numbers[4]);
  std::vector<double> ro(pairs, kNone);
  if (any != nullptr) {
    ro.assign(any->ro.begin(), any->ro.end());
  }
  ro = space.largest_of(ro);
  memory.ro.assign(ro.begin(), ro.end());
  memory.old_dirs.resize(pairs);
  memory.old_stps.resize(pairs);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const LBFGSParamState* state = states[i];
    const at::Tensor& parameter = parameters[i];
    memory.d.push_back(or_zeros(state != nullptr ? state->d : at::Tensor(), parameter));
    memory.prev_grad.push_back(
        or_zeros(state != nullptr ? state->prev_grad : at::Tensor(), parameter));
    for (std::size_t pair = 0; pair < pairs; ++pair) {
      memory.old_dirs[pair].push_back(
          at_or_zeros(state != nullptr ? &state->old_dirs : nullptr, pair, parameter));
      memory.old_stps[pair].push_back(
          at_or_zeros(state != nullptr ? &state->old_stps : nullptr, pair, parameter));
    }
  }
  return memory;
}

void store(Optimizer& optimizer, const Vector& parameters, const Memory& memory) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    auto state = std::make_unique<LBFGSParamState>();
    state->n_iter = memory.n_iter;
    state->func_evals = memory.func_evals;
    state->t = memory.t;
    state->h_diag = memory.h_diag;
    state->ro = memory.ro;
    if (!memory.d.empty()) {
      state->d = memory.d[i];
      state->prev_grad = memory.prev_grad[i];
    }
    for (std::size_t pair = 0; pair < memory.ro.size(); ++pair) {
      state->old_dirs.push_back(memory.old_dirs[pair][i]);
      state->old_stps.push_back(memory.old_stps[pair][i]);
    }
    optimizer.state()[state::optimizer_state_key(parameters[i])] = std::move(state);
  }
}

/// Makes memory.d the next direction: the approximate inverse Hessian times the
/// negative gradient.
void find_direction(
    Memory& memory,
    const Vector& gradient,
    const Space& space,
    std::size_t history_size) {
  if (memory.n_iter == 1) {
    memory.d = scaled(gradient, -1);
    memory.h_diag = 1;
    return;
  }
  Vector y = difference(gradient, memory.prev_grad);
  Vector s = scaled(memory.d, memory.t);
  const std::vector<double> products = space.dots({{&y, &s}, {&y, &y}});
  if (products[0] > kLeastCurvature) {
    if (memory.ro.size() >= history_size) {
      memory.old_dirs.pop_front();
      memory.old_stps.pop_front();
      memory.ro.pop_front();
    }
    memory.old_dirs.push_back(std::move(y));
    memory.old_stps.push_back(std::move(s));
    memory.ro.push_back(1 / products[0]);
    memory.h_diag = products[0] / products[1];
  }
  Vector q = scaled(gradient, -1);
  std::vector<double> alpha(memory.ro.size());
  for (std::size_t i = memory.ro.size(); i-- > 0;) {
    alpha[i] = space.dot(memory.old_stps[i], q) * memory.ro[i];
    add(q, memory.old_dirs[i], -alpha[i]);
  }
  memory.d = scaled(q, memory.h_diag);
  for (std::size_t i = 0; i < memory.ro.size(); ++i) {
    const double beta = space.dot(memory.old_dirs[i], memory.d) * memory.ro[i];
    add(memory.d, memory.old_stps[i], alpha[i] - beta);
  }
}

/// The loss of the closure, and after that the gradients it left.
at::Tensor loss_of(const Optimizer::LossClosure& closure) {
  const at::AutoGradMode enabled(true);
  at::Tensor loss = closure();
  if (!loss.defined() || loss.numel() != 1) {
    throw UserError(
        "LBFGS got no loss from its closure; return a tensor of one element, such as "
        "train_step(x, y).reduce_mean()");
  }
  return loss;
}

Vector gradients_of(const Vector& parameters) {
  Vector gradients;
  for (const at::Tensor& parameter : parameters) {
    at::Tensor gradient = or_zeros(parameter.grad(), parameter).detach();
    gradients.push_back(gradient.is_sparse() ? gradient.to_dense() : gradient.clone());
  }
  return gradients;
}

} // namespace

WholeModel WholeModel::of_one_process() {
  return {
      [](const std::vector<double>& numbers, comm::ReduceOp) { return numbers; },
      [](const at::Tensor&, const at::Tensor& tensor) { return std::vector<at::Tensor>{tensor}; }};
}

LBFGS::LBFGS(std::vector<at::Tensor> parameters, const LBFGSOptions& options)
    : Optimizer(
          {torch::optim::OptimizerParamGroup(std::move(parameters))},
          std::make_unique<LBFGSOptions>(options)) {
  if (options.max_iter() < 1 || options.history_size() < 1) {
    throw ConfigError(
        str("LBFGS: max_iter is ",
            options.max_iter(),
            " and history_size ",
            options.history_size(),
            "; write 1 or more for both"));
  }
  const auto& search = options.line_search_fn();
  if (search && *search != "strong_wolfe") {
    throw ConfigError(
        str("LBFGS: line_search_fn is \"", *search, "\"; write \"strong_wolfe\" or leave it out"));
  }
}

at::Tensor LBFGS::step(LossClosure closure) {
  if (!model_) {
    throw UserError(
        "LBFGS was stepped past its DistributedOptimizer, so it knows one rank's part of the "
        "model only; call the DistributedOptimizer's step(closure)");
  }
  if (!closure) {
    throw UserError(
        "LBFGS evaluates the model several times in one step; write optimizer.step([&] { "
        "optimizer.zero_grad(); return train_step(x, y).reduce_mean(); })");
  }
  const at::NoGradGuard no_grad;
  at::Tensor first_loss = loss_of(closure);
  // The model may have been partitioned in the closure: the parameters are known from here on.
  const Vector parameters = param_groups_.at(0).params();
  const auto& options = static_cast<const torch::optim::LBFGSOptions&>(param_groups_[0].options());
  const std::int64_t most_evaluations = options.max_eval().value_or(options.max_iter() * 5 / 4);
  const Space space(*model_, parameters);
  Memory memory = recall(*this, parameters, space);
  ++memory.func_evals;
  double loss = first_loss.item<double>();
  Vector gradient = gradients_of(parameters);
  bool at_minimum = space.largest_size(gradient) <= options.tolerance_grad();
  std::int64_t evaluations = 1;
  for (std::int64_t i = 1; !at_minimum; ++i) {
    ++memory.n_iter;
    find_direction(memory, gradient, space, static_cast<std::size_t>(options.history_size()));
    memory.prev_grad = gradient;
    const double previous_loss = loss;
    memory.t = options.lr();
    if (memory.n_iter == 1) {
      memory.t *= std::min(1.0, 1 / space.sum_of_sizes(gradient));
    }
    const double slope = space.dot(gradient, memory.d);
    if (slope > -options.tolerance_change()) {
      break;
    }
    const double direction_size = space.largest_size(memory.d);
    std::int64_t made = 0;
    if (options.line_search_fn()) {
      const Vector start = copy_of(parameters);
      const auto evaluate = [&](double t) {
        assign(parameters, start);
        add(parameters, memory.d, t);
        LinePoint point;
        point.t = t;
        point.loss = loss_of(closure).item<double>();
        point.gradient = gradients_of(parameters);
        point.slope = space.dot(point.gradient, memory.d);
        return point;
      };
      LineSearchResult found = strong_wolfe(
          evaluate,
          {0, loss, slope, gradient},
          memory.t,
          direction_size,
          options.tolerance_change());
      memory.t = found.point.t;
      loss = found.point.loss;
      gradient = std::move(found.point.gradient);
      made = found.evaluations;
      assign(parameters, start);
      add(parameters, memory.d, memory.t);
      at_minimum = space.largest_size(gradient) <= options.tolerance_grad();
    } else {
      add(parameters, memory.d, memory.t);
      // The last iteration's gradient would only be needed by the next step, on other data.
      if (i != options.max_iter()) {
        loss = loss_of(closure).item<double>();
        gradient = gradients_of(parameters);
        made = 1;
        at_minimum = space.largest_size(gradient) <= options.tolerance_grad();
      }
    }
    evaluations += made;
    memory.func_evals += made;
    if (i == options.max_iter() || evaluations >= most_evaluations ||
        direction_size * std::abs(memory.t) <= options.tolerance_change() ||
        std::abs(loss - previous_loss) < options.tolerance_change()) {
      break;
    }
  }
  store(*this, parameters, memory);
  return first_loss;
}

} // namespace tessera::optim
