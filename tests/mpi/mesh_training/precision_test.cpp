// Training in bf16, f16 and f64 on a mesh, beside one process that computes in the same precision,
// and with residual sums in f32.
#include "tessera/half/operators.h"

#include "tests/mpi/mesh_training/support.h"

namespace tessera::testing {
namespace {

constexpr int kSteps = 5;
constexpr double kScale = 256; // of losses in f16

struct Updates {
  std::vector<double> losses;
  TensorMap of; // what training added to the parameters
};

torch::optim::SGD momentum_sgd(const std::vector<torch::Tensor>& parameters) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.2).momentum(0.9));
}

TensorMap first_parameters() {
  torch::manual_seed(7);
  return parameters_of(made_gpt());
}

/// Replaces parameters by what was added to them.
TensorMap updates_of(TensorMap state) {
  for (const auto& [name, tensor] : first_parameters()) {
    state[name] = state.at(name).to(torch::kFloat) - tensor;
  }
  return state;
}

/// Masters in f32, forward and backward in `dtype`, no rank but this one.
Updates plain_training(at::ScalarType dtype, int slices) {
  torch::manual_seed(7);
  models::Gpt net = made_gpt();
  std::vector<torch::Tensor> parameters = net->parameters();
  parameters.pop_back(); // the shared one
  std::vector<torch::Tensor> masters;
  for (torch::Tensor& parameter : parameters) {
    masters.push_back(parameter.detach().clone().requires_grad_());
    parameter.set_data(parameter.detach().to(dtype));
  }
  auto optimizer = momentum_sgd(masters);
  const double scale = dtype == torch::kHalf ? kScale : 1;
  Updates result;
  for (int step = 0; step < kSteps; ++step) {
    double sum = 0;
    for (int slice = 0; slice < slices; ++slice) {
      const Batch part = part_of(tokens_of(step), slices, slice);
      const auto loss = token_loss(net(part.x).to(torch::kFloat), part.y);
      (loss * (scale / slices)).backward();
      sum += loss.item<double>() / slices;
    }
    result.losses.push_back(sum);
    for (std::size_t i = 0; i < masters.size(); ++i) {
      masters[i].mutable_grad() = parameters[i].grad().to(torch::kFloat) / scale;
      parameters[i].mutable_grad() = torch::Tensor();
    }
    optimizer.step();
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < masters.size(); ++i) {
      parameters[i].copy_(masters[i]);
    }
  }
  // Masters, as the library's state has f32 where parameters have 16 bits.
  TensorMap state = parameters_of(net);
  for (const auto& item : net->named_parameters()) {
    for (std::size_t i = 0; i < masters.size(); ++i) {
      if (parameters[i].is_same(item.value()) && state.contains(item.key())) {
        state[item.key()] = masters[i].detach().clone();
      }
    }
  }
  result.of = updates_of(state);
  return result;
}

Updates mesh_training(
    const Layout& layout,
    at::ScalarType dtype,
    bool sums_in_f32,
    const std::string& memory = "autograd") {
  Config config = config_of(layout);
  config.mesh_memory = memory;
  config.fp16 = dtype == torch::kHalf;
  config.bf16 = dtype == torch::kBFloat16;
  init(config);
  const Ended ended;
  torch::manual_seed(dp_rank() == 0 ? 7 : 8);
  DistributedModel model(made_gpt({{"fp32_residual_addition", sums_in_f32}}));
  EXPECT_EQ(model.converted_to().value_or(torch::kFloat), dtype);
  LossScaleOptions scaling;
  scaling.static_loss_scale = dtype == torch::kHalf ? kScale : 1;
  DistributedOptimizer optimizer(momentum_sgd(model.parameters()), scaling);
  auto train_step = token_step(model);
  Updates result;
  for (int step = 0; step < kSteps; ++step) {
    const Batch mine = tokens_here(step);
    optimizer.zero_grad();
    const double loss = train_step(mine.x, mine.y).reduce_mean().item<double>();
    optimizer.step();
    double mean = 0;
    for (const double value : allgather(loss, Group::kDP)) {
      mean += value / dp_size();
    }
    result.losses.push_back(mean);
  }
  result.of = updates_of(model.state_dict());
  return result;
}

/// Of all parameters together.
double distance(const TensorMap& a, const TensorMap& b) {
  double square = 0;
  double whole = 0;
  for (const auto& [name, tensor] : b) {
    square += (a.at(name) - tensor).pow(2).sum().item<double>();
    whole += tensor.pow(2).sum().item<double>();
  }
  return std::sqrt(square / whole);
}

void compare(at::ScalarType dtype, double tolerance) {
  half::support_processor();
  const Updates exact = plain_training(torch::kFloat, kMicrobatches);
  ASSERT_LT(exact.losses.back(), exact.losses.front());
  for (const Layout& layout : meshes()) {
    const std::string what = tessera::str(dtype, ", ", layout.text());
    const int parts =
        layout.prescaled ? world_size() / layout.pp / layout.tp : world_size() / layout.pp;
    const Updates wanted = plain_training(dtype, kMicrobatches * parts);
    const Updates got = mesh_training(layout, dtype, /*sums_in_f32=*/false);
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(got.losses[step], wanted.losses[step], tolerance * wanted.losses[step]) << what;
    }
    EXPECT_LE(distance(got.of, wanted.of), 10 * tolerance) << what;
    EXPECT_LE(distance(got.of, exact.of), 10 * tolerance) << what;
    EXPECT_GT(distance(got.of, exact.of), 0) << what;
    const Updates with_sums = mesh_training(layout, dtype, /*sums_in_f32=*/true);
    EXPECT_LE(distance(with_sums.of, exact.of), 10 * tolerance) << what;
    EXPECT_GT(distance(with_sums.of, got.of), 0) << what;
    const Updates managed = mesh_training(layout, dtype, /*sums_in_f32=*/false, "managed");
    EXPECT_LE(distance(managed.of, wanted.of), 10 * tolerance) << what;
    EXPECT_LE(distance(managed.of, exact.of), 10 * tolerance) << what;
    EXPECT_GT(distance(managed.of, exact.of), 0) << what;
  }
}

TEST(MeshPrecision, Bf16) {
  compare(torch::kBFloat16, 5e-3);
}

TEST(MeshPrecision, F16) {
  compare(torch::kHalf, 2e-3);
}

TEST(MeshPrecision, F64) {
  torch::manual_seed(7);
  models::Gpt plain = made_gpt();
  plain->to(torch::kDouble);
  std::vector<torch::Tensor> parameters = plain->parameters();
  parameters.pop_back(); // the shared one
  const Batch batch = tokens_of(0);
  token_loss(plain(batch.x), batch.y).backward();
  torch::optim::SGD(parameters, torch::optim::SGDOptions(1.0)).step();
  for (const Layout& layout : meshes()) {
    for (const char* memory : {"autograd", "managed"}) {
      Config config = config_of(layout);
      config.mesh_memory = memory;
      init(config);
      const Ended ended;
      torch::manual_seed(7);
      models::Gpt net = made_gpt();
      net->to(torch::kDouble);
      DistributedModel model(net);
      DistributedOptimizer optimizer(
          torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(1.0)));
      auto train_step = token_step(model);
      const Batch mine = tokens_here(0);
      train_step(mine.x, mine.y);
      optimizer.step();
      expect_state(
          model.state_dict(), parameters_of(plain), str(layout.text(), ", ", memory), 1e-12);
    }
  }
}

} // namespace
} // namespace tessera::testing
