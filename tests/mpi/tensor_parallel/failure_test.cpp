// An exception on some ranks of a TP_GROUP only: the others, which are in a
// collective or come to one, fail with its text as well, and the steps after it
// are as if it had not been.
#include <stdexcept>

#include <gmock/gmock.h>

#include "tests/mpi/tensor_parallel/support.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

enum class FaultIn { kNothing, kForward, kBackward, kStepFunction };
FaultIn g_fault = FaultIn::kNothing;
bool g_on_all_ranks = false;

void explode_in(FaultIn place) {
  if (g_fault == place && (g_on_all_ranks || tp_rank() == tp_size() - 1)) {
    throw std::runtime_error("planted fault");
  }
}

/// x; its backward may throw.
struct Fuse : torch::autograd::Function<Fuse> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext*,
      torch::autograd::variable_list gradients) {
    explode_in(FaultIn::kBackward);
    return gradients;
  }
};

/// A plain module between distributed ones.
struct FusedImpl : torch::nn::Module {
  FusedImpl() {
    inner = register_module("inner", nn::Linear(kInner, kInner));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    explode_in(FaultIn::kForward);
    return Fuse::apply(torch::tanh(inner(x)));
  }
  nn::Linear inner{nullptr};
};
TESSERA_MODULE(Fused);

struct FaultyNetImpl : torch::nn::Module {
  FaultyNetImpl() {
    words = register_module("words", nn::Embedding(kWords, kWidth));
    in = register_module("in", nn::Linear(kWidth, kInner));
    fused = register_module("fused", Fused());
    last = register_module("last", nn::Linear(kInner, kWords));
    set_tensor_parallelism(words);
    set_tensor_parallelism(in);
    set_tensor_parallelism(last);
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    return last(fused(in(words(ids))));
  }
  nn::Embedding words{nullptr};
  nn::Linear in{nullptr};
  Fused fused{nullptr};
  nn::Linear last{nullptr};
};
TESSERA_MODULE(FaultyNet);

struct FailureCase {
  int pp, tp;
  std::string kind = "1d";
  bool static_mode = false;
  std::string same_node = "auto";

  std::string text() const {
    return str("pp ", pp, ", tp ", tp, ", ", kind, static_mode ? ", static, " : ", ", same_node);
  }
  Config config() const {
    Config config = tp_config(pp, tp);
    config.tensor_parallel_kind = kind;
    config.same_node_backend = same_node; // "mpi": as between nodes
    config.static_mode = static_mode;
    if (static_mode) {
      config.static_mode_steps = 1;
    }
    // A wait that only ends by the limit ends with another text.
    config.timeout_seconds = 200;
    if (pp > 1) {
      config.auto_partition = false;
      config.default_partition = 0;
      config.partition = {{"fused", 1}, {"last", 1}};
    }
    return config;
  }
};

// The step `at` of four fails; its batch is lost.
Trained train_with_failure(const FailureCase& c, FaultIn place, int at) {
  init(c.config());
  const Ended ended;
  Trained result;
  torch::manual_seed(7);
  DistributedModel model{FaultyNet()};
  DistributedOptimizer optimizer(
      torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)));
  auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    auto logits = model(x);
    explode_in(FaultIn::kStepFunction);
    auto loss = word_loss(logits, y);
    model.backward(loss);
    return loss;
  });
  for (int step = 0; step < 4; ++step) {
    const Batch mine = mine_of(word_batch(step));
    optimizer.zero_grad();
    if (step == at) {
      g_fault = place;
      const std::string text = error_of<UserError>([&] { train_step(mine.x, mine.y); });
      g_fault = FaultIn::kNothing;
      EXPECT_THAT(text, HasSubstr("planted fault")) << c.text();
      const auto texts = allgather(text);
      EXPECT_EQ(texts, std::vector<std::string>(texts.size(), text)) << c.text();
      if (!g_on_all_ranks) {
        // The last tp rank of the first pipeline in which it is.
        const bool in_module = place != FaultIn::kStepFunction && c.pp > 1;
        EXPECT_THAT(text, HasSubstr(in_module ? "module 'fused'" : "step function")) << c.text();
        const bool mine_is = tp_rank() == tp_size() - 1 && pp_rank() == (in_module ? 1 : 0);
        std::vector<std::string> origins;
        for (const int rank : allgather(mine_is ? rank() : -1)) {
          origins.push_back(str("rank ", rank, ", "));
        }
        EXPECT_TRUE(std::any_of(
            origins.begin(),
            origins.end(),
            [&](const std::string& origin) { return text.rfind(origin, 0) == 0; }))
            << c.text() << ": " << text;
      }
      continue;
    }
    const double loss = train_step(mine.x, mine.y).reduce_mean().item<double>();
    optimizer.step();
    double mean = 0;
    for (const double value : allgather(loss, Group::kDP)) {
      mean += value / dp_size();
    }
    result.losses.push_back(mean);
  }
  result.parameters = model.state_dict();
  return result;
}

std::vector<FailureCase> failure_cases() {
  if (world_size() == 2) {
    return {{1, 2}, {1, 2, "1d", false, "mpi"}};
  }
  return {
      {1, 4},
      {2, 2},
      {1, 2},
      {1, 4, "2d"},
      {2, 2, "1d", /*static_mode=*/true},
      {1, 4, "2d", false, "mpi"},
      {2, 2, "1d", false, "mpi"}};
}

void check_failure(FaultIn place, int at, bool everywhere = false) {
  g_on_all_ranks = everywhere;
  const auto good_batches = [at](int i) { return word_batch(i < at ? i : i + 1); };
  for (const FailureCase& c : failure_cases()) {
    const auto wanted = train_plain(
        [] { return FaultyNet(); }, good_batches, 3, 2 * world_size() / c.pp, word_loss);
    expect_equal(train_with_failure(c, place, at), wanted, c.text());
  }
}

TEST(TensorParallelFailure, InForward) {
  check_failure(FaultIn::kForward, 1);
}

TEST(TensorParallelFailure, InBackward) {
  check_failure(FaultIn::kBackward, 2);
}

TEST(TensorParallelFailure, InStepFunction) {
  check_failure(FaultIn::kStepFunction, 1);
}

TEST(TensorParallelFailure, OnAllRanks) {
  check_failure(FaultIn::kForward, 1, /*everywhere=*/true);
}

} // namespace
} // namespace tessera::testing
