#include "tessera/optim/adamw_8bit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/optim/adamw_8bit_state.h"
#include "tessera/optim/block_codes.h"
#include "tessera/optim/stochastic_rounding.h"
#include "tessera/state/optimizer_state_key.h"

namespace tessera::optim {

namespace {

constexpr std::int64_t kBlocksOfThread = 64; // fewer are not worth a thread

using Block = std::array<float, kBlock>;

/// The elements of one block of a tensor as f32.
void read(const at::Tensor& from, std::int64_t start, std::int64_t count, Block& into) {
  if (from.scalar_type() == at::kBFloat16) {
    const auto* numbers = from.data_ptr<c10::BFloat16>() + start;
    std::copy(numbers, numbers + count, into.begin());
  } else {
    const float* numbers = from.data_ptr<float>() + start;
    std::copy(numbers, numbers + count, into.begin());
  }
}

/// The numbers of one update that all elements share.
struct Factors {
  Factors(const AdamW8bitOptions& options, std::int64_t step)
      : beta1(static_cast<float>(std::get<0>(options.betas()))),
        beta2(static_cast<float>(std::get<1>(options.betas()))),
        rest1(static_cast<float>(1 - std::get<0>(options.betas()))),
        rest2(static_cast<float>(1 - std::get<1>(options.betas()))),
        eps(static_cast<float>(options.eps())),
        decay(static_cast<float>(1 - options.lr() * options.weight_decay())) {
    const auto updates = static_cast<double>(step);
    rate = static_cast<float>(options.lr() / (1 - std::pow(std::get<0>(options.betas()), updates)));
    root_correction =
        static_cast<float>(std::sqrt(1 - std::pow(std::get<1>(options.betas()), updates)));
  }
  float beta1;
  float beta2;
  float rest1;
  float rest2;
  float eps;
  float decay;
  float rate = 0;
  float root_correction = 1;
};

/// algorithm 2 of Loshchilov and Hutter for one block; `root` is that of the average of squares.
void update(
    const Factors& by,
    std::int64_t count,
    const Block& gradient,
    Block& parameter,
    Block& average,
    Block& root) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    const float g = gradient[i];
    average[i] = by.beta1 * average[i] + by.rest1 * g;
    root[i] = std::sqrt(by.beta2 * root[i] * root[i] + by.rest2 * g * g);
    parameter[i] =
        by.decay * parameter[i] - by.rate * average[i] / (root[i] / by.root_correction + by.eps);
  }
}

void check(const at::Tensor& parameter, bool rounds, const StochasticRounding* rounding) {
  const auto type = parameter.scalar_type();
  const auto problem = [&](const char* text) {
    return UserError(tessera::str(
        "AdamW8bit was given a parameter of shape ",
        parameter.sizes(),
        " and type ",
        type,
        " on ",
        parameter.device(),
        text));
  };
  if (!parameter.device().is_cpu()) {
    throw problem("; it updates parameters on the processor: use torch::optim::AdamW");
  }
  if (parameter.grad().is_sparse()) {
    throw problem(" with a sparse gradient; make the embedding dense, or use another optimizer");
  }
  if (type != at::kFloat && !(type == at::kBFloat16 && rounds)) {
    throw problem(
        "; it updates f32, and with the option stochastic_rounding bf16: give it to a "
        "DistributedOptimizer, which makes f32 masters, or set the option");
  }
  if (type == at::kBFloat16 && rounding == nullptr) {
    throw problem(
        ", and with stochastic_rounding a parameter's random numbers go by its name; give the "
        "optimizer to a DistributedOptimizer, and register the parameter in the model");
  }
}

void update_parameter(
    const at::Tensor& given,
    const AdamW8bitOptions& options,
    AdamW8bitParamState& state,
    const StochasticRounding* rounding) {
  const at::Tensor parameter = given.detach().contiguous();
  const at::Tensor gradient =
      (parameter.scalar_type() == given.grad().scalar_type() ? given.grad()
                                                             : given.grad().to(at::kFloat))
          .detach()
          .contiguous();
  ++state.step;
  const Factors factors(options, state.step);
  const std::int64_t elements = parameter.numel();
  const std::int64_t blocks = (elements + kBlock - 1) / kBlock;
  at::parallel_for(0, blocks, kBlocksOfThread, [&](std::int64_t begin, std::int64_t end) {
    Block g{};
    Block p{};
    Block m{};
    Block r{};
    for (std::int64_t block = begin; block < end; ++block) {
      const std::int64_t start = block * kBlock;
      const std::int64_t count = std::min(kBlock, elements - start);
      read(gradient, start, count, g);
      read(parameter, start, count, p);
      state.exp_avg.read(block, count, m.data());
      state.exp_avg_sq_root.read(block, count, r.data());
      update(factors, count, g, p, m, r);
      state.exp_avg.write(block, count, m.data());
      state.exp_avg_sq_root.write(block, count, r.data());
      if (parameter.scalar_type() == at::kFloat) {
        std::copy_n(p.begin(), count, parameter.data_ptr<float>() + start);
      } else {
        rounding->round(
            static_cast<std::uint32_t>(state.step),
            start,
            p.data(),
            count,
            parameter.data_ptr<c10::BFloat16>() + start);
      }
    }
  });
  if (parameter.data_ptr() == given.data_ptr()) {
    given.unsafeGetTensorImpl()->bump_version(); // as an operator in place does
  } else {
    given.detach().copy_(parameter);
  }
}

} // namespace

AdamW8bit::AdamW8bit(std::vector<at::Tensor> parameters, const AdamW8bitOptions& options)
    : AdamW8bit({torch::optim::OptimizerParamGroup(std::move(parameters))}, options) {}

AdamW8bit::AdamW8bit(
    std::vector<torch::optim::OptimizerParamGroup> groups,
    const AdamW8bitOptions& options)
    : Optimizer(std::move(groups), std::make_unique<AdamW8bitOptions>(options)) {}

at::Tensor AdamW8bit::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode enabled(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  for (auto& group : param_groups_) {
    const auto& options = static_cast<const AdamW8bitOptions&>(group.options());
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) {
        continue;
      }
      const bool rounds = options.stochastic_rounding();
      const StochasticRounding* rounding = rounds && rounding_ ? rounding_(parameter) : nullptr;
      check(parameter, rounds, rounding);
      auto& slot = state_[state::optimizer_state_key(parameter)];
      if (slot == nullptr) {
        slot = std::make_unique<AdamW8bitParamState>(parameter.sizes());
      }
      update_parameter(parameter, options, static_cast<AdamW8bitParamState&>(*slot), rounding);
    }
  }
  return loss;
}

} // namespace tessera::optim
