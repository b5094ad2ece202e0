// What a plan says of a candidate, in text, JSON and a calibration file: every figure of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/planner/calibration.h"
#include "tessera/planner/candidate_text.h"
#include "tessera/planner/candidates_json.h"
#include "tessera/planner/trial_factors.h"

#include "tests/unit/cost/small_cases.h"

namespace tessera::planner {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

// Two ranks of two stages each over five layers, two replicas, on nodes 0 and 1; every part of the
// price has another figure.
Candidate candidate_in_turns() {
  Candidate one;
  one.strategy = cost::small_strategy(2, 2, 1, 2, 4);
  one.strategy.stages_per_rank = 2;
  one.strategy.active_microbatches = 3;
  one.strategy.boundaries = {0, 1, 3, 4, 5};
  one.strategy.activation_checkpointing = false;
  one.node_order = {0, 1};
  one.microbatches = 4;
  one.cost.seconds = 2.5;
  one.cost.seconds_range = {1.25, 5};
  one.cost.compute_seconds = 0.125;
  one.cost.tensor_seconds = 0.25;
  one.cost.bubble_seconds = 0.375;
  one.cost.transfer_seconds = 0.5;
  one.cost.gradient_seconds = 0.625;
  one.cost.optimizer_seconds = 0.75;
  one.cost.fullest_stage = 1;
  for (int rank = 0; rank < 2; ++rank) {
    cost::StageCost stage;
    const double base = 10 * (rank + 1);
    stage.memory.weights = (base + 1) * kGib;
    stage.memory.gradients = (base + 2) * kGib;
    stage.memory.optimizer = (base + 3) * kGib;
    stage.memory.activations = (base + 4) * kGib;
    stage.memory.working = (base + 5) * kGib;
    stage.memory.logits = (base + 6) * kGib;
    stage.needed_bytes = (base + 7.5) * kGib;
    stage.device_bytes = (base + 8.5) * kGib;
    stage.host_bytes = base;
    one.cost.stages.push_back(stage);
  }
  return one;
}

cost::DescribedModel five_layers() {
  auto model = cost::small_model(5);
  model.activation_checkpointing = false;
  return model;
}

TEST(WrittenPlan, ExplainsEveryStageInGib) {
  const auto cluster = cost::small_cluster(2, 0);
  Candidate one = candidate_in_turns();
  const auto text = [&] { return explain(one, five_layers(), cluster); };
  // Devices 0 and 1 of node 0 run rank 0's layers 0 and 3.
  EXPECT_THAT(
      text(),
      HasSubstr(
          "\n      0  0,3          11.00      12.00      13.00  14.0    15.00   16.00   17.5  "
          "18.5 0\n"));
  EXPECT_THAT(
      text(),
      HasSubstr(
          "\n      1  1..2,4       21.00      22.00      23.00  24.0    25.00   26.00   27.5  "
          "28.5 1\n"));
  EXPECT_THAT(
      text(), HasSubstr("2.5000 s  an iteration by estimate (nine of ten measured runs: 1.2500 "));
  EXPECT_THAT(text(), HasSubstr("0.1250 s  computation of the slowest stage, 4 microbatches\n"));
  EXPECT_THAT(text(), HasSubstr("0.2500 s  its tensor-parallel traffic\n"));
  EXPECT_THAT(text(), HasSubstr("0.3750 s  bubble\n"));
  EXPECT_THAT(text(), HasSubstr("0.5000 s  between stages\n"));
  EXPECT_THAT(text(), HasSubstr("0.6250 s  gradients\n"));
  EXPECT_THAT(text(), HasSubstr("0.7500 s  optimizer\n"));
  // What is not there is not said.
  for (const char* absent : {"waiting", "stalls", "calibrated", "event by event"}) {
    EXPECT_THAT(text(), Not(HasSubstr(absent)));
  }
  one.cost.waiting_seconds = 0.03;
  one.cost.shared_cores_seconds = 0.04;
  one.cost.stall_seconds = 0.05;
  one.calibrated_seconds = 0.06;
  one.simulated_seconds = 0.07;
  EXPECT_THAT(text(), HasSubstr("0.0300 s  waiting for its hosts"));
  EXPECT_THAT(text(), HasSubstr("0.0400 s  waiting for cores"));
  EXPECT_THAT(text(), HasSubstr("0.0500 s  stalls of the network"));
  EXPECT_THAT(text(), HasSubstr("0.0600 s  an iteration, calibrated by trials"));
  EXPECT_THAT(text(), HasSubstr("0.0700 s  an iteration, executed event by event"));
  // Ranks of a stage on several nodes.
  std::swap(one.strategy.device_of_rank[0], one.strategy.device_of_rank[3]);
  EXPECT_THAT(text(), HasSubstr("18.5 0,1\n"));
}

TEST(WrittenPlan, AStageOfOneLayerIsARangeWithoutTurns) {
  Candidate one = candidate_in_turns();
  one.strategy = cost::small_strategy(2, 2, 1, 2, 5);
  one.strategy.boundaries = {0, 1, 5};
  const std::string text = explain(one, five_layers(), cost::small_cluster(2, 0));
  EXPECT_THAT(text, HasSubstr("\n      0  0..0 "));
  EXPECT_THAT(text, HasSubstr("\n      1  1..4 "));
}

TEST(WrittenPlan, TheHeadlineNamesWhatIsSaved) {
  cost::Strategy strategy = candidate_in_turns().strategy;
  EXPECT_EQ(
      headline(strategy),
      "pp 2  dp 2  tp 1  microbatch size 2  placement PDT  3 in flight  2 stages a rank in turns");
  strategy.stages_per_rank = 1;
  strategy.placement = "";
  EXPECT_EQ(headline(strategy), "pp 2  dp 2  tp 1  microbatch size 2  placement own  3 in flight");
  strategy.active_microbatches = 4; // pp + 2, as nothing said
  strategy.fast_mode = true;
  EXPECT_EQ(headline(strategy), "pp 2  dp 2  tp 1  microbatch size 2  placement own  fast mode");
  strategy.fast_mode = false;
  strategy.schedule = cost::Schedule::kSimple;
  strategy.shard_optimizer_state = true;
  EXPECT_THAT(headline(strategy), HasSubstr("own  sharded optimizer state  simple schedule"));
  strategy.pp = 1; // no schedule
  strategy.shard_parameters = true;
  EXPECT_THAT(headline(strategy), testing::EndsWith("own  sharded parameters"));
  strategy.tp = 2;
  EXPECT_EQ(tensor_text(strategy), "tp 2");
  strategy.distribution = cost::Distribution::kMesh;
  EXPECT_EQ(tensor_text(strategy), "tp 2 2d");
  strategy.same_samples = true;
  EXPECT_EQ(tensor_text(strategy), "tp 2 2d, prescaled batch");
  strategy.tp = 1;
  EXPECT_EQ(tensor_text(strategy), "tp 1");
}

TEST(WrittenPlan, TheSummaryCountsFromOneAndSaysTheGap) {
  SearchResult result;
  result.best = {candidate_in_turns(), candidate_in_turns()};
  for (Candidate& one : result.best) {
    one.strategy = cost::small_strategy(2, 2, 1, 2, 5);
    one.strategy.activation_checkpointing = false;
    one.strategy.active_microbatches = 4;
  }
  result.best[1].cost.seconds = 3;
  result.best[1].leaves_out = true;
  result.best[1].node_order = {3, 5};
  const auto text = [&] { return summary(result, five_layers()); };
  EXPECT_THAT(text(), HasSubstr("\n     1    2.5000       27.50  pp 2  dp 2"));
  EXPECT_THAT(text(), HasSubstr("\n     2    3.0000       27.50  pp 2  dp 2"));
  EXPECT_THAT(text(), HasSubstr("placement PDT  on nodes 3,5\n"));
  EXPECT_THAT(text(), Not(HasSubstr("lower bound")));
  result.lower_bound = 2;
  EXPECT_DOUBLE_EQ(result.gap(), 0.25);
  EXPECT_THAT(
      text(),
      testing::EndsWith("\n  lower bound 2.0000 s by estimate, whatever the placement and the "
                        "cuts: the first, 2.5000 s by estimate, is 25.0 % above it at most\n"));
  result.lower_bound = 2.5;
  EXPECT_THAT(text(), testing::EndsWith("the first is the optimum\n"));
}

TEST(WrittenPlan, JsonHoldsEveryFigure) {
  SearchResult result;
  Candidate one = candidate_in_turns();
  one.cost.shared_cores_seconds = 0.875;
  result.best = {one};
  result.considered = 17;
  auto cluster = cost::small_cluster(2, 0);
  const auto parsed = [&] { return json::parse(to_json(result, five_layers(), cluster)); };
  json all = parsed();
  EXPECT_EQ(all["considered"], 17);
  EXPECT_EQ(all["interrupted"], false);
  EXPECT_EQ(all["prefers_simplest"], false);
  EXPECT_TRUE(all["lower_bound_seconds"].is_null());
  EXPECT_TRUE(all["front"].empty());
  ASSERT_EQ(all["strategies"].size(), 1u);
  const json strategy = all["strategies"][0];
  EXPECT_EQ(strategy["seconds"], 2.5);
  EXPECT_EQ(strategy["estimated_seconds"], 2.5);
  EXPECT_EQ(strategy["estimated_range"], json({1.25, 5}));
  EXPECT_EQ(
      strategy["estimated_parts"],
      json(
          {{"compute", 0.125},
           {"tensor", 0.25},
           {"waiting", 0},
           {"bubble", 0.375},
           {"shared_cores", 0.875},
           {"transfer", 0.5},
           {"gradient", 0.625},
           {"optimizer", 0.75},
           {"stall", 0}}));
  for (const char* unknown : {"price", "joules", "simulated_seconds"}) {
    EXPECT_TRUE(strategy[unknown].is_null()) << unknown;
  }
  EXPECT_EQ(strategy["needed_bytes"], 27.5 * kGib);
  EXPECT_EQ(strategy["microbatches"], 4);
  EXPECT_EQ(strategy["devices"], 4);
  EXPECT_EQ(strategy["device_of_rank"], json({0, 1, 2, 3}));
  EXPECT_EQ(strategy["node_order"], json({0, 1}));
  EXPECT_EQ(strategy["recomputation"], "none");
  ASSERT_EQ(strategy["stages"].size(), 2u);
  const json& first = strategy["stages"][0];
  EXPECT_EQ(first["first_layer"], 0);
  EXPECT_EQ(first["layers"], 2);
  EXPECT_EQ(first["runs_of_layers"], json({{0, 1}, {3, 1}}));
  const json& second = strategy["stages"][1];
  EXPECT_EQ(second["first_layer"], 1);
  EXPECT_EQ(second["layers"], 3);
  EXPECT_EQ(second["runs_of_layers"], json({{1, 2}, {4, 1}}));
  EXPECT_EQ(second["needed_bytes"], 27.5 * kGib);
  EXPECT_EQ(second["device_bytes"], 28.5 * kGib);
  EXPECT_EQ(second["host_bytes"], 20);
  EXPECT_EQ(
      second["memory_bytes"],
      json(
          {{"weights", 21 * kGib},
           {"gradients", 22 * kGib},
           {"optimizer", 23 * kGib},
           {"activations", 24 * kGib},
           {"working", 25 * kGib},
           {"logits", 26 * kGib}}));
  // Known prices and a front.
  result.front = {one, one};
  result.lower_bound = 2;
  cluster.kinds[0].price_per_hour = 36; // a hundredth a second, on four devices
  all = parsed();
  EXPECT_EQ(all["lower_bound_seconds"], 2);
  EXPECT_EQ(all["front"].size(), 2u);
  EXPECT_NEAR(all["strategies"][0]["price"].get<double>(), 0.1, 1e-12);
}

TEST(WrittenPlan, ACalibrationFileHoldsEveryTrial) {
  Candidate one = candidate_in_turns();
  one.strategy.tp = 2;
  Candidate mesh = one;
  mesh.strategy.distribution = cost::Distribution::kMesh;
  mesh.strategy.same_samples = true;
  Trial ran;
  ran.predicted_seconds = 4;
  ran.measured_seconds = 5;
  Trial failed;
  failed.predicted_seconds = 6;
  failed.failure = "out of memory";
  auto cluster = cost::small_cluster(1, 0);
  const json all = json::parse(calibration_json(
      {one, mesh},
      {ran, failed},
      {.compute = 2, .exchange = 3, .waiting = 4},
      five_layers(),
      cluster));
  EXPECT_EQ(all["cluster"], "small");
  EXPECT_EQ(all["model"], "small");
  EXPECT_EQ(all["global_batch_size"], 16);
  ASSERT_EQ(all["trials"].size(), 2u);
  const json& first = all["trials"][0];
  EXPECT_EQ(first["pp"], 2);
  EXPECT_EQ(first["dp"], 2);
  EXPECT_EQ(first["tp"], 2);
  EXPECT_EQ(first["mbs"], 2);
  EXPECT_FALSE(first.contains("tensor_kind"));
  EXPECT_EQ(first["layer_boundaries"], json({0, 1, 3, 4, 5}));
  EXPECT_EQ(first["stages_per_rank"], 2);
  EXPECT_EQ(first["schedule"], "interleaved");
  EXPECT_EQ(first["predicted_s"], 4);
  EXPECT_EQ(first["estimated_s"], 2.5);
  EXPECT_EQ(first["memory_gib"], 27.5);
  EXPECT_EQ(first["measured_s"], 5);
  EXPECT_FALSE(first.contains("failure"));
  const json& second = all["trials"][1];
  EXPECT_EQ(second["tensor_kind"], "2d");
  EXPECT_EQ(second["prescaled_batch"], true);
  EXPECT_EQ(second["failure"], "out of memory");
  EXPECT_FALSE(second.contains("measured_s"));
  EXPECT_FALSE(all.contains("spearman"));
  EXPECT_EQ(all["measured_by_predicted"], 2); // five for two and a half
  EXPECT_EQ(all["factors"], json({{"compute", 2}, {"exchange", 3}, {"waiting", 4}}));
  // Without a trial that ran nothing is said of the machine.
  const json none = json::parse(calibration_json({one}, {failed}, {}, five_layers(), cluster));
  EXPECT_FALSE(none.contains("measured_by_predicted"));
  EXPECT_FALSE(none.contains("factors"));
}

TEST(TrialFactors, EveryPartBelongsToComputeExchangeOrWaiting) {
  Candidate one;
  one.cost.stages.resize(1);
  one.cost.compute_seconds = 4;
  one.cost.tensor_seconds = 2;
  one.cost.waiting_seconds = 2;
  one.cost.bubble_seconds = 4; // half as much again of each
  one.cost.optimizer_seconds = 1;
  one.cost.shared_cores_seconds = 2;
  one.cost.transfer_seconds = 3;
  one.cost.stall_seconds = 5;
  one.cost.gradient_seconds = 7;
  one.cost.seconds = 30;
  EXPECT_DOUBLE_EQ(calibrated(one, {.compute = 1, .exchange = 0, .waiting = 0}), 6 + 1 + 2);
  EXPECT_DOUBLE_EQ(calibrated(one, {.compute = 0, .exchange = 1, .waiting = 0}), 3 + 3 + 5 + 7);
  EXPECT_DOUBLE_EQ(calibrated(one, {.compute = 0, .exchange = 0, .waiting = 1}), 3);
  // A bubble of nothing that is known is computation.
  Candidate bubble;
  bubble.cost.stages.resize(1);
  bubble.cost.bubble_seconds = bubble.cost.seconds = 3;
  EXPECT_DOUBLE_EQ(calibrated(bubble, {.compute = 2, .exchange = 5, .waiting = 7}), 6);
  // So are seconds of which no part is known.
  Candidate seconds;
  seconds.simulated_seconds = 3;
  EXPECT_DOUBLE_EQ(calibrated(seconds, {.compute = 2, .exchange = 5, .waiting = 7}), 6);
}

TEST(TrialFactors, StayWithinFourTimesTheMedian) {
  const auto of = [](double compute, double exchange) {
    Candidate one;
    one.cost.stages.resize(1);
    one.cost.compute_seconds = compute;
    one.cost.gradient_seconds = exchange;
    one.cost.seconds = compute + exchange;
    return one;
  };
  const auto took = [](double seconds) {
    Trial trial;
    trial.measured_seconds = seconds;
    return trial;
  };
  // Alone the two trials that exchange would have a factor of 4.8.
  const TrialFactors factors = fit_factors(
      {of(1, 0), of(1, 0), of(1, 0), of(0, 1), of(0, 1)},
      {took(1), took(1), took(1), took(10), took(10)});
  EXPECT_NEAR(factors.compute, 1, 1e-6);
  EXPECT_DOUBLE_EQ(factors.exchange, 4);
  EXPECT_NEAR(factors.waiting, 1, 1e-6); // no trial says anything of it
  // By hand for one part: the minimum of (f / 2 - 1)^2 + (f - 1)^2 / 36.
  const TrialFactors slow =
      fit_factors({of(1, 0), of(1, 0), of(0, 1)}, {took(1), took(1), took(2)});
  const double share = 0.5;
  EXPECT_NEAR(slow.exchange, (share + 1.0 / 36) / (share * share + 1.0 / 36), 1e-9);
  EXPECT_EQ(text_of(slow).substr(0, 17), "compute x 1.000, ");
}

} // namespace
} // namespace tessera::planner
