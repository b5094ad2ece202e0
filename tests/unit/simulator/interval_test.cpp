// What varies: jitter of computation, slow devices, failures.

#include "tessera/simulator/interval.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/error.h"

#include "tests/unit/simulator/bare.h"

namespace tessera::simulator {
namespace {

SimulationOptions without_events() {
  SimulationOptions options = bare();
  options.keep_events = false;
  return options;
}

cost::Cluster one_device() {
  cost::Cluster cluster = small_cluster(1, 0);
  cluster.nodes[0].count = 1;
  return cluster;
}

TEST(SlowDevices, HoldUpAllThatWaitForThem) {
  const auto model = small_model(4);
  const auto cluster = small_cluster(1, 0);
  const auto strategy = small_strategy(1, 2, 1, 1, 4);
  SimulationOptions options = without_events();
  options.constants.gradient_wire_bytes = 1e-9;
  const double even = simulate(model, cluster, strategy, options).iteration_seconds;
  options.slow_devices = {{1, 1.5}};
  EXPECT_NEAR(simulate(model, cluster, strategy, options).iteration_seconds, 1.5 * even, 1e-9);
  // The slow device has half of a pipeline's stages: of 16 microbatches and one more it delays all.
  const auto pipeline = small_strategy(2, 1, 1, 1, 4);
  auto still = model;
  for (auto& layer : still.layers) {
    layer.output_elements_per_sample = 0;
  }
  const double stage = 2 * 3e-3; // two layers, forward and backward
  EXPECT_NEAR(
      simulate(still, cluster, pipeline, options).iteration_seconds,
      stage + 16 * 1.5 * stage,
      1e-9);
}

TEST(Jitter, OfNothingChangesNothing) {
  const auto model = small_model(4, 0.3);
  const auto strategy = small_strategy(2, 1, 1, 1, 4);
  const auto cluster = small_cluster(1, 0);
  const double plain = simulate(model, cluster, strategy, without_events()).iteration_seconds;
  const TimeInterval interval = simulate_interval(model, cluster, strategy, without_events(), 20);
  EXPECT_EQ(interval.low, plain);
  EXPECT_EQ(interval.median, plain);
  EXPECT_EQ(interval.high, plain);
}

// One device runs 2 x 16 tasks one after another: their sum has a known mean and deviation.
TEST(Jitter, OfOneDeviceIsASumOfIndependentTasks) {
  auto model = small_model(1);
  const auto strategy = small_strategy(1, 1, 1, 1, 1);
  SimulationOptions options = without_events();
  const double plain = simulate(model, one_device(), strategy, options).iteration_seconds;
  options.jitter = 0.2;
  double mean = 0;
  double square = 0;
  constexpr int kDraws = 2000;
  for (int i = 0; i < kDraws; ++i) {
    options.seed = static_cast<std::uint64_t>(i);
    const double seconds = simulate(model, one_device(), strategy, options).iteration_seconds;
    mean += seconds / kDraws;
    square += seconds * seconds / kDraws;
  }
  // Forwards take a millisecond and backwards two; factors have mean 1.
  const double variance = (std::exp(0.2 * 0.2) - 1) * 16 * (1e-6 + 4e-6);
  EXPECT_NEAR(mean, plain, 4 * std::sqrt(variance / kDraws));
  EXPECT_NEAR(square - mean * mean, variance, 0.15 * variance);
}

TEST(Jitter, MakesGroupsWaitForTheSlowestOfThem) {
  const auto model = small_model(4);
  SimulationOptions options = without_events();
  options.jitter = 0.1;
  const auto median = [&](int nodes) {
    auto cluster = small_cluster(nodes, 0);
    auto many = model;
    many.global_batch_size = 2 * nodes;
    return simulate_interval(many, cluster, small_strategy(1, 2 * nodes, 1, 1, 4), options, 41)
        .median;
  };
  EXPECT_GT(median(8), 1.03 * median(1));
  const TimeInterval wide =
      simulate_interval(model, small_cluster(1, 0), small_strategy(1, 2, 1, 1, 4), options, 41);
  EXPECT_LT(wide.low, wide.median);
  EXPECT_LT(wide.median, wide.high);
  // The same seed gives the same draws.
  const TimeInterval again =
      simulate_interval(model, small_cluster(1, 0), small_strategy(1, 2, 1, 1, 4), options, 41);
  EXPECT_EQ(wide.high, again.high);
}

TEST(Jitter, AndSlowDevicesAreChecked) {
  const auto model = small_model(1);
  const auto strategy = small_strategy(1, 1, 1, 1, 1);
  SimulationOptions options = without_events();
  options.jitter = -0.1;
  EXPECT_THROW(simulate(model, one_device(), strategy, options), ConfigError);
  options.jitter = 0;
  options.slow_devices = {{1, 2.0}};
  EXPECT_THROW(simulate(model, one_device(), strategy, options), ConfigError);
  options.slow_devices = {{0, 0.0}};
  EXPECT_THROW(simulate(model, one_device(), strategy, options), ConfigError);
  EXPECT_THROW(simulate_interval(model, one_device(), strategy, without_events(), 0), ConfigError);
  EXPECT_THROW(
      simulate_interval(model, one_device(), strategy, without_events(), 3, 1.5), ConfigError);
}

// The quantiles of five draws, which are those of seeds that follow each other.
TEST(Jitter, AnIntervalHoldsAShareOfTheDraws) {
  const auto model = small_model(2);
  const auto strategy = small_strategy(1, 1, 1, 1, 2);
  SimulationOptions options = without_events();
  options.jitter = 0.3;
  std::vector<double> draws;
  for (options.seed = 7; options.seed < 12; ++options.seed) {
    draws.push_back(simulate(model, one_device(), strategy, options).iteration_seconds);
  }
  std::sort(draws.begin(), draws.end());
  options.seed = 7;
  const auto interval = [&](double coverage) {
    return simulate_interval(model, one_device(), strategy, options, 5, coverage);
  };
  EXPECT_EQ(interval(1).low, draws[0]);
  EXPECT_EQ(interval(1).high, draws[4]);
  EXPECT_EQ(interval(0.5).low, draws[1]);
  EXPECT_EQ(interval(0.5).median, draws[2]);
  EXPECT_EQ(interval(0.5).high, draws[3]);
  EXPECT_EQ(interval(0).low, draws[2]);
  // A tenth of the way from the first to the last is four tenths of that to the second.
  EXPECT_NEAR(interval(0.8).low, 0.6 * draws[0] + 0.4 * draws[1], 1e-12);
  EXPECT_NEAR(interval(0.8).high, 0.6 * draws[4] + 0.4 * draws[3], 1e-12);
}

// Plays a job with failures at random times.
double played_seconds(double step, int devices, const Failures& failures, int steps) {
  std::mt19937_64 random(3);
  std::exponential_distribution<double> next(devices / failures.device_mean_time);
  double now = 0;
  double failure = next(random);
  const int every = static_cast<int>(failures.steps_between_checkpoints);
  for (int done = 0; done < steps; done += every) {
    const double segment = every * step + failures.checkpoint_seconds;
    while (now + segment > failure) {
      now = failure;
      failure = now + next(random);
      while (now + failures.restart_seconds > failure) {
        now = failure;
        failure = now + next(random);
      }
      now += failures.restart_seconds;
    }
    now += segment;
  }
  return now / steps;
}

TEST(Failures, ExpectedTimeIsThatOfAPlayedJob) {
  const Failures failures = {
      .device_mean_time = 3e5,
      .checkpoint_seconds = 20,
      .restart_seconds = 300,
      .steps_between_checkpoints = 40};
  for (const int devices : {10, 100, 400}) {
    const double expected = seconds_with_failures(5, devices, failures);
    EXPECT_NEAR(played_seconds(5, devices, failures, 2'000'000) / expected, 1, 0.02) << devices;
  }
}

TEST(Failures, TheBestIntervalIsNearYoungsFormula) {
  const Failures failures = {.device_mean_time = 1e7, .checkpoint_seconds = 10};
  const double steps = best_checkpoint_interval(2, 100, failures);
  // sqrt(2 x checkpoint x mean time between failures of the job) seconds, for rare failures.
  EXPECT_NEAR(2 * steps, std::sqrt(2 * 10 * 1e5), 0.03 * 2 * steps);
  Failures none = failures;
  none.device_mean_time = 0;
  EXPECT_THROW(seconds_with_failures(2, 100, none), ConfigError);
}

TEST(Failures, TheBestIntervalIsTheBestOfAll) {
  Failures failures;
  for (const double mean_time : {20.0, 60.0, 1000.0, 30000.0}) {
    for (const double checkpoint : {0.0, 0.5, 30.0}) {
      failures.device_mean_time = mean_time;
      failures.checkpoint_seconds = checkpoint;
      double least = 1e300;
      for (int steps = 1; steps <= 4000; ++steps) {
        failures.steps_between_checkpoints = steps;
        least = std::min(least, seconds_with_failures(3, 2, failures));
      }
      failures.steps_between_checkpoints = best_checkpoint_interval(3, 2, failures);
      EXPECT_EQ(failures.steps_between_checkpoints, std::round(failures.steps_between_checkpoints));
      EXPECT_NEAR(seconds_with_failures(3, 2, failures) / least, 1, 1e-3)
          << mean_time << " " << checkpoint << " " << failures.steps_between_checkpoints;
    }
  }
}

// The mean time between failures bounds the interval, however many steps it has.
TEST(Failures, ShortStepsHaveManyBetweenCheckpoints) {
  const Failures failures = {.device_mean_time = 1e6, .checkpoint_seconds = 10};
  const double steps = best_checkpoint_interval(0.01, 100, failures);
  EXPECT_NEAR(0.01 * steps, std::sqrt(2 * 10 * 1e4), 0.05 * 0.01 * steps);
}

TEST(Failures, WhatIsNoTimeIsRefused) {
  const Failures good = {.device_mean_time = 1e5, .steps_between_checkpoints = 1};
  EXPECT_GT(seconds_with_failures(1, 1, good), 0); // checkpoints and restarts may cost nothing
  for (double Failures::*field :
       {&Failures::device_mean_time,
        &Failures::checkpoint_seconds,
        &Failures::restart_seconds,
        &Failures::steps_between_checkpoints}) {
    Failures bad = good;
    bad.*field = -1;
    EXPECT_THROW(seconds_with_failures(1, 1, bad), ConfigError);
    bad.*field = std::nan("");
    EXPECT_THROW(seconds_with_failures(1, 1, bad), ConfigError);
  }
  Failures none = good;
  none.steps_between_checkpoints = 0;
  EXPECT_THROW(seconds_with_failures(1, 1, none), ConfigError);
}

} // namespace
} // namespace tessera::simulator
