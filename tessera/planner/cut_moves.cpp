#include "tessera/planner/cut_moves.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "tessera/planner/fastest_of.h"
#include "tessera/planner/pricer.h"
#include "tessera/planner/space.h"

namespace tessera::planner {

namespace {

constexpr double kWorthIt = 0.99; // of the seconds before a move

/// Improves one strategy.
class CutMoves {
 public:
  CutMoves(
      const cost::DescribedModel& model,
      const SearchOptions& options,
      const Pricer& pricer,
      Candidate& candidate)
      : model_(model), options_(options), pricer_(pricer), candidate_(candidate) {
    constexpr int kMostSimulations = 400;
    constexpr int kMostCalls = 2'000'000; // microbatches through stages, in all
    const int calls = std::max(1, candidate.microbatches * candidate.strategy.stages() * dp());
    left_ = std::min(kMostSimulations, kMostCalls / calls);
  }

  void run() {
    while (left_ > 0 && make_best_move()) {
    }
  }

  /// Goes on from the cuts of another strategy if they are faster.
  void try_cuts_of(const Candidate& other) {
    if (other.strategy.stages() != candidate_.strategy.stages() ||
        other.strategy.boundaries == candidate_.strategy.boundaries) {
      return;
    }
    Candidate fastest = candidate_;
    try_cuts(other.strategy.boundaries, fastest);
    if (fastest.simulated_seconds < candidate_.simulated_seconds) {
      candidate_ = std::move(fastest);
      run();
    }
  }

 private:
  int dp() const {
    return candidate_.strategy.dp;
  }

  // Tries all moves of neighbouring cuts by one layer; returns whether one was worth it.
  bool make_best_move() {
    const int cuts = candidate_.strategy.stages() - 1;
    Candidate fastest = candidate_;
    for (int first = 1; first <= cuts; ++first) {
      for (int last = first; last <= cuts; ++last) {
        for (const int layers : {-1, 1}) {
          try_move(first, last, layers, fastest);
        }
      }
    }
    if (fastest.simulated_seconds >= candidate_.simulated_seconds) {
      return false;
    }
    candidate_ = std::move(fastest);
    return true;
  }

  void try_move(int first, int last, int layers, Candidate& fastest) {
    std::vector<int> cuts = candidate_.strategy.boundaries;
    for (int cut = first; cut <= last; ++cut) {
      cuts[static_cast<std::size_t>(cut)] += layers;
    }
    if (std::adjacent_find(cuts.begin(), cuts.end(), std::greater_equal<>()) == cuts.end()) {
      try_cuts(std::move(cuts), fastest);
    }
  }

  // Sets `fastest` to the strategy under these cuts where it is faster and worth it.
  void try_cuts(std::vector<int> cuts, Candidate& fastest) {
    if (left_ == 0 || (options_.stop != nullptr && options_.stop->load())) {
      return;
    }
    cost::Strategy strategy = candidate_.strategy;
    strategy.boundaries = std::move(cuts);
    if (options_.runnable_only && ties_apart(strategy, model_)) {
      return;
    }
    Candidate moved = pricer_.priced(std::move(strategy));
    if (!moved.cost.fits()) {
      return;
    }
    --left_;
    moved.simulated_seconds = pricer_.simulated_seconds(moved.strategy);
    if (moved.simulated_seconds < fastest.simulated_seconds &&
        moved.simulated_seconds < kWorthIt * candidate_.simulated_seconds) {
      fastest.strategy = std::move(moved.strategy);
      fastest.cost = std::move(moved.cost);
      fastest.simulated_seconds = moved.simulated_seconds;
    }
  }

  const cost::DescribedModel& model_;
  const SearchOptions& options_;
  const Pricer& pricer_;
  Candidate& candidate_;
  int left_ = 0; // simulations
};

} // namespace

void move_cuts(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options,
    std::vector<Candidate>& best) {
  constexpr std::size_t kMostStrategies = 5;
  const Pricer pricer(model, cluster, options);
  const std::vector<std::size_t> pipelines = fastest_of(
      best, kMostStrategies, [](const Candidate& candidate) { return candidate.strategy.pp > 1; });
  std::vector<CutMoves> moves;
  for (const std::size_t index : pipelines) {
    moves.emplace_back(model, options, pricer, best[index]).run();
  }
  // Each has ended in a local optimum, and the cuts of another one may be faster still.
  for (CutMoves& of_one : moves) {
    for (const std::size_t other : pipelines) {
      of_one.try_cuts_of(best[other]);
    }
  }
}

Candidate with_moved_cuts(
    Candidate candidate,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options) {
  if (options.simulate == 0) {
    return candidate;
  }
  candidate.microbatches = candidate.strategy.microbatches(model.global_batch_size);
  candidate.simulated_seconds =
      Pricer(model, cluster, options).simulated_seconds(candidate.strategy);
  std::vector<Candidate> one = {std::move(candidate)};
  move_cuts(model, cluster, options, one);
  return std::move(one.front());
}

} // namespace tessera::planner
