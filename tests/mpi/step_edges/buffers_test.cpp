// Running statistics differ by replica within a step of training; in evaluation all replicas answer
// with those of the first.
#include "tests/mpi/step_edges/support.h"

namespace tessera::testing {
namespace {

struct NormedImpl : torch::nn::Module {
  NormedImpl() {
    first = register_module("first", Block());
    norm = register_module("norm", nn::BatchNorm1d(kWidth));
    last = register_module("last", Block());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return last(norm(first(x)));
  }
  Block first{nullptr}, last{nullptr};
  nn::BatchNorm1d norm{nullptr};
};
TESSERA_MODULE(Normed);

TEST(Buffers, ReplicasEvaluateWithTheSameStatistics) {
  const int pp = world_size() == 4 ? 2 : 1;
  init(placed(pp, 1, {{"norm", pp - 1}, {"last", pp - 1}}));
  const Ended ended;
  torch::manual_seed(7);
  DistributedModel model{Normed()};
  auto train_step = tessera::step([&](torch::Tensor x) { model.backward(model(x).pow(2).mean()); });
  auto evaluate = tessera::step([&](torch::Tensor x) { return model(x); });
  for (int step = 0; step < 2; ++step) {
    torch::manual_seed(40 + step);
    train_step(mine_of({torch::randn({8, kWidth}), torch::randn({8, kWidth})}).x);
  }
  TensorMap wanted; // the first replica's statistics
  for (const auto& [name, tensor] : model.state_dict()) {
    wanted[name] = allgather(tensor.detach(), Group::kDP).front();
  }
  model.eval();
  const torch::NoGradGuard no_grad;
  torch::manual_seed(50);
  const torch::Tensor out = evaluate(torch::randn({4, kWidth})).concat();
  for (const torch::Tensor& other : allgather(out, Group::kDP)) {
    EXPECT_TRUE(other.equal(out));
  }
  for (const auto& [name, tensor] : model.state_dict()) {
    EXPECT_TRUE(tensor.equal(wanted.at(name))) << name;
  }
}

} // namespace
} // namespace tessera::testing
