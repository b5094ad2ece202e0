// Parts of a state: what tells that they are parts, parts that another partition takes, and states
// in the form in which models are published.
#include <gmock/gmock.h>

#include "tessera/model/decision.h"
#include "tessera/model/model_core.h"
#include "tessera/model/partition_notes.h"

#include "models/gpt.h"
#include "models/published_state.h"
#include "tests/mpi/runtime/support.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;
using Places = std::map<std::string, int>;

struct ChainImpl : torch::nn::Module {
  ChainImpl() {
    a = register_module("a", nn::Linear(kWidth, kWidth));
    b = register_module("b", nn::Linear(kWidth, kWidth));
    c = register_module("c", nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return c(b(a(x)));
  }
  nn::Linear a{nullptr}, b{nullptr}, c{nullptr};
};
TESSERA_MODULE(Chain);

/// A model that one step has partitioned.
struct Placed {
  explicit Placed(int seed) {
    torch::manual_seed(seed);
    model.emplace(Chain());
  }
  void partition_now() {
    auto forward = tessera::step([&](torch::Tensor x) { return (*model)(x); });
    const torch::NoGradGuard no_grad;
    forward(torch::ones({4, kWidth}));
  }
  std::optional<DistributedModel<Chain>> model;
};

void expect_state(const TensorMap& found, const TensorMap& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) {
    EXPECT_TRUE(found.at(name).equal(tensor)) << name;
  }
}

struct Saved {
  TensorMap part;
  TensorMap whole;
};

Saved saved_under(const Places& places, int seed) {
  init(placed(2, 2, places));
  const Ended ended;
  Placed chain(seed);
  chain.partition_now();
  Saved saved;
  for (const auto& [name, tensor] : chain.model->local_state_dict()) {
    saved.part.emplace(name, tensor.clone());
  }
  saved.whole = chain.model->state_dict();
  return saved;
}

TEST(PartialState, APartSaysThatItIsOne) {
  const Saved saved = saved_under({{"b", 1}}, 3);
  ASSERT_TRUE(saved.part.contains(kPartialMarker));
  EXPECT_TRUE(saved.part.at(kPartialMarker).item<bool>());
  EXPECT_FALSE(saved.whole.contains(kPartialMarker));
  EXPECT_EQ(saved.whole.size(), 6U);
  EXPECT_LT(saved.part.size(), 6U);
}

TEST(PartialState, PartsAreJoinedForAnotherPartition) {
  const Saved saved = saved_under({{"b", 1}}, 3);
  for (const bool before : {true, false}) {
    init(placed(2, 2, {{"a", 1}, {"c", 1}}));
    const Ended ended;
    Placed chain(4);
    if (!before) {
      chain.partition_now();
    }
    chain.model->load_state_dict(saved.part);
    chain.partition_now();
    expect_state(chain.model->state_dict(), saved.whole);
  }
}

TEST(PartialState, SamePartitionLoadTakesEachPartAsItIs) {
  const Saved saved = saved_under({{"b", 1}}, 3);
  {
    init(placed(2, 2, {{"b", 1}}));
    const Ended ended;
    Placed chain(4);
    chain.partition_now();
    const auto bytes = [] { return context().group(Group::kPP).traffic().bytes.load(); };
    const auto start = bytes();
    chain.model->load_state_dict(saved.part, true, /*same_partition_load=*/true);
    EXPECT_EQ(bytes(), start); // no part travelled
    expect_state(chain.model->state_dict(), saved.whole);
  }
  init(placed(2, 2, {{"a", 1}, {"c", 1}}));
  const Ended ended;
  Placed chain(4);
  chain.partition_now();
  const TensorMap before = chain.model->state_dict();
  const std::string error = error_of<CheckpointError>(
      [&] { chain.model->load_state_dict(saved.part, true, /*same_partition_load=*/true); });
  EXPECT_THAT(error, HasSubstr("'a.weight' is missing"));
  EXPECT_THAT(error, HasSubstr("'b.weight' is missing"));
  expect_state(chain.model->state_dict(), before);
}

TEST(PartialState, PartsAndWholeStatesDoNotMix) {
  const Saved saved = saved_under({{"b", 1}}, 3);
  init(placed(2, 2, {{"b", 1}}));
  const Ended ended;
  Placed chain(4);
  chain.partition_now();
  const TensorMap given = rank() == 0 ? saved.part : saved.whole;
  EXPECT_THAT(
      error_of<CheckpointError>([&] { chain.model->load_state_dict(given); }),
      HasSubstr("give one kind on every rank"));
}

TEST(Partition, ItsLineNamesTheModulesOfEachRank) {
  init(placed(2, 2, {{"b", 1}, {"c", 1}}));
  const Ended ended;
  Placed chain(3);
  chain.partition_now();
  if (const auto decision = chain.model->decision(); rank() == 0) {
    EXPECT_EQ(
        model::places_of_modules(decision->graph, decision->result, 2),
        "rank 0: the model itself; rank 1: b to c");
  }
}

TEST(ForwardOnly, KeepsNoGraphOnAnyRankAndRefusesABackward) {
  init(placed(2, 2, {{"b", 1}}));
  const Ended ended;
  Placed chain(3);
  chain.partition_now();
  for (const bool only : {true, false}) {
    bool requires_grad = false;
    StepOptions options;
    options.forward_only = only;
    options.detach_outputs = false;
    auto forward = tessera::step(
        [&](torch::Tensor x) {
          const torch::Tensor y = (*chain.model)(x);
          requires_grad = y.requires_grad();
          return y;
        },
        options);
    forward(torch::ones({4, kWidth}));
    // The step function runs on pp rank 0 alone; the last module's owner is another rank.
    EXPECT_EQ(requires_grad, pp_rank() == 0 && !only);
  }
  auto wrong = tessera::step(
      [&](torch::Tensor x) {
        const torch::Tensor loss = (*chain.model)(x).sum();
        chain.model->backward(loss);
        return loss;
      },
      {.forward_only = true});
  EXPECT_THAT(
      error_of<UserError>([&] {
        wrong(torch::ones({4, kWidth}));
      }),
      HasSubstr("runs forwards only"));
}

models::GptOptions small_gpt() {
  models::GptOptions options;
  options.vocab_size = 20;
  options.n_positions = 8;
  options.n_embd = 8;
  options.n_layer = 2;
  options.n_head = 2;
  options.dropout = 0;
  return options;
}

/// As a GPT-2's file has it: no root, the tied weight once, and a causal mask.
TensorMap published(const models::Gpt& model) {
  TensorMap state;
  for (const auto& item : model->named_parameters()) {
    const std::string root = "transformer.";
    if (item.key().starts_with(root)) {
      state[item.key().substr(root.size())] = item.value().detach().clone();
    }
  }
  state["h.0.attn.bias"] = torch::ones({1, 1, 8, 8});
  return state;
}

TEST(PartialState, APublishedStateIsTranslated) {
  models::take_published_states();
  torch::manual_seed(5);
  models::Gpt plain(small_gpt());
  const auto ids = torch::arange(16).view({4, 4}).remainder(20);
  const auto wanted = plain->forward(ids).detach();
  const TensorMap state = published(plain);
  ASSERT_TRUE(state.contains("wte.weight"));
  for (const bool tensor_parallel : {false, true}) {
    Config config = config_of(tensor_parallel ? 1 : 2, 2);
    config.tensor_parallel_degree = tensor_parallel ? 2 : 1;
    config.ddp = config.ddp || tensor_parallel;
    config.prescaled_batch = tensor_parallel;
    init(config);
    const Ended ended;
    torch::manual_seed(6);
    std::optional<models::Gpt> net;
    {
      const tensor_parallelism marked(tensor_parallel);
      net.emplace(small_gpt());
    }
    DistributedModel model{*net};
    model.load_state_dict(state);
    auto forward = tessera::step([&](torch::Tensor x) { return model(x); });
    const torch::NoGradGuard no_grad;
    EXPECT_LE(relative_error(forward(ids).concat(), wanted), 1e-5);
    // What one rank lacks is every rank's error.
    TensorMap torn = state;
    if (rank() == 1) {
      torn.erase("wte.weight");
    }
    EXPECT_THAT(
        error_of<CheckpointError>([&] { model.load_state_dict(torn); }),
        HasSubstr("it lacks transformer.wte.weight"));
    // Said to be in the model's own form, it is not.
    TensorMap untranslated = state;
    untranslated[kPartialMarker] = torch::scalar_tensor(false, torch::kBool);
    EXPECT_THAT(
        error_of<CheckpointError>([&] { model.load_state_dict(untranslated); }),
        HasSubstr("'transformer.wte.weight' is missing"));
  }
}

} // namespace
} // namespace tessera::testing
