// Gradients that are no dense ones of a step: penalties, plain backwards, rows, and LBFGS.
#include "tessera/optim/lbfgs.h"

#include "tests/mpi/replica_samples/support.h"

namespace tessera::testing {
namespace {

torch::Tensor squares(const std::vector<torch::Tensor>& parameters) {
  torch::Tensor sum = torch::zeros({});
  for (const torch::Tensor& tensor : parameters) {
    sum = sum + 0.05 * tensor.pow(2).sum();
  }
  return sum;
}

std::vector<torch::Tensor> own(const DistributedModel<Chain>& model) {
  std::vector<torch::Tensor> list;
  for (const auto& [name, tensor] : model.local_parameters()) {
    list.push_back(tensor);
  }
  return list;
}

TensorMap updated(bool penalty) {
  Chain chain = made(7);
  torch::optim::SGD optimizer(chain->parameters(), 0.1);
  const Batch batch = batch_at(0);
  auto loss = torch::mse_loss(chain(batch.x), batch.y);
  (penalty ? loss + squares(chain->parameters()) : loss).backward();
  optimizer.step();
  return state_of(chain);
}

std::vector<Uneven> undivided() {
  std::vector<Uneven> list = uneven_layouts();
  std::erase_if(list, [](const Uneven& how) { return how.tp > 1; });
  return list;
}

// Equal on all ranks, it counts once, whatever the ranks' weights are.
TEST(ReplicaSamples, LeaveAPenaltyWhatItIs) {
  const TensorMap wanted = updated(true);
  for (const Uneven& layout : undivided()) {
    if (layout.shares_state || layout.shards > 1) {
      continue; // only its owner has an average to add to
    }
    init(config_of(layout));
    const Ended ended;
    DistributedModel model{made(7)};
    DistributedOptimizer optimizer(torch::optim::SGD(model.parameters(), 0.1));
    const Batch mine = own_rows(batch_at(0));
    step_of(model)(mine.x, mine.y);
    squares(own(model)).backward();
    optimizer.step();
    expect_state(model.state_dict(), wanted, layout.text());
    expect_equal_replicas(model, layout.text());
  }
}

TEST(ReplicaSamples, WeightABackwardWithoutAStep) {
  const TensorMap wanted = updated(false);
  init(config_of(Uneven()));
  const Ended ended;
  DistributedModel model{made(7)};
  DistributedOptimizer optimizer(torch::optim::SGD(model.parameters(), 0.1));
  const Batch mine = own_rows(batch_at(0));
  torch::mse_loss(model(mine.x), mine.y).backward();
  optimizer.step();
  expect_state(model.state_dict(), wanted, "a backward alone");
  expect_equal_replicas(model, "a backward alone");
}

constexpr int kItems = 29;

struct TableImpl : torch::nn::Module {
  TableImpl() {
    items = register_module(
        "items", nn::Embedding(torch::nn::EmbeddingOptions(kItems, kWidth).sparse(true)));
    out = register_module("out", nn::Linear(kWidth, 1));
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    return out(torch::tanh(items(ids)));
  }
  nn::Embedding items{nullptr};
  nn::Linear out{nullptr};
};
TESSERA_MODULE(Table);

TEST(ReplicaSamples, WeightSparseGradients) {
  torch::manual_seed(31);
  const Batch batch = {torch::randint(0, kItems, {kRows}), torch::randn({kRows, 1})};
  torch::manual_seed(7);
  Table plain;
  torch::mse_loss(plain(batch.x), batch.y).backward();
  init(config_of(Uneven()));
  const Ended ended;
  torch::manual_seed(7);
  DistributedModel model{Table()};
  const Batch mine = own_rows(batch);
  auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    auto loss = torch::mse_loss(model(x), y);
    model.backward(loss);
  });
  train_step(mine.x, mine.y);
  for (const auto& item : plain->named_parameters()) {
    const torch::Tensor& got = model.net()->named_parameters()[item.key()].grad();
    const torch::Tensor& wanted = item.value().grad();
    EXPECT_EQ(got.is_sparse(), wanted.is_sparse()) << item.key();
    EXPECT_LE(
        relative_error(
            got.is_sparse() ? got.to_dense() : got,
            wanted.is_sparse() ? wanted.to_dense() : wanted),
        1e-6)
        << item.key();
  }
}

TEST(ReplicaSamples, GiveLbfgsTheLossOfTheBatch) {
  torch::optim::LBFGSOptions options(1);
  options.max_iter(4).line_search_fn("strong_wolfe");
  const Batch batch = batch_at(0, at::kDouble);
  Chain chain = made(7, at::kDouble);
  torch::optim::LBFGS reference(chain->parameters(), options);
  const double loss = reference
                          .step([&] {
                            reference.zero_grad();
                            auto value = torch::mse_loss(chain(batch.x), batch.y);
                            value.backward();
                            return value;
                          })
                          .item<double>();
  for (const Uneven& layout : undivided()) {
    if (layout.shares_state || layout.shards > 1) {
      continue;
    }
    init(config_of(layout));
    const Ended ended;
    DistributedModel model{made(rdp_rank() == 0 ? 7 : 8, at::kDouble)};
    DistributedOptimizer optimizer(torch::optim::LBFGS(model.parameters(), options));
    const auto train_step = step_of(model);
    const Batch mine = own_rows(batch);
    const double got = optimizer
                           .step([&] {
                             optimizer.zero_grad();
                             return train_step(mine.x, mine.y).reduce_mean();
                           })
                           .item<double>();
    EXPECT_NEAR(got, loss, 1e-9 * loss) << layout.text();
    expect_state(model.state_dict(), state_of(chain), layout.text(), 1e-9);
  }
}

} // namespace
} // namespace tessera::testing
