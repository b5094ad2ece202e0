#include "tessera/autotune/probe/measure_block.h"

#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/record_function.h>
#include <torch/torch.h>

#include "tessera/autotune/probe/work_clock.h"
#include "tessera/base/statistics.h"
#include "tessera/base/stopwatch.h"
#include "tessera/tracer/record_work.h"

namespace tessera::autotune {

namespace {

using cost::PassSeconds;

constexpr int kLayers = 4;

/// Sizes of a transformer layer and of its input.
struct Sizes {
  std::int64_t samples;
  std::int64_t positions;
  std::int64_t width;
  std::int64_t heads;
};

// The weights of all layers together, 12 MiB, do not stay in a core's own cache.
constexpr Sizes kLarge = {.samples = 2, .positions = 64, .width = 256, .heads = 8};
constexpr Sizes kSmall = {.samples = 1, .positions = 8, .width = 32, .heads = 8};

/// A transformer layer as published: attention and a feed-forward network, each behind a norm.
class Layer : public torch::nn::Module {
 public:
  explicit Layer(const Sizes& sizes)
      : sizes_(sizes),
        first_norm_(register_module("ln_1", torch::nn::LayerNorm(norm()))),
        joint_(linear("qkv", 1, 3)),
        mix_(linear("proj", 1, 1)),
        second_norm_(register_module("ln_2", torch::nn::LayerNorm(norm()))),
        inner_(linear("fc", 1, 4)),
        outer_(linear("fc_proj", 4, 1)) {}

  at::Tensor forward(const at::Tensor& x) {
    const auto parts = joint_(first_norm_(x)).chunk(3, -1);
    const std::int64_t head = sizes_.width / sizes_.heads;
    const auto heads = [&](const at::Tensor& part) {
      return part.view({sizes_.samples, sizes_.positions, sizes_.heads, head}).transpose(1, 2);
    };
    const double scale = 1 / std::sqrt(static_cast<double>(head));
    const at::Tensor scores = at::matmul(heads(parts[0]), heads(parts[1]).transpose(-2, -1));
    const at::Tensor attended = at::matmul(at::softmax(scores * scale, -1), heads(parts[2]));
    const at::Tensor joined = attended.transpose(1, 2).reshape(x.sizes());
    const at::Tensor y = x + mix_(joined);
    return y + outer_(at::gelu(inner_(second_norm_(y)), "tanh"));
  }

 private:
  torch::nn::LayerNormOptions norm() const {
    return torch::nn::LayerNormOptions({sizes_.width});
  }
  torch::nn::Linear linear(const char* name, std::int64_t inputs, std::int64_t outputs) {
    return register_module(name, torch::nn::Linear(inputs * sizes_.width, outputs * sizes_.width));
  }

  Sizes sizes_;
  torch::nn::LayerNorm first_norm_;
  torch::nn::Linear joint_;
  torch::nn::Linear mix_;
  torch::nn::LayerNorm second_norm_;
  torch::nn::Linear inner_;
  torch::nn::Linear outer_;
};

bool is_product(std::string_view name) {
  return name == "aten::mm" || name == "aten::addmm" || name == "aten::bmm" ||
         name == "aten::baddbmm";
}

/// Adds up the seconds of this thread's products while it lives.
class ProductClock {
 public:
  ProductClock()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(begin, end).scopes({at::RecordScope::FUNCTION}))) {
    seconds_ = 0;
  }
  ~ProductClock() {
    at::removeCallback(handle_);
  }
  ProductClock(const ProductClock&) = delete;
  ProductClock& operator=(const ProductClock&) = delete;

  double seconds() const {
    return seconds_;
  }

 private:
  struct Running : at::ObserverContext {
    WorkClock clock;
  };
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    return is_product(function.name()) ? std::make_unique<Running>() : nullptr;
  }
  static void end(const at::RecordFunction& /*function*/, at::ObserverContext* running) {
    if (running != nullptr) {
      seconds_ += static_cast<Running*>(running)->clock.seconds();
    }
  }

  at::CallbackHandle handle_;
  static thread_local double seconds_;
};

thread_local double ProductClock::seconds_ = 0;

PassSeconds sum_of(const graph::ForwardWork& work, const cost::DeviceSpeed& speed) {
  PassSeconds sum;
  for (const graph::OperatorWork& one : work) {
    const PassSeconds pass = cost::pass_seconds(one, speed, cost::Precision::kFull);
    sum.forward += pass.forward;
    sum.backward += pass.backward;
  }
  return sum;
}

} // namespace

/// Layers of one size, and what they took.
class BlockTimes::Layers : public torch::nn::Module {
 public:
  explicit Layers(const Sizes& sizes)
      : input_(at::randn({sizes.samples, sizes.positions, sizes.width}).requires_grad_(true)) {
    for (int i = 0; i < kLayers; ++i) {
      layers_.push_back(register_module(std::to_string(i), std::make_shared<Layer>(sizes)));
    }
    inputs_ = parameters();
    inputs_.push_back(input_);
  }

  /// Products are timed in passes of their own, since that takes time itself.
  void once(double budget_s) {
    const auto begin = Clock::now();
    do {
      whole_.add(run<WorkClock>());
      products_.add(run<ProductClock>());
    } while (seconds_since(begin) < budget_s);
  }

  void add(const Passes& passes) {
    whole_.add(passes.whole);
    products_.add(passes.products);
  }

  LayerPasses passes(const cost::DeviceSpeed& speed) {
    const graph::ForwardWork work = tracer::record_work(*this, [&] { forward(); });
    const auto sum_with = [&](double products, double others) {
      cost::DeviceSpeed part = speed;
      scale(part, {{1, 1}, {products, products}, {others, others}});
      return sum_of(work, part);
    };
    const PassSeconds launch = sum_with(0, 0);
    const PassSeconds with_products = sum_with(1, 0);
    const PassSeconds with_others = sum_with(0, 1);
    const PassSeconds whole = whole_.middle();
    const PassSeconds products = products_.middle();
    const auto pass = [&](double PassSeconds::*of) {
      return LayerPass{
          .launch = launch.*of,
          .products = with_products.*of - launch.*of,
          .others = with_others.*of - launch.*of,
          .whole_took = whole.*of,
          .products_took = products.*of};
    };
    return {pass(&PassSeconds::forward), pass(&PassSeconds::backward)};
  }

 private:
  class Times {
   public:
    void add(const PassSeconds& passes) {
      forwards_.push_back(passes.forward);
      backwards_.push_back(passes.backward);
    }
    PassSeconds middle() const {
      return {median(forwards_), median(backwards_)};
    }

   private:
    std::vector<double> forwards_;
    std::vector<double> backwards_;
  };

  at::Tensor forward() {
    at::Tensor x = input_;
    for (const auto& layer : layers_) {
      x = layer->forward(x);
    }
    return x;
  }

  template <typename PassClock>
  PassSeconds run() {
    const at::AutoGradMode gradients(true);
    PassSeconds seconds;
    at::Tensor y;
    {
      const PassClock clock;
      y = forward();
      seconds.forward = clock.seconds();
    }
    const at::Tensor gradient = at::ones_like(y);
    const PassClock clock;
    torch::autograd::grad({y}, inputs_, {gradient});
    seconds.backward = clock.seconds();
    return seconds;
  }

  at::Tensor input_;
  std::vector<std::shared_ptr<Layer>> layers_;
  std::vector<at::Tensor> inputs_; // of which gradients are computed
  Times whole_;
  Times products_;
};

BlockTimes::BlockTimes(double budget_s)
    : budget_s_(budget_s),
      large_(std::make_unique<Layers>(kLarge)),
      small_(std::make_unique<Layers>(kSmall)) {}

BlockTimes::~BlockTimes() = default;

void BlockTimes::once() {
  large_->once(budget_s_);
  small_->once(budget_s_);
}

void BlockTimes::add(const Passes& large, const Passes& small) {
  large_->add(large);
  small_->add(small);
}

LayerPace BlockTimes::pace(const cost::DeviceSpeed& speed) const {
  return layer_pace(large_->passes(speed), small_->passes(speed));
}

} // namespace tessera::autotune
