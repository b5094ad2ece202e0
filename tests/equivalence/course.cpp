#include "tests/equivalence/course.h"

#include <sstream>

#include "tessera/tensor/dtype.h"

#include "tests/equivalence/norm_optimizers.h"

namespace tessera::equivalence {

namespace {

constexpr double kRate = 0.05;
constexpr double kRateOfAdam = 0.01;
// A large one: what is rounding in a gradient must not become a whole step.
constexpr double kEpsilon = 1e-2;
constexpr double kDecay = 0.01;

bool adapts(OptimizerKind kind) {
  return kind == OptimizerKind::kAdam || kind == OptimizerKind::kAmsgrad ||
         kind == OptimizerKind::kAdamW || kind == OptimizerKind::kLamb ||
         kind == OptimizerKind::kNovoGrad;
}

double first_rate(const Course& course, std::size_t group) {
  return (adapts(course.optimizer) ? kRateOfAdam : kRate) * (group == 0 ? 1 : 0.5);
}

template <typename Options>
torch::optim::OptimizerParamGroup group_of(
    const std::vector<at::Tensor>& tensors,
    const Options& options) {
  return {tensors, std::make_unique<Options>(options)};
}

} // namespace

int kind_of(const std::string& parameter) {
  int sum = 0;
  for (const char letter : parameter) {
    sum += letter;
  }
  return sum % 3;
}

std::unique_ptr<torch::optim::Optimizer>
make_optimizer(const Course& course, const Named& named, bool plain) {
  using namespace torch::optim;
  std::vector<std::vector<at::Tensor>> lists(1);
  for (const auto& [name, tensor] : named) {
    const bool second = course.two_groups && kind_of(name) == 1;
    if (second && lists.size() == 1) {
      lists.emplace_back();
    }
    lists[second ? 1 : 0].push_back(tensor);
  }
  // An optimizer refuses to have nothing to do, and a checkpoint one of no model.
  if (named.empty()) {
    lists[0].push_back(torch::zeros({1}, torch::requires_grad()));
  }
  std::vector<OptimizerParamGroup> groups;
  const auto options_of = [&](auto options, double decay) {
    for (std::size_t i = 0; i < lists.size(); ++i) {
      options.lr(first_rate(course, i)).weight_decay(i == 0 ? decay : 0);
      groups.push_back(group_of(lists[i], options));
    }
    return options;
  };
  const auto adam = AdamOptions().eps(kEpsilon);
  switch (course.optimizer) {
    case OptimizerKind::kMomentum: {
      const auto options = options_of(SGDOptions(kRate).momentum(0.9), kDecay);
      return std::make_unique<SGD>(groups, options);
    }
    case OptimizerKind::kPlain: {
      const auto options = options_of(SGDOptions(kRate), 0);
      return std::make_unique<SGD>(groups, options);
    }
    case OptimizerKind::kNesterov: {
      const auto options = options_of(SGDOptions(kRate).momentum(0.8).nesterov(true), kDecay);
      return std::make_unique<SGD>(groups, options);
    }
    case OptimizerKind::kAdam: {
      const auto options = options_of(adam, kDecay);
      return std::make_unique<Adam>(groups, options);
    }
    case OptimizerKind::kAmsgrad: {
      const auto options = options_of(AdamOptions(adam).amsgrad(true), 0);
      return std::make_unique<Adam>(groups, options);
    }
    case OptimizerKind::kAdamW: {
      const auto options = options_of(AdamWOptions().eps(kEpsilon), 10 * kDecay);
      return std::make_unique<AdamW>(groups, options);
    }
    case OptimizerKind::kLamb: {
      const auto options = options_of(
          tessera::optim::LambOptions().eps(kEpsilon).max_grad_norm(course.most_norm), kDecay);
      return plain ? plain_lamb(groups, options)
                   : std::make_unique<tessera::optim::Lamb>(groups, options);
    }
    case OptimizerKind::kNovoGrad: {
      const auto options = options_of(tessera::optim::NovoGradOptions().eps(kEpsilon), kDecay);
      return plain ? plain_novograd(groups, options)
                   : std::make_unique<tessera::optim::NovoGrad>(groups, options);
    }
  }
  return nullptr;
}

void set_rate(torch::optim::Optimizer& optimizer, const Course& course, double factor) {
  auto& groups = optimizer.param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    groups[i].options().set_lr(factor * first_rate(course, i));
  }
}

std::string to_text(const Course& course) {
  static constexpr const char* kOptimizers[] = {
      "SGD with momentum",
      "SGD",
      "SGD with Nesterov's momentum",
      "Adam",
      "AMSGrad",
      "AdamW",
      "LAMB",
      "NovoGrad"};
  static constexpr const char* kZeroings[] = {"undefined", "zeros", "zeros by the model", "kept"};
  std::ostringstream out;
  out << kOptimizers[static_cast<int>(course.optimizer)]
      << (course.two_groups ? " in two groups" : "") << ", " << course.type;
  if (course.optimizer == OptimizerKind::kLamb) {
    out << ", max_grad_norm " << course.most_norm;
  }
  if (course.clip) {
    out << ", clipped to " << *course.clip;
  }
  if (course.asks_norm) {
    out << ", asked for its norm";
  }
  if (course.drops) {
    out << ", dropout";
  }
  if (course.type == at::kHalf) {
    const auto& scale = course.loss_scale;
    out << (scale.dynamic_loss_scale ? ", dynamic loss scale from " : ", loss scale ")
        << (scale.dynamic_loss_scale ? scale.dynamic_loss_args.init_scale
                                     : scale.static_loss_scale);
  }
  out << '\n';
  for (std::size_t i = 0; i < course.steps.size(); ++i) {
    const Around& around = course.steps[i];
    out << "optimizer step " << i << ": gradients " << kZeroings[static_cast<int>(around.zeroing)]
        << (around.zeroes_after ? " after the update" : " before the backward")
        << (around.evaluates ? ", an evaluation before" : "") << ", rate times " << around.rate;
    if (around.frozen >= 0) {
      out << ", parameters of kind " << around.frozen << " frozen";
    }
    out << '\n';
  }
  return out.str();
}

} // namespace tessera::equivalence
