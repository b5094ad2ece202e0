#include "tessera/planner/layer_assignment.h"

#include <chrono>
#include <functional>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "tessera/base/index.h"

namespace tessera::planner {
namespace {

// The objective: (m - 1) max_k max(t_k, e_k) + sum_k t_k + 2 sum_k e_k.
double pipeline_seconds(const AssignmentProblem& problem, const std::vector<int>& boundaries) {
  double sum = 0;
  double longest = 0;
  for (int k = 0; k < problem.stages; ++k) {
    const int last = boundaries[at(k) + 1];
    const int first = boundaries[at(k)];
    double seconds = problem.seconds[at(k)][at(last)] - problem.seconds[at(k)][at(first)];
    if (!problem.other_seconds.empty()) {
      for (const std::vector<double>& other : problem.other_seconds[at(k)]) {
        seconds = std::max(seconds, other[at(last)] - other[at(first)]);
      }
    }
    sum += seconds;
    longest = std::max(longest, seconds);
    if (k + 1 < problem.stages) {
      const double sent = problem.send_seconds[at(k)][at(last)];
      sum += 2 * sent;
      longest = std::max(longest, sent);
    }
  }
  return (problem.microbatches - 1) * longest + sum;
}

AssignmentProblem
random_problem(std::mt19937& random, int layers, int stages, bool even_devices = false) {
  std::uniform_real_distribution<double> seconds(0, 1);
  AssignmentProblem problem;
  problem.layers = layers;
  problem.stages = stages;
  problem.microbatches = 1 + static_cast<int>(random() % 12);
  std::vector<double> layer;
  std::vector<double> volume;
  for (int i = 0; i < layers; ++i) {
    layer.push_back(random() % 4 == 0 ? 0.0 : seconds(random));
    volume.push_back(seconds(random));
  }
  for (int k = 0; k < stages; ++k) {
    const double slower = even_devices ? 1 : 0.5 + seconds(random);
    const double link = even_devices ? 0 : seconds(random);
    std::vector<double> sums = {0};
    std::vector<double> sends = {0};
    for (int i = 0; i < layers; ++i) {
      sums.push_back(sums.back() + layer[static_cast<std::size_t>(i)] * slower);
      sends.push_back(volume[static_cast<std::size_t>(i)] * link);
    }
    problem.seconds.push_back(sums);
    if (k + 1 < stages) {
      problem.send_seconds.push_back(sends);
    }
  }
  return problem;
}

bool fits(const AssignmentProblem& problem, const std::vector<int>& cuts) {
  for (int k = 0; problem.first_that_fits && k < problem.stages; ++k) {
    const auto stage = static_cast<std::size_t>(k);
    if (cuts[stage] < problem.first_that_fits(k, cuts[stage + 1])) {
      return false;
    }
  }
  return true;
}

double brute_force(const AssignmentProblem& problem) {
  double best = std::numeric_limits<double>::infinity();
  std::vector<int> cuts = {0};
  const std::function<void()> extend = [&] {
    const int used = static_cast<int>(cuts.size());
    if (used == problem.stages) {
      cuts.push_back(problem.layers);
      if (fits(problem, cuts)) {
        best = std::min(best, pipeline_seconds(problem, cuts));
      }
      cuts.pop_back();
      return;
    }
    for (int cut = cuts.back() + 1; cut <= problem.layers - (problem.stages - used); ++cut) {
      cuts.push_back(cut);
      extend();
      cuts.pop_back();
    }
  };
  extend();
  return best;
}

TEST(LayerAssignment, AgreesWithBruteForce) {
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    const int layers = 1 + static_cast<int>(random() % 10);
    const int stages = 1 + static_cast<int>(random() % static_cast<unsigned>(layers));
    AssignmentProblem problem = random_problem(random, layers, stages, round % 5 == 0);
    if (round % 4 == 1) {
      // Stages of two devices or three, each the slowest for some layers.
      for (int k = 0; k < stages; ++k) {
        problem.other_seconds.emplace_back();
        for (unsigned more = random() % 3; more > 0; --more) {
          problem.other_seconds.back().push_back(
              random_problem(random, layers, stages).seconds[at(k)]);
        }
      }
    }
    if (round % 3 == 0) {
      // At most so many layers on a stage, which differs from stage to stage.
      const int most = 1 + static_cast<int>(random() % 4);
      problem.first_that_fits = [most](int stage, int last) { return last - most - stage % 2; };
    }
    const double expected = brute_force(problem);
    const Assignment found = assign_layers(problem);
    if (expected == std::numeric_limits<double>::infinity()) {
      EXPECT_TRUE(found.boundaries.empty()) << "round " << round;
      continue;
    }
    ASSERT_EQ(found.boundaries.size(), static_cast<std::size_t>(stages) + 1);
    EXPECT_TRUE(fits(problem, found.boundaries)) << "round " << round;
    EXPECT_NEAR(pipeline_seconds(problem, found.boundaries), expected, 1e-9) << "round " << round;
    EXPECT_NEAR(found.seconds, expected, 1e-9) << "round " << round;
  }
}

TEST(LayerAssignment, FewerLayersThanStagesHaveNoAnswer) {
  std::mt19937 random(1);
  AssignmentProblem problem = random_problem(random, 3, 3);
  problem.layers = 2;
  EXPECT_TRUE(assign_layers(problem).boundaries.empty());
}

TEST(LayerAssignment, AHundredLayersOnSixtyFourStagesAreFast) {
  std::mt19937 random(5);
  const AssignmentProblem uneven = random_problem(random, 100, 64);
  const auto start = std::chrono::steady_clock::now();
  const Assignment found = assign_layers(uneven);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(found.boundaries.size(), 65u);
  EXPECT_LT(took.count(), 1.0);
}

} // namespace
} // namespace tessera::planner
