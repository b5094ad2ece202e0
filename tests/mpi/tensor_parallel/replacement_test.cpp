// Which modules are replaced, why others are not, and what calls of them do.
#include <ATen/CPUGeneratorImpl.h>

#include <gmock/gmock.h>

#include "tessera/model/model_core.h"
#include "tessera/nn/layers/embedding.h"
#include "tessera/train/model_access.h"

#include "tests/mpi/tensor_parallel/support.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

TEST(Replacement, ReasonsAreGiven) {
  init(tp_config(1, world_size()));
  const Ended ended;
  PartlyMarked net;
  DistributedModel model(net);
  EXPECT_THAT(
      nn::text_of(train::ModelAccess::core(model)->replacements()),
      UnorderedElementsAre(
          "words (Embedding): DistributedEmbedding",
          "in (Linear): DistributedLinear",
          "middle.0 (Linear): DistributedLinear",
          "out (Linear): DistributedLinear",
          "middle (Sequential): not distributed, has no distributed "
          "implementation",
          "middle.1 (Tanh): not distributed, has no distributed "
          "implementation",
          "first (Linear): not distributed, shares its parameter weight with "
          "second.weight"));
  // The original's memory is gone, its place is the distributed module's.
  EXPECT_EQ(net->in->weight.storage().data(), nullptr);
  EXPECT_LT(net->named_parameters()["in.weight"].numel(), kWidth * kInner);
  EXPECT_EQ(model.local_parameters().size(), net->named_parameters().size() - 1)
      << "the shared weight is listed once";
}

TEST(Replacement, OutermostWinsAndReasonsInside) {
  struct OuterImpl : torch::nn::Module {
    OuterImpl() {
      inner = register_module("inner", Gated(kWidth, kInner));
      wide = register_module("wide", nn::Sequential());
      for (int i = 0; i < 3; ++i) {
        wide->push_back(nn::Linear(kWidth, kWidth));
      }
      torch_held = register_module("torch_held", torch::nn::Linear(kWidth, kWidth));
    }
    torch::Tensor forward(const torch::Tensor& x) {
      return torch_held(wide(inner(x, 1.0).at(0)));
    }
    Gated inner{nullptr};
    nn::Sequential wide{nullptr};
    torch::nn::Linear torch_held{nullptr};
  };
  using Outer = Module<OuterImpl>;
  init(tp_config(1, world_size()));
  const Ended ended;
  Outer net;
  set_tensor_parallelism(net);
  set_tensor_parallelism(*net->wide->children().at(1), false);
  DistributedModel model(net);
  EXPECT_THAT(
      nn::text_of(train::ModelAccess::core(model)->replacements()),
      UnorderedElementsAre(
          "inner (Gated): DistributedGated",
          "wide.* (Linear, 2 modules): DistributedLinear",
          "the model (Outer): not distributed, has no distributed "
          "implementation",
          "wide (Sequential): not distributed, has no distributed "
          "implementation",
          "torch_held (Linear): not distributed, is held by a holder of "
          "libtorch, not of this library; write tessera::nn in place of torch::nn where it is "
          "made"));
}

TEST(Replacement, TheRootItself) {
  for (const bool prescaled : {false, true}) {
    torch::manual_seed(7);
    nn::Linear plain(kWidth, kWords);
    init(tp_config(1, world_size(), prescaled));
    const Ended ended;
    torch::manual_seed(7);
    nn::Linear net(kWidth, kWords);
    set_tensor_parallelism(net);
    DistributedModel model(net);
    ASSERT_EQ(train::ModelAccess::core(model)->replacements().replaced.size(), 1U);
    EXPECT_EQ(train::ModelAccess::core(model)->name(), "Linear");
    torch::manual_seed(11);
    const auto x = torch::randn({4 * world_size(), kWidth});
    const Batch mine = mine_of({x, x});
    EXPECT_LE(relative_error(model(mine.x), plain(mine.x)), 1e-5);
    expect_same_bits(model.state_dict(), plain_state(plain));
  }
}

TEST(Replacement, FreshRandomNumbersAreNotDrawn) {
  init(tp_config(1, world_size()));
  const Ended ended;
  torch::manual_seed(3);
  PartlyMarked net;
  const auto numbers = [] { return at::detail::getDefaultCPUGenerator().get_state(); };
  const auto before = numbers();
  DistributedModel model(net);
  EXPECT_TRUE(numbers().equal(before));
}

TEST(Replacement, OptionsOfScopes) {
  init(tp_config(1, world_size()));
  const Ended ended;
  {
    nn::Embedding table(kWords, kWidth);
    set_tensor_parallelism(
        table, true, {{"split", static_cast<std::int64_t>(nn::EmbeddingSplit::kVocabulary)}});
    DistributedModel model(table);
    EXPECT_EQ(model.local_parameters().at(0).second.size(1), kWidth);
  }
  nn::Embedding table(kWords, kWidth);
  set_tensor_parallelism(table, true, {{"splitt", 1}});
  EXPECT_THAT(
      error_of<ConfigError>([&] { DistributedModel model(table); }),
      HasSubstr("the option \"splitt\", which none of the modules"));
}

TEST(Replacement, NothingToMark) {
  struct LooseImpl : torch::nn::Module {};
  LooseImpl loose;
  EXPECT_THAT(
      error_of<ConfigError>([&] { nn::set_tensor_parallelism(loose); }),
      HasSubstr("declare them with TESSERA_MODULE"));
}

TEST(Replacement, AModuleThatIsToStayWholeIsThere) {
  Config config = tp_config(1, world_size());
  config.tensor_parallel_degree_of = {{"gate", 1}};
  init(config);
  const Ended ended;
  const std::string said = error_of<ConfigError>([] { const DistributedModel model{Mixed()}; });
  EXPECT_NE(
      said.find("tensor_parallel_degree_of, \"gate\": no module of this path"), std::string::npos)
      << said;
}

TEST(Replacement, ModelsThatDiffer) {
  init(tp_config(1, world_size()));
  const Ended ended;
  Mixed net;
  if (tp_rank() == 1) {
    set_tensor_parallelism(net->last, false);
  }
  EXPECT_THAT(
      error_of<ConfigError>([&] { DistributedModel model(net); }),
      HasSubstr("build the model alike on every rank"));
}

} // namespace
} // namespace tessera::testing
