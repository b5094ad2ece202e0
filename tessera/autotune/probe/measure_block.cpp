#include "tessera/autotune/probe/measure_block.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <torch/torch.h>

#include "tessera/autotune/probe/work_clock.h"
#include "tessera/base/statistics.h"
#include "tessera/base/stopwatch.h"
#include "tessera/tracer/record_work.h"

namespace tessera::autotune {

namespace {

constexpr std::int64_t kSamples = 2;
constexpr std::int64_t kPositions = 64;
constexpr std::int64_t kWidth = 256;
constexpr std::int64_t kHeads = 8;
constexpr int kBlocks = 4; // whose weights, 12 MiB together, do not stay in a core's own cache

/// A transformer layer as published: attention and a feed-forward network, each behind a norm.
class Block : public torch::nn::Module {
 public:
  Block()
      : first_norm_(register_module("ln_1", torch::nn::LayerNorm(norm()))),
        joint_(register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth))),
        mix_(register_module("proj", torch::nn::Linear(kWidth, kWidth))),
        second_norm_(register_module("ln_2", torch::nn::LayerNorm(norm()))),
        inner_(register_module("fc", torch::nn::Linear(kWidth, 4 * kWidth))),
        outer_(register_module("fc_proj", torch::nn::Linear(4 * kWidth, kWidth))) {}

  at::Tensor forward(const at::Tensor& x) {
    const auto parts = joint_(first_norm_(x)).chunk(3, -1);
    const auto heads = [](const at::Tensor& part) {
      return part.view({kSamples, kPositions, kHeads, kWidth / kHeads}).transpose(1, 2);
    };
    const double scale = 1 / std::sqrt(static_cast<double>(kWidth) / kHeads);
    const at::Tensor scores = at::matmul(heads(parts[0]), heads(parts[1]).transpose(-2, -1));
    const at::Tensor attended = at::matmul(at::softmax(scores * scale, -1), heads(parts[2]));
    const at::Tensor joined = attended.transpose(1, 2).reshape({kSamples, kPositions, kWidth});
    const at::Tensor y = x + mix_(joined);
    return y + outer_(at::gelu(inner_(second_norm_(y)), "tanh"));
  }

 private:
  static torch::nn::LayerNormOptions norm() {
    return torch::nn::LayerNormOptions({kWidth});
  }

  torch::nn::LayerNorm first_norm_;
  torch::nn::Linear joint_;
  torch::nn::Linear mix_;
  torch::nn::LayerNorm second_norm_;
  torch::nn::Linear inner_;
  torch::nn::Linear outer_;
};

} // namespace

struct BlockTimes::Blocks : torch::nn::Module {
  Blocks() {
    for (int i = 0; i < kBlocks; ++i) {
      blocks_.push_back(register_module("block" + std::to_string(i), std::make_shared<Block>()));
    }
  }

  at::Tensor forward(at::Tensor x) {
    for (const auto& block : blocks_) {
      x = block->forward(x);
    }
    return x;
  }

  std::vector<std::shared_ptr<Block>> blocks_;
};

BlockTimes::BlockTimes(double budget_s)
    : budget_s_(budget_s),
      blocks_(std::make_shared<Blocks>()),
      input_(at::randn({kSamples, kPositions, kWidth}).requires_grad_(true)) {}

void BlockTimes::once() {
  const at::AutoGradMode gradients(true);
  std::vector<at::Tensor> inputs = blocks_->parameters();
  inputs.push_back(input_);
  const auto begin = Clock::now();
  do {
    const WorkClock forward;
    const at::Tensor y = blocks_->forward(input_);
    const double forward_seconds = forward.seconds();
    const at::Tensor gradient = at::ones_like(y);
    const WorkClock backward;
    torch::autograd::grad({y}, inputs, {gradient});
    add({forward_seconds, backward.seconds()});
  } while (seconds_since(begin) < budget_s_);
}

void BlockTimes::add(const cost::PassSeconds& passes) {
  forwards_.push_back(passes.forward);
  backwards_.push_back(passes.backward);
}

cost::PassSeconds BlockTimes::longer_than(const cost::DeviceSpeed& speed) const {
  cost::PassSeconds sum;
  const auto work = tracer::record_work(*blocks_, [&] { blocks_->forward(input_); });
  for (const graph::OperatorWork& one : work) {
    const cost::PassSeconds pass = cost::pass_seconds(one, speed, cost::Precision::kFull);
    sum.forward += pass.forward;
    sum.backward += pass.backward;
  }
  return {median(forwards_) / sum.forward, median(backwards_) / sum.backward};
}

} // namespace tessera::autotune
