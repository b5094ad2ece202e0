#pragma once

#include <atomic>
#include <chrono>
#include <random>
#include <set>
#include <thread>

#include "tessera/checkpoint/checksum.h"

#include "tests/mpi/runtime/support.h"

/// Models whose parts take a random time, and the state that a training ends in.
namespace tessera::testing {

/// Sleeps for up to `most`, by numbers that no seed of the script decides.
inline void sleep_at_random() {
  static thread_local std::mt19937 numbers{std::random_device{}()};
  constexpr int kMostMicroseconds = 500;
  const auto time = std::uniform_int_distribution<int>(0, kMostMicroseconds)(numbers);
  std::this_thread::sleep_for(std::chrono::microseconds(time));
}

/// x, after a sleep in the forward and another in the backward.
struct Delayed : torch::autograd::Function<Delayed> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) {
    sleep_at_random();
    return x.clone();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext*,
      torch::autograd::variable_list gradients) {
    sleep_at_random();
    return gradients;
  }
};

struct SlowBlockImpl : torch::nn::Module {
  SlowBlockImpl() {
    a = register_module("a", nn::Linear(kWidth, 2 * kWidth));
    b = register_module("b", nn::Linear(2 * kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return x + b(torch::tanh(Delayed::apply(a(x))));
  }
  nn::Linear a{nullptr}, b{nullptr};
};
TESSERA_MODULE(SlowBlock);

/// Four blocks in a row.
struct SlowChainImpl : torch::nn::Module {
  SlowChainImpl() {
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), SlowBlock()));
    }
    head = register_module("head", nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor h = x;
    for (auto& block : blocks) {
      h = block(h);
    }
    return head(h);
  }
  std::vector<SlowBlock> blocks;
  nn::Linear head{nullptr};
};
TESSERA_MODULE(SlowChain);

/// A block with running statistics of two kinds: the layer's, and a buffer that
/// the next forward reads.
struct SlowNormImpl : torch::nn::Module {
  SlowNormImpl() {
    norm = register_module("norm", nn::BatchNorm1d(kWidth));
    centre = register_buffer("centre", torch::zeros({kWidth}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor h = norm(Delayed::apply(x)) - 0.1 * centre.clone();
    if (is_training()) {
      const torch::NoGradGuard no_grad;
      centre.mul_(0.7).add_(x.mean(0), 0.3);
    }
    return h;
  }
  nn::BatchNorm1d norm{nullptr};
  torch::Tensor centre;
};
TESSERA_MODULE(SlowNorm);

/// A block that is called three times, two projections with one weight, running
/// statistics before and behind the other rank, and an output nobody uses.
struct SlowMixImpl : torch::nn::Module {
  SlowMixImpl() {
    in = register_module("in", Projection(torch::Tensor()));
    near = register_module("near", SlowNorm());
    shared = register_module("shared", SlowBlock());
    far = register_module("far", SlowNorm());
    dropped = register_module("dropped", SlowBlock());
    behind = register_module("behind", SlowNorm());
    out = register_module("out", Projection(in->weight));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = shared(near(in(x)));
    dropped(h);
    h = far(shared(torch::tanh(h)));
    return out(behind(h + shared(x)));
  }
  Projection in{nullptr};
  SlowNorm near{nullptr};
  SlowBlock shared{nullptr};
  SlowNorm far{nullptr};
  SlowBlock dropped{nullptr};
  SlowNorm behind{nullptr};
  Projection out{nullptr};
};
TESSERA_MODULE(SlowMix);

/// Keeps a core busy now and then while it lives.
class Load {
 public:
  Load()
      : thread_([this] {
          while (!stop_) {
            const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
            while (std::chrono::steady_clock::now() < end) {
            }
            sleep_at_random();
          }
        }) {}
  ~Load() {
    stop_ = true;
    thread_.join();
  }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

/// The bits of all parameters and buffers of the model. Collective.
template <typename Model>
std::uint64_t state_of(const Model& model) {
  checkpoint::Checksum sum;
  for (const auto& [name, tensor] : model.state_dict()) {
    const torch::Tensor bytes = tensor.contiguous();
    sum.update(name);
    sum.update(bytes.data_ptr(), bytes.nbytes());
  }
  return sum.value();
}

} // namespace tessera::testing
