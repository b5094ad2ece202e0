#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/autotune/probe/measure_block.h"
#include "tessera/autotune/probe/probe.h"
#include "tessera/autotune/probe/rounds.h"
#include "tessera/autotune/probe/work_clock.h"
#include "tessera/base/stopwatch.h"
#include "tessera/half/operators.h"

namespace tessera::autotune {

namespace {

// Points that need another round get at most so many.
constexpr int kMostExtraRounds = 8;

/// Seconds of one operator.
struct PassTime {
  double forward = 1e30;
  double backward = 1e30;
};

/// An operator as training runs it: several in a row, each on the result of the one
/// before, with every result kept for the backward. The figure then includes the time
/// of autograd, of fresh memory and of cache misses.
struct Chain {
  std::function<at::Tensor(const at::Tensor& x, std::size_t i)> step;
  at::Tensor input;
  std::vector<at::Tensor> parameters = {}; // further tensors whose gradients are computed
  std::size_t length = 1;
};

PassTime run_once(const Chain& chain) {
  std::vector<at::Tensor> inputs = chain.parameters;
  inputs.push_back(chain.input);
  const WorkClock forward;
  at::Tensor y = chain.input;
  for (std::size_t i = 0; i < chain.length; ++i) {
    y = chain.step(y, i);
  }
  PassTime time;
  const auto length = static_cast<double>(chain.length);
  time.forward = forward.seconds() / length;
  const at::Tensor gradient = at::ones_like(y);
  const WorkClock backward;
  const auto gradients = torch::autograd::grad({std::exchange(y, {})}, inputs, {gradient});
  time.backward = backward.seconds() / length;
  return time;
}

/// Returns the shortest of many runs, because other programs only add time.
PassTime best_of(const Chain& chain, double budget_s) {
  constexpr int kLeast = 3;
  PassTime best;
  int timed = 0;
  run_once(chain);
  const auto begin = Clock::now();
  do {
    const PassTime once = run_once(chain);
    best.forward = std::min(best.forward, once.forward);
    best.backward = std::min(best.backward, once.backward);
    ++timed;
  } while (timed < kLeast || seconds_since(begin) < budget_s);
  return best;
}

/// Both passes of one operator at several sizes.
struct Measured {
  Series forward;
  Series backward;
  std::vector<Chain> chains;
  double budget_s = 0; // of one round of one point

  void once(std::size_t i) {
    const PassTime time = best_of(chains[i], budget_s);
    forward.points[i].add(time.forward);
    backward.points[i].add(time.backward);
  }
  void add(double size, Chain chain) {
    forward.add_size(size);
    backward.add_size(size);
    chains.push_back(std::move(chain));
    once(chains.size() - 1);
  }
  void set_growth(double exponent, double slowdown) {
    forward.exponent = backward.exponent = exponent;
    forward.slowdown = backward.slowdown = slowdown;
  }
  std::vector<cost::MeasuredPoint> measured() const {
    std::vector<cost::MeasuredPoint> points = forward.measured();
    const auto back = backward.measured();
    for (std::size_t i = 0; i < points.size(); ++i) {
      points[i].backward_seconds = back[i].seconds;
    }
    return points;
  }
};

// Returns the number of operators in a row: more for small ones, with at most kElements
// elements together.
std::size_t length_of(std::int64_t elements) {
  constexpr std::int64_t kMost = 16;
  constexpr std::int64_t kElements = std::int64_t{1} << 20;
  return static_cast<std::size_t>(std::clamp(kElements / elements, std::int64_t{1}, kMost));
}

at::Tensor leaf(at::Tensor value) {
  return value.detach().requires_grad_(true);
}

/// Measures products of square matrices with bias, or with `count` > 1 operators of so
/// many products each.
Measured products_of(at::ScalarType dtype, std::int64_t count, const Effort& effort) {
  constexpr double kLongS = 0.25;
  constexpr std::int64_t kLargestOfMany = 256;
  Measured result;
  // Larger products run at higher rates until caches are full.
  result.set_growth(3, 2);
  result.budget_s = effort.seconds_a_point / effort.rounds;
  for (const std::int64_t size : {8, 16, 32, 64, 128, 256, 512, 1024}) {
    Chain chain;
    chain.length = length_of(4 * count * size * size);
    std::vector<std::int64_t> shape = {size, size};
    if (count > 1) {
      shape.insert(shape.begin(), count);
    }
    // This keeps the values of a chain's results in the range of its input.
    const double scale = 1 / std::sqrt(static_cast<double>(size));
    for (std::size_t i = 0; i < chain.length; ++i) {
      chain.parameters.push_back(leaf((at::randn(shape) * scale).to(dtype)));
    }
    chain.input = leaf(at::randn(shape).to(dtype));
    const std::vector<at::Tensor> weights = chain.parameters;
    if (count > 1) {
      chain.step = [weights](const at::Tensor& x, std::size_t i) { return at::bmm(x, weights[i]); };
    } else {
      const at::Tensor bias = leaf(at::zeros({size}).to(dtype));
      chain.parameters.push_back(bias);
      chain.step = [weights, bias](const at::Tensor& x, std::size_t i) {
        return at::addmm(bias, x, weights[i]);
      };
    }
    result.add(static_cast<double>(size), std::move(chain));
    const double seconds = result.backward.points.back().best();
    if (seconds * 8 > kLongS || (effort.quick && size == 512) ||
        (count > 1 && size == kLargestOfMany)) {
      break; // the next size would take eight times as long
    }
  }
  return result;
}

using ElementStep = std::function<at::Tensor(const at::Tensor&)>;

Measured elements_of(const ElementStep& step, const Effort& effort, bool chained = true) {
  Measured result;
  // Sizes that do not fit into the caches run at a lower rate.
  result.set_growth(1, 6);
  result.budget_s = effort.seconds_a_point / 2 / effort.rounds;
  for (std::int64_t size = 16; size <= std::int64_t{1} << 22; size *= 8) {
    Chain chain;
    chain.length = chained ? length_of(size) : 1;
    chain.input = leaf(at::randn({size}));
    chain.step = [step](const at::Tensor& x, std::size_t) { return step(x); };
    result.add(static_cast<double>(size), std::move(chain));
  }
  return result;
}

Measured views(const Effort& effort) {
  Measured result;
  result.budget_s = effort.seconds_a_point / effort.rounds;
  Chain chain;
  chain.length = 16;
  chain.input = leaf(at::randn({16}));
  chain.step = [](const at::Tensor& x, std::size_t) { return x.view({-1}); };
  result.add(1, std::move(chain));
  return result;
}

/// Measures what a weight adds to a product when it is not in a cache: the same few rows
/// are multiplied with one weight, and with many, one after the other. The backward
/// is the gradient of the rows only.
struct Weights {
  static constexpr std::int64_t kRows = 64;
  static constexpr std::int64_t kSize = 256; // rows and columns of a weight
  static constexpr std::size_t kCount = 256; // together 64 MiB
  std::vector<at::Tensor> weights;
  at::Tensor x = at::randn({kRows, kSize});
  Rounds near_forward, near_backward, far_forward, far_backward;

  Weights() {
    for (std::size_t i = 0; i < kCount; ++i) {
      weights.push_back(at::randn({kSize, kSize}));
    }
  }

  void once() {
    const at::NoGradGuard no_grad;
    const auto seconds = [&](std::size_t used, bool transposed) {
      const WorkClock clock;
      for (std::size_t i = 0; i < kCount; ++i) {
        const at::Tensor& weight = weights[i % used];
        at::mm(x, transposed ? weight.t() : weight);
      }
      return clock.seconds() / static_cast<double>(kCount);
    };
    seconds(1, false);
    near_forward.add(seconds(1, false));
    near_backward.add(seconds(1, true));
    far_forward.add(seconds(kCount, false));
    far_backward.add(seconds(kCount, true));
  }

  std::vector<cost::MeasuredPoint> measured() const {
    const double forward = far_forward.best() - near_forward.best();
    const double backward = far_backward.best() - near_backward.best();
    if (forward <= 0) {
      return {}; // the caches hold all weights
    }
    return {{kSize * kSize, forward, std::max(0.0, backward)}};
  }
};

// Returns x as a matrix with rows of at most `width` elements.
at::Tensor rows(const at::Tensor& x, std::int64_t width) {
  return x.view({-1, std::min(width, x.numel())});
}

ElementStep layer_norm(std::int64_t width) {
  return [width](const at::Tensor& x) {
    const at::Tensor in_rows = rows(x, width);
    return at::layer_norm(in_rows, {in_rows.size(1)}).view({-1});
  };
}

/// Returns the operators whose speed differs from their kind's example by a factor.
std::vector<std::pair<std::string, ElementStep>> named_operators() {
  constexpr std::int64_t kHead = 32; // width of one head
  constexpr std::int64_t kPositions = 64; // of one row of attention
  constexpr std::int64_t kWidth = 256; // of a hidden state
  constexpr std::int64_t kVocabulary = 1024;
  return {
      {"gelu.tanh", [](const at::Tensor& x) { return at::gelu(x, "tanh"); }},
      {"reshape",
       [](const at::Tensor& x) {
         // This copies short rows from far apart, as attention does to join its heads.
         const at::Tensor parts = rows(x, kHead);
         const std::int64_t count = std::min<std::int64_t>(8, parts.size(0));
         return parts.view({-1, count, parts.size(1)}).transpose(0, 1).reshape({-1});
       }},
      {"softmax",
       [](const at::Tensor& x) { return at::softmax(rows(x, kPositions), -1).view({-1}); }},
      {"layer_norm", layer_norm(kWidth)},
      {"cross_entropy_loss",
       [](const at::Tensor& x) {
         const at::Tensor logits = rows(x, kVocabulary);
         const at::Tensor targets = at::zeros({logits.size(0)}, at::dtype(at::kLong));
         return at::cross_entropy_loss(logits, targets);
       }},
  };
}

} // namespace

std::function<void()> training_layers(bool backward, std::int64_t rows) {
  constexpr std::int64_t kWidth = 256;
  constexpr std::int64_t kInner = 512;
  constexpr int kLayers = 16; // of a MiB each
  const auto weights = std::make_shared<std::vector<at::Tensor>>();
  for (int i = 0; i < kLayers; ++i) {
    weights->push_back(leaf(at::randn({kWidth, kInner}) / 16));
    weights->push_back(leaf(at::randn({kInner, kWidth}) / 16));
  }
  const at::Tensor x = leaf(at::randn({rows, kWidth}));
  const auto next = std::make_shared<std::size_t>(0);
  return [weights, x, next, backward] {
    const at::AutoGradMode gradients(backward);
    const at::Tensor& first = (*weights)[*next];
    const at::Tensor& second = (*weights)[*next + 1];
    *next = (*next + 2) % weights->size();
    const at::Tensor hidden = at::gelu(at::mm(at::layer_norm(x, {kWidth}), first), "tanh");
    const at::Tensor y = x + at::mm(hidden, second);
    if (backward) {
      y.backward(at::ones_like(y));
    }
  };
}

/// Measures all series in rounds, one point after the other, so that a burst of other
/// load meets one round of a point and not all of them. Doubtful points get further
/// rounds.
void measure_operators(const Effort& effort, RankMeasurement& result) {
  const at::AutoGradMode gradients(true);
  half::support_bf16_products(); // as a run in bf16 computes them
  constexpr std::int64_t kMany = 8;
  std::vector<Measured> all;
  all.push_back(products_of(at::kFloat, 1, effort));
  all.push_back(products_of(at::kBFloat16, 1, effort));
  all.push_back(products_of(at::kFloat, kMany, effort));
  all.push_back(products_of(at::kBFloat16, kMany, effort));
  all.push_back(elements_of([](const at::Tensor& x) { return x + x; }, effort));
  all.push_back(elements_of([](const at::Tensor& x) { return at::gelu(x); }, effort));
  all.push_back(elements_of([](const at::Tensor& x) { return at::dropout(x, 0.1, true); }, effort));
  all.push_back(views(effort));
  const auto known = named_operators();
  const std::size_t first_known = all.size();
  for (const auto& [name, step] : known) {
    // A loss is a single number, which cannot be the input of the next operator of a chain.
    all.push_back(elements_of(step, effort, name != "cross_entropy_loss"));
  }
  Weights weights;
  BlockTimes blocks(effort.seconds_a_point);
  blocks.once(); // the first run allocates
  for (int round = 1; round < effort.rounds; ++round) {
    weights.once();
    blocks.once();
    for (Measured& one : all) {
      for (std::size_t i = 0; i < one.chains.size(); ++i) {
        one.once(i);
      }
    }
  }
  for (int extra = 0; extra < kMostExtraRounds; ++extra) {
    blocks.once();
    for (Measured& one : all) {
      std::vector<std::size_t> again = doubtful(one.forward);
      for (const std::size_t i : doubtful(one.backward)) {
        if (std::find(again.begin(), again.end(), i) == again.end()) {
          again.push_back(i);
        }
      }
      for (const std::size_t i : again) {
        one.once(i);
        ++result.repeated;
      }
    }
  }
  cost::DeviceSpeed& speed = result.speed;
  speed.products["f32"] = all[0].measured();
  speed.products["bf16"] = all[1].measured();
  speed.batched_products["f32"] = all[2].measured();
  speed.batched_products["bf16"] = all[3].measured();
  for (const char* precision : {"f32", "bf16"}) {
    for (cost::MeasuredPoint& point : speed.batched_products[precision]) {
      point.seconds /= static_cast<double>(kMany);
      point.backward_seconds /= static_cast<double>(kMany);
    }
  }
  speed.weights = weights.measured();
  speed.moves = all[4].measured();
  speed.functions = all[5].measured();
  speed.random = all[6].measured();
  speed.operators["view"] = all[7].measured();
  for (std::size_t i = 0; i < known.size(); ++i) {
    speed.operators[known[i].first] = all[first_known + i].measured();
  }
  take_from_memory(speed);
  speed.operators["contiguous"] = speed.operators["reshape"];
  scale(speed, blocks.pace(speed));
  for (const Measured& one : all) {
    for (const Series* series : {&one.forward, &one.backward}) {
      for (const Rounds& point : series->points) {
        result.spread = std::max(result.spread, point.spread());
      }
    }
  }
}

} // namespace tessera::autotune
