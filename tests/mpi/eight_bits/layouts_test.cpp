// Every layout updates alike: random rounding to the bit, blocks of averages where they are whole.
#include "tests/mpi/eight_bits/support.h"

namespace tessera::testing {
namespace {

constexpr int kUpdates = 3;

template <typename Net>
TensorMap updated(const std::pair<int, int>& layout, bool rounded, int seed = 3) {
  init(eight_bit_config(layout, rounded, seed));
  const Ended ended;
  HandFed<Net> run(rounded);
  for (int i = 0; i < kUpdates; ++i) {
    run.update(i);
  }
  return run.model.state_dict();
}

std::string text_of(const std::pair<int, int>& layout) {
  return str("pp ", layout.first, ", tp ", layout.second);
}

// Parameters that are cut in uneven parts, transposed and glued together on tensor-parallel ranks;
// all of them so small that their averages are f32.
TEST(EightBits, RandomRoundingIsThatOfOneProcess) {
  const TensorMap alone = updated_alone<Mixed>(true, kUpdates);
  const TensorMap other = updated_alone<Mixed>(true, kUpdates, /*seed=*/4);
  for (const auto& [name, tensor] : alone) {
    ASSERT_EQ(tensor.scalar_type(), at::kBFloat16);
    EXPECT_FALSE(tensor.equal(other.at(name))) << name;
  }
  for (const auto& layout : eight_bit_layouts()) {
    SCOPED_TRACE(text_of(layout));
    expect_same_bits(updated<Mixed>(layout, true), alone);
    expect_same_bits(updated<Mixed>(layout, true, 4), other);
  }
}

// Cut in parts, blocks have other borders: averages are within the error of a byte.
TEST(EightBits, AveragesOfWholeTensorsAreThoseOfOneProcess) {
  for (const bool rounded : {false, true}) {
    const TensorMap alone = updated_alone<Wide>(rounded, kUpdates);
    for (const auto& layout : eight_bit_layouts()) {
      SCOPED_TRACE(text_of(layout) + (rounded ? ", rounded" : ""));
      const TensorMap got = updated<Wide>(layout, rounded);
      if (layout.second == 1) {
        expect_same_bits(got, alone);
      } else {
        const double difference = apart(got, alone, start_of<Wide>(rounded));
        EXPECT_GT(difference, 0);
        EXPECT_LT(difference, 0.02);
      }
    }
  }
}

// Who keeps a parameter's state does not matter to it.
TEST(EightBits, StateThatIsSharedOutGivesTheSameBits) {
  TensorMap wanted;
  for (const bool shared : {false, true}) {
    Config config = eight_bit_config({1, 1}, true);
    config.shard_optimizer_state = shared;
    init(config);
    const Ended ended;
    torch::manual_seed(7);
    DistributedModel model{Mixed()};
    DistributedOptimizer optimizer(optim::AdamW8bit(model.parameters(), eight_bit_options(true)));
    auto train_step = word_step(model);
    for (int i = 0; i < kUpdates; ++i) {
      const Batch mine = mine_of(word_batch(i));
      optimizer.zero_grad();
      train_step(mine.x, mine.y);
      optimizer.clip_grad_norm(0.5);
      optimizer.step();
    }
    for (const auto& [name, parameter] : model.local_parameters()) {
      EXPECT_EQ(parameter.scalar_type(), at::kBFloat16);
      EXPECT_TRUE(optim::OptimizerAccess::updated_tensor(optimizer, parameter).is_same(parameter))
          << "no master";
    }
    if (shared) {
      expect_same_bits(model.state_dict(), wanted);
    } else {
      wanted = model.state_dict();
    }
  }
}

// Without stochastic_rounding bf16 parameters have f32 masters, as with every optimizer.
TEST(EightBits, WithoutRoundingThereAreMasters) {
  init(eight_bit_config({1, 1}, true));
  const Ended ended;
  DistributedModel model{Mixed()};
  DistributedOptimizer optimizer(optim::AdamW8bit(model.parameters(), eight_bit_options(false)));
  auto train_step = word_step(model);
  const Batch mine = mine_of(word_batch(0));
  train_step(mine.x, mine.y);
  optimizer.step();
  for (const auto& [name, parameter] : model.local_parameters()) {
    EXPECT_EQ(
        optim::OptimizerAccess::updated_tensor(optimizer, parameter).scalar_type(), at::kFloat);
  }
}

TEST(EightBits, RoundingOfF16IsRefused) {
  Config config = eight_bit_config({1, 1}, false);
  config.fp16 = true;
  init(config);
  const Ended ended;
  DistributedModel model{Mixed()};
  DistributedOptimizer optimizer(optim::AdamW8bit(model.parameters(), eight_bit_options(true)));
  auto train_step = word_step(model);
  const Batch mine = mine_of(word_batch(0));
  train_step(mine.x, mine.y);
  const std::string error = error_of<ConfigError>([&] { optimizer.step(); });
  EXPECT_NE(error.find("\"bf16\": true"), std::string::npos) << error;
}

} // namespace
} // namespace tessera::testing
