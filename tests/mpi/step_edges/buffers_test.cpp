// Buffers that a forward changes. Running statistics differ by replica within a step of training;
// in evaluation all replicas answer with those of the first. A state of each sample is warned of.
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

/// Carries a state of `kRows` rows from call to call, as recurrent networks do.
template <int kRows>
struct RecurrentImpl : torch::nn::Module {
  RecurrentImpl() {
    first = register_module("first", Block());
    last = register_module("last", Block());
    state = register_buffer("state", torch::zeros({kRows, kWidth}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = first(x + state.narrow(0, 0, 1));
    {
      const torch::NoGradGuard no_grad;
      state.copy_(y.mean(0).expand_as(state));
    }
    return last(y);
  }
  Block first{nullptr}, last{nullptr};
  torch::Tensor state;
};
using Recurrent3Impl = RecurrentImpl<3>;
using Recurrent4Impl = RecurrentImpl<4>;
TESSERA_MODULE(Recurrent3);
TESSERA_MODULE(Recurrent4);

// What two steps of microbatches of four rows say.
template <typename Net>
std::string said_of_state(int pp, int microbatches) {
  ::testing::internal::CaptureStderr();
  {
    init(placed(pp, microbatches, {{"last", pp - 1}}));
    const Ended ended;
    DistributedModel model{Net()};
    auto train = tessera::step([&](torch::Tensor x) { model.backward(model(x).pow(2).mean()); });
    for (int i = 0; i < 2; ++i) {
      train(torch::ones({4 * microbatches, kWidth}));
    }
  }
  return ::testing::internal::GetCapturedStderr();
}

TEST(Buffers, OnesThatKeepAStateOfEachSampleAreWarnedOf) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (const int pp : pipelines()) {
    for (const int microbatches : {1, 2}) {
      SCOPED_TRACE(text_of(pp, microbatches));
      const bool shared = microbatches > 1 || pp < world_size();
      const std::string text = said_of_state<Recurrent4>(pp, microbatches);
      const std::size_t found = text.find("the buffer 'state' of shape [4, 8]");
      EXPECT_EQ(found != std::string::npos, shared && rank == 0) << text;
      if (found != std::string::npos) { // once
        EXPECT_EQ(text.find("the buffer 'state'", found + 1), std::string::npos) << text;
      }
      EXPECT_EQ(said_of_state<Recurrent3>(pp, microbatches).find("'state'"), std::string::npos);
    }
  }
}

} // namespace
} // namespace tessera::testing
