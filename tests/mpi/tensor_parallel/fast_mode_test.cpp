// Fast mode beside tensor parallelism: what a rank receives may first meet a collective, which is
// no operator and so cannot tell that it reads.
#include "tests/mpi/tensor_parallel/support.h"

namespace tessera::testing {
namespace {

/// What DistributedUnit is in one process.
struct UnitImpl : torch::nn::Module {
  UnitImpl(std::int64_t width, std::int64_t inner)
      : up(register_parameter("up", torch::randn({inner, width}) * 0.3)),
        down(register_parameter("down", torch::randn({width, inner}) * 0.3)) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::matmul(torch::tanh(torch::matmul(x, up.t())), down.t());
  }
  torch::Tensor up, down;
};
TESSERA_MODULE(Unit);

/// Its first act on what it is given is a collective.
struct DistributedUnitImpl : nn::DistributedModule {
  DistributedUnitImpl(std::int64_t width, std::int64_t inner) {
    const auto create = nn::parameter_creation_scope(*this);
    up = create.initialize_with_output_partition("up", {inner, width});
    down = create.initialize_with_input_partition("down", {width, inner});
  }
  torch::Tensor forward(const torch::Tensor& x) {
    if (parallel().prescaled_batch) {
      const auto inner = torch::tanh(torch::matmul(nn::bwd_allreduce_for_tp(x), up.t()));
      return nn::fwd_allreduce_for_tp(torch::matmul(inner, down.t()));
    }
    const auto all = nn::fused_allgather_for_tp(x, 0);
    const auto inner = torch::tanh(torch::matmul(all, up.t()));
    return nn::reduce_scatter_for_tp(torch::matmul(inner, down.t()), 0);
  }
  torch::Tensor up, down;
};
TESSERA_MODULE(DistributedUnit);

TESSERA_TP_REGISTER(Unit, DistributedUnit).init([](const UnitImpl& unit) {
  return std::make_tuple(unit.up.size(1), unit.up.size(0));
});

/// Tokens [B, S] to logits [B, S, kWords]; every marked layer gets what another rank made, and the
/// parent reads none of it.
struct RelayImpl : torch::nn::Module {
  RelayImpl() {
    const tensor_parallelism marked;
    words = register_module("words", nn::Embedding(kWords, kWidth));
    first = register_module("first", Unit(kWidth, kInner));
    norm = register_module("norm", nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    second = register_module("second", Unit(kWidth, kInner));
    last = register_module("last", nn::Linear(kWidth, kWords));
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    return last(second(norm(first(words(ids)))));
  }
  nn::Embedding words{nullptr};
  Unit first{nullptr}, second{nullptr};
  nn::LayerNorm norm{nullptr};
  nn::Linear last{nullptr};
};
TESSERA_MODULE(Relay);

TEST(FastModeTensorParallel, ACollectiveIsTheFirstThatReads) {
  if (world_size() != 4) {
    GTEST_SKIP() << "needs two pipeline and two tensor-parallel ranks";
  }
  constexpr int kSteps = 6;
  const auto make = [] { return Relay(); };
  for (const bool prescaled : {false, true}) {
    const auto wanted = train_plain(make, word_batch, kSteps, prescaled ? 2 : 4, word_loss);
    for (const char* optimize : {"speed", "memory"}) {
      Config config = tp_config(2, 2, prescaled);
      config.auto_partition = false;
      config.default_partition = 0;
      config.partition = {{"words", 1}, {"first", 0}, {"norm", 1}, {"second", 1}, {"last", 0}};
      config.static_mode = true;
      config.static_mode_steps = 1;
      config.fast_mode = true;
      config.optimize = optimize;
      expect_equal(
          train_distributed(config, make, word_batch, kSteps, word_loss),
          wanted,
          str("prescaled ", prescaled, ", optimize ", optimize));
    }
  }
}

} // namespace
} // namespace tessera::testing
