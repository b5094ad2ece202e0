// Training with divided parameters gives the numbers of one process, and of plain data parallelism.
#include "tessera/optim/fused.h"

#include "tests/mpi/sharding/support.h"

namespace tessera::testing {
namespace {

template <typename MakeNet>
void expect_plain_numbers(const std::string& what, MakeNet make_net) {
  for (const int microbatches : {1, 2}) {
    const Trained plain = train_plain(make_net, random_batches(16), 3, world_size() * microbatches);
    for (const int degree : degrees()) {
      const Trained trained =
          train_distributed(sharded(degree, microbatches), make_net, random_batches(16), 3);
      const std::string here = str(what, ", degree ", degree, ", microbatches ", microbatches);
      expect_same(trained.parameters, plain.parameters, here, 2e-5);
      for (std::size_t i = 0; i < plain.losses.size(); ++i) {
        EXPECT_NEAR(trained.losses[i], plain.losses[i] / 1.0, 1e-5) << here << ", step " << i;
      }
    }
  }
}

TEST(Numbers, OfLayersThatNobodySees) {
  expect_plain_numbers("mixed", [] { return Mixed(); });
}

TEST(Numbers, OfEveryFlow) {
  for_every_flow(
      [](const std::string& what, auto make_net) { expect_plain_numbers(what, make_net); });
}

TEST(Numbers, OfFlowsThatDifferBetweenRanks) {
  const auto trained = [](int degree) {
    init(sharded(degree, 2));
    const Ended ended;
    return trained_by_rank();
  };
  const TensorMap plain = trained(1);
  for (const int degree : degrees()) {
    expect_same(trained(degree), plain, str("degree ", degree), 2e-6);
  }
}

struct Kind {
  bool adam = false;
  bool lamb = false;
  bool novograd = false;
  at::ScalarType type = at::kFloat;
  int passes = 1;
  int microbatches = 1;
  double clip = kNoClipping;
  bool recompute = false;
};

struct Result {
  TensorMap state;
  std::vector<double> norms;
};

/// Some updates of a model with blocks, under any degree: 1 is plain data parallelism.
Result trained(int degree, const Kind& kind) {
  Config config = sharded(degree, kind.microbatches);
  if (degree > 1) {
    config.sdp_gradient_clipping = kind.clip;
    config.sdp_reduce_bucket_size = 100; // several parameters in some buckets, one in others
  }
  init(config);
  const Ended ended;
  torch::manual_seed(dp_rank() == 0 ? 7 : 8);
  Tied net;
  if (kind.recompute) {
    set_activation_checkpointing(net->body, {.strategy = "each"});
  }
  net->to(kind.type);
  ModelOptions options;
  options.backward_passes_per_step = kind.passes;
  DistributedModel model(net, options);
  DistributedOptimizer optimizer = [&] {
    if (kind.lamb) {
      return DistributedOptimizer(
          optim::Lamb(model.parameters(), optim::LambOptions(0.02).max_grad_norm(0.05)));
    }
    if (kind.novograd) {
      return DistributedOptimizer(
          optim::NovoGrad(model.parameters(), optim::NovoGradOptions(0.02).weight_decay(0.1)));
    }
    if (kind.adam) {
      return DistributedOptimizer(torch::optim::AdamW(
          model.parameters(), torch::optim::AdamWOptions(0.01).weight_decay(0.1)));
    }
    return sgd(model.parameters());
  }();
  auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    auto loss = (model(x.to(kind.type)) - y.to(kind.type)).pow(2).mean();
    model.backward(loss);
  });
  Result result;
  for (int i = 0; i < 3; ++i) {
    optimizer.zero_grad();
    for (int pass = 0; pass < kind.passes; ++pass) {
      const Batch mine = mine_of(random_batches(16)(kind.passes * i + pass));
      train_step(mine.x, mine.y);
    }
    if (degree == 1) {
      result.norms.push_back(optimizer.clip_grad_norm(kind.clip));
    }
    optimizer.step();
    if (degree > 1) {
      result.norms.push_back(optimizer.global_grad_norm());
    }
  }
  result.state = model.state_dict();
  return result;
}

void expect_replicated_numbers(const std::string& what, const Kind& kind, double tolerance) {
  const Result plain = trained(1, kind);
  for (const int degree : degrees()) {
    const Result result = trained(degree, kind);
    const std::string here = str(what, ", degree ", degree);
    expect_same(result.state, plain.state, here, tolerance);
    for (std::size_t i = 0; i < plain.norms.size(); ++i) {
      EXPECT_NEAR(result.norms[i], plain.norms[i], 0.02 * plain.norms[i]) << here;
    }
  }
}

// Of which a rank has parts, and the update needs the norm of the whole.
TEST(Numbers, OfNormsOfParameters) {
  expect_replicated_numbers("LAMB", {.lamb = true, .microbatches = 2}, 2e-5);
  expect_replicated_numbers("NovoGrad", {.novograd = true, .microbatches = 2}, 2e-5);
}

TEST(Numbers, OfAdamW) {
  expect_replicated_numbers("AdamW", {.adam = true, .microbatches = 2}, 2e-5);
}

TEST(Numbers, OfSeveralPasses) {
  expect_replicated_numbers("passes", {.passes = 2, .microbatches = 2}, 2e-5);
  expect_replicated_numbers("three passes", {.adam = true, .passes = 3}, 2e-5);
}

TEST(Numbers, OfClipping) {
  expect_replicated_numbers("clipped", {.microbatches = 2, .clip = 0.05}, 2e-5);
  expect_replicated_numbers("clipped bf16", {.type = at::kBFloat16, .clip = 0.05}, 2e-2);
}

TEST(Numbers, OfMasterWeights) {
  expect_replicated_numbers("bf16", {.type = at::kBFloat16}, 2e-2);
  expect_replicated_numbers("bf16 AdamW", {.adam = true, .type = at::kBFloat16}, 2e-2);
}

TEST(Numbers, OfRecomputedActivations) {
  expect_replicated_numbers("recomputed", {.microbatches = 2, .recompute = true}, 2e-5);
}

TEST(Numbers, AreTheSameBitsInEveryRun) {
  const Kind kind{.adam = true, .passes = 2, .microbatches = 2, .clip = 0.5};
  const TensorMap first = trained(2, kind).state;
  const TensorMap second = trained(2, kind).state;
  for (const auto& [name, tensor] : first) {
    EXPECT_TRUE(tensor.equal(second.at(name))) << name;
  }
}

} // namespace
} // namespace tessera::testing
