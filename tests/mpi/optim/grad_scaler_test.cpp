// amp::GradScaler: f32 models, losses scaled by the script, overflow agreed over all ranks.
#include "tests/mpi/optim/support.h"

namespace tessera::testing {
namespace {

using amp::GradScaler;
using ::testing::HasSubstr;

torch::optim::SGD momentum(const std::vector<torch::Tensor>& parameters) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.1).momentum(0.5));
}

struct Scaled {
  explicit Scaled(const amp::GradScalerOptions& options)
      : model{made(7)}, optimizer(momentum(model.parameters())), scaler(options) {}

  /// Whether the update was made. `planted`: a rank whose gradient is to overflow.
  bool train(int planted = -1, bool clips = false) {
    const Batch mine = part_of(batch_of(), data_size(), data_rank());
    optimizer.zero_grad();
    tessera::step([this](torch::Tensor x, torch::Tensor y) {
      model.backward(scaler.scale((model(x) - y).pow(2).mean()));
    })(mine.x, mine.y);
    if (rank() == planted) {
      torch::Tensor gradient = model.local_parameters().front().second.grad();
      gradient.view({-1})[0].fill_(std::numeric_limits<double>::quiet_NaN());
    }
    if (clips) {
      scaler.unscale_(optimizer);
      optimizer.clip_grad_norm(0.5);
    }
    const bool done = scaler.step(optimizer);
    scaler.update();
    return done;
  }

  DistributedModel<Chain> model;
  DistributedOptimizer optimizer;
  GradScaler scaler;
};

TEST(GradScaler, TrainsAsWithoutIt) {
  for (const bool clips : {false, true}) {
    Chain chain = made(7);
    auto reference = momentum(chain->parameters());
    for (int i = 0; i < 3; ++i) {
      reference.zero_grad();
      torch::mse_loss(chain(batch_of().x), batch_of().y).backward();
      if (clips) {
        torch::nn::utils::clip_grad_norm_(chain->parameters(), 0.5);
      }
      reference.step();
    }
    for (const Layout& layout : layouts()) {
      for (const bool enabled : {true, false}) {
        init(config_of(layout));
        const Ended ended;
        Scaled run({.init_scale = 4096, .growth_interval = 2, .enabled = enabled});
        for (int i = 0; i < 3; ++i) {
          EXPECT_TRUE(run.train(-1, clips));
        }
        EXPECT_EQ(run.scaler.get_scale(), enabled ? 8192 : 1);
        expect_state(run.model.state_dict(), state_of(chain), layout.text());
      }
    }
  }
}

TEST(GradScaler, AnOverflowOfOneRankIsOneOfAll) {
  for (const Layout& layout : layouts()) {
    init(config_of(layout));
    const Ended ended;
    Scaled run({.init_scale = 4096, .backoff_factor = 0.25});
    EXPECT_TRUE(run.train());
    const TensorMap before = run.model.state_dict();
    double scale = 4096;
    for (int planted = 0; planted < size(); ++planted) {
      EXPECT_FALSE(run.train(planted, planted % 2 == 1)) << layout.text() << ", " << planted;
      scale /= 4;
      EXPECT_EQ(run.scaler.get_scale(), scale) << layout.text() << ", " << planted;
    }
    expect_state(run.model.state_dict(), before, layout.text(), 0);
    EXPECT_TRUE(run.train());
  }
}

// 16-bit parameters without the key fp16: their masters' gradients are divided.
TEST(GradScaler, OfMasters) {
  const auto trained = [](bool scaled) {
    init(config_of(layouts().back()));
    const Ended ended;
    DistributedModel model{made(7, at::kBFloat16)};
    DistributedOptimizer optimizer(momentum(model.parameters()));
    GradScaler scaler({.init_scale = 1024, .enabled = scaled});
    const Batch mine = part_of(batch_of(at::kBFloat16), data_size(), data_rank());
    tessera::step([&](torch::Tensor x, torch::Tensor y) {
      model.backward(scaler.scale((model(x) - y).to(at::kFloat).pow(2).mean()));
    })(mine.x, mine.y);
    scaler.step(optimizer);
    return model.state_dict();
  };
  expect_state(trained(true), trained(false), "masters", 1e-6);
}

TEST(GradScaler, StateAndOrderOfCalls) {
  init(config_of(layouts().back()));
  const Ended ended;
  Scaled run({.init_scale = 256, .growth_interval = 2});
  EXPECT_THAT(error_of<UserError>([&] { run.scaler.update(); }), HasSubstr("no optimizer"));
  run.train();
  GradScaler other({.init_scale = 2, .growth_interval = 2});
  other.load_state_dict(run.scaler.state_dict());
  EXPECT_EQ(other.get_scale(), 256);
  EXPECT_EQ(other.state_dict(), run.scaler.state_dict());
  run.train();
  EXPECT_EQ(run.scaler.get_scale(), 512) << "after two updates";
  run.scaler.unscale_(run.optimizer);
  EXPECT_THAT(
      error_of<UserError>([&] { run.scaler.unscale_(run.optimizer); }), HasSubstr("called twice"));
  run.scaler.step(run.optimizer);
  EXPECT_THAT(
      error_of<UserError>([&] { run.scaler.step(run.optimizer); }), HasSubstr("called twice"));
  EXPECT_THAT(
      error_of<ConfigError>([] { GradScaler({.backoff_factor = 2}); }),
      HasSubstr("backoff_factor is 2"));
}

TEST(GradScaler, IsRefusedBesideFp16) {
  Config config = config_of(layouts().back());
  config.fp16 = true;
  init(config);
  const Ended ended;
  Scaled run({});
  EXPECT_THAT(error_of<ConfigError>([&] { run.train(); }), HasSubstr("leave the GradScaler out"));
}

} // namespace
} // namespace tessera::testing
