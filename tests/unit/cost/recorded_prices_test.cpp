// What drawn strategies cost, beside a recording: no price changes unseen. Whether prices are right
// other tests say.
#include "tessera/base/error.h"
#include "tessera/cost/staged_cost.h"
#include "tessera/cost/strategy_cost.h"

#include "tests/support/recording.h"
#include "tests/unit/cost/drawn_cases.h"

namespace tessera::cost {
namespace {

std::string recorded(const StrategyCost& cost) {
  std::string text;
  const auto add = [&](const char* name, double number) {
    text += std::string(" ") + name + " " + tessera::recorded(number);
  };
  add("seconds", cost.seconds);
  add("compute", cost.compute_seconds);
  add("tensor", cost.tensor_seconds);
  add("waiting", cost.waiting_seconds);
  add("bubble", cost.bubble_seconds);
  add("cores", cost.shared_cores_seconds);
  add("transfer", cost.transfer_seconds);
  add("stall", cost.stall_seconds);
  add("gradient", cost.gradient_seconds);
  add("optimizer", cost.optimizer_seconds);
  add("high", cost.seconds_range.high);
  add("fullest", cost.fullest_stage);
  add("fits", cost.fits() ? 1 : 0);
  // Each figure of the stages, added up as often as their numbers from 1 say.
  std::vector<double> sums(15, 0);
  for (std::size_t k = 0; k < cost.stages.size(); ++k) {
    const StageCost& stage = cost.stages[k];
    const double numbers[] = {
        stage.compute_seconds,
        stage.tensor_seconds,
        stage.waiting_seconds,
        stage.send_seconds,
        stage.optimizer_seconds,
        stage.parameters,
        static_cast<double>(stage.in_flight),
        stage.memory.weights,
        stage.memory.gradients,
        stage.memory.optimizer,
        stage.memory.activations,
        stage.memory.working,
        stage.memory.logits,
        stage.needed_bytes,
        stage.host_bytes};
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i] += static_cast<double>(k + 1) * numbers[i];
    }
  }
  text += " stages";
  for (const double sum : sums) {
    text += " " + tessera::recorded(sum);
  }
  return text;
}

TEST(RecordedPrices, OfUniformStrategies) {
  std::vector<std::string> lines;
  int refused = 0;
  for (unsigned seed = 0; seed < 360; ++seed) {
    Draw draw(seed);
    const DescribedModel model = drawn_model(draw, 6);
    const Cluster cluster = drawn_cluster(draw, 4);
    const Strategy strategy = drawn_strategy(draw, model, cluster);
    if (strategy.device_of_rank.empty()) {
      continue;
    }
    const std::string which = std::to_string(seed) + " " + text_of(strategy);
    try {
      lines.push_back(
          which +
          recorded(price(model, cluster, strategy, runtime_constants(cluster, model.precision))));
    } catch (const ConfigError&) {
      lines.push_back(which + " refused");
      ++refused;
    }
  }
  EXPECT_GT(lines.size(), 300u);
  EXPECT_LT(refused, 160);
  expect_as_recorded(RECORDED_PRICES "/recorded_uniform.txt", lines);
}

TEST(RecordedPrices, OfStagesOfTheirOwnWidths) {
  std::vector<std::string> lines;
  for (unsigned seed = 0; seed < 160; ++seed) {
    Draw draw(1'000'000 + seed);
    DescribedModel model = drawn_model(draw, 5);
    model.returns_home = false;
    const Cluster cluster = drawn_cluster(draw, 3);
    const StagedStrategy strategy = drawn_staged(draw, model, cluster);
    std::string line = std::to_string(seed) + " m " + std::to_string(strategy.microbatches);
    try {
      validate(
          strategy,
          cluster.device_count(),
          static_cast<int>(model.layers.size()),
          model.global_batch_size);
      const Constants constants = runtime_constants(cluster, model.precision);
      StagedTables tables(model, cluster, constants);
      line += recorded(price(strategy, tables));
    } catch (const ConfigError&) {
      line += " refused";
    }
    lines.push_back(line);
  }
  expect_as_recorded(RECORDED_PRICES "/recorded_staged.txt", lines);
}

} // namespace
} // namespace tessera::cost
