#include "tessera/planner/whole_layers.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "tessera/base/index.h"
#include "tessera/planner/fastest_of.h"
#include "tessera/planner/pricer.h"
#include "tessera/planner/space.h"

namespace tessera::planner {

namespace {

// What is faster by less is so by rounding of layers more than by their degrees.
constexpr double kWorthIt = 0.995;

// A model that was replaced as a whole has layers of other names, whose originals no plan can name.
bool keeps_names(const cost::DescribedModel& model, const cost::Strategy& strategy) {
  const cost::DividedModel* divided =
      model.divided_in({strategy.tp, strategy.distribution, strategy.same_samples});
  return divided != nullptr &&
         std::equal(
             model.layers.begin() + 1,
             model.layers.end(),
             divided->layers.begin() + 1,
             divided->layers.end(),
             [](const cost::Layer& a, const cost::Layer& b) { return a.name == b.name; });
}

bool may_have_whole_layers(const cost::DescribedModel& model, const cost::Strategy& strategy) {
  return strategy.tp > 1 && !strategy.same_samples &&
         strategy.distribution != cost::Distribution::kMesh &&
         strategy.replica_microbatch.empty() && keeps_names(model, strategy);
}

// By what a description says; this only orders layers that are priced later.
bool are_alike(const cost::Layer& a, const cost::Layer& b) {
  return std::tie(a.kind, a.parameters, a.output_elements_per_sample) ==
         std::tie(b.kind, b.parameters, b.output_elements_per_sample);
}

// Looks for the whole layers of one strategy.
class WholeLayers {
 public:
  WholeLayers(
      const cost::DescribedModel& model,
      const cost::Cluster& cluster,
      const SearchOptions& options,
      const Pricer& pricer,
      const Candidate& plain)
      : model_(model), cluster_(cluster), options_(options), pricer_(pricer), plain_(plain) {}

  // Returns the fastest variant that it finds; nullopt where the strategy itself is as fast.
  std::optional<Candidate> fastest() {
    Candidate best = plain_;
    for (const int stage : slowest_first()) {
      if (options_.stop != nullptr && options_.stop->load()) {
        break;
      }
      const Candidate before = best;
      const auto [first, last] = before.strategy.layers_of(stage);
      std::vector<int> layers(at(last - std::max(first, 1))); // layer 0 is on rank 0, divided
      std::iota(layers.rbegin(), layers.rend(), std::max(first, 1));
      for (const std::vector<int>& order : {layers, that_gain(before, layers)}) {
        const int most = most_whole(before.strategy, order);
        if (most == 0) {
          continue;
        }
        Candidate tried = priced(with_whole(before.strategy, order, most));
        if (tried.seconds() < best.seconds()) {
          best = std::move(tried);
        }
      }
    }
    if (best.strategy.whole_layers.empty()) {
      return std::nullopt;
    }
    const cost::LayerTable table(model_, cluster_, best.strategy, options_.constants);
    if (auto moved = pricer_.assigned(best.strategy, table);
        moved && !(options_.runnable_only && ties_apart(moved->strategy, model_))) {
      Candidate tried = priced(std::move(moved->strategy));
      if (tried.cost.fits() && tried.seconds() < best.seconds()) {
        best = std::move(tried);
      }
    }
    return best.seconds() < kWorthIt * plain_.seconds() ? std::optional(best) : std::nullopt;
  }

 private:
  std::vector<int> slowest_first() const {
    std::vector<int> stages(at(plain_.strategy.stages()));
    std::iota(stages.begin(), stages.end(), 0);
    std::stable_sort(stages.begin(), stages.end(), [&](int a, int b) {
      return plain_.cost.stages[at(a)].seconds() > plain_.cost.stages[at(b)].seconds();
    });
    return stages;
  }

  // Returns those of a stage's layers with which alone a step is faster, the one first that gains
  // most for each byte that it takes more. Layers that look alike are priced once.
  std::vector<int> that_gain(const Candidate& candidate, const std::vector<int>& layers) const {
    struct Gain {
      int layer;
      double seconds;
      double worth; // seconds for a byte
    };
    std::vector<Gain> gains;
    for (const int layer : layers) {
      const auto alike = std::find_if(gains.begin(), gains.end(), [&](const Gain& other) {
        return are_alike(model_.layers[at(layer)], model_.layers[at(other.layer)]);
      });
      if (alike != gains.end()) {
        gains.push_back({layer, alike->seconds, alike->worth});
        continue;
      }
      const Candidate tried = pricer_.priced(with_whole(candidate.strategy, {layer}, 1));
      const double seconds = candidate.cost.seconds - tried.cost.seconds;
      const double bytes = tried.cost.needed_bytes() - candidate.cost.needed_bytes();
      gains.push_back({layer, seconds, seconds / std::max(bytes, 1.0)});
    }
    std::stable_sort(
        gains.begin(), gains.end(), [](const Gain& a, const Gain& b) { return a.worth > b.worth; });
    std::vector<int> order;
    for (const Gain& gain : gains) {
      if (gain.seconds > 0) {
        order.push_back(gain.layer);
      }
    }
    return order;
  }

  // Makes the first `count` layers of `order` whole.
  cost::Strategy with_whole(cost::Strategy strategy, const std::vector<int>& order, int count)
      const {
    strategy.whole_layers.resize(model_.layers.size(), false);
    for (int i = 0; i < count; ++i) {
      strategy.whole_layers[at(order[at(i)])] = true;
    }
    return strategy;
  }

  // Returns how many layers of `order` a stage's devices hold whole, beside those of the others.
  int most_whole(const cost::Strategy& strategy, const std::vector<int>& order) const {
    int fits = 0;
    int too_many = static_cast<int>(order.size()) + 1;
    while (too_many - fits > 1) {
      const int count = (fits + too_many) / 2;
      const Candidate tried = pricer_.priced(with_whole(strategy, order, count));
      (tried.cost.fits() ? fits : too_many) = count;
    }
    return fits;
  }

  Candidate priced(cost::Strategy strategy) const {
    Candidate candidate = pricer_.priced(std::move(strategy));
    candidate.node_order = plain_.node_order;
    candidate.can_recompute = plain_.can_recompute;
    candidate.microbatches = plain_.microbatches;
    if (options_.simulate > 0) {
      candidate.simulated_seconds = pricer_.simulated_seconds(candidate.strategy);
    }
    return candidate;
  }

  const cost::DescribedModel& model_;
  const cost::Cluster& cluster_;
  const SearchOptions& options_;
  const Pricer& pricer_;
  const Candidate& plain_;
};

} // namespace

void add_whole_layers(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options,
    std::vector<Candidate>& best) {
  const bool searches = options.method == Method::kAmp || options.method == Method::kAnnealing;
  if (!options.whole_layers || !searches || model.traced() == nullptr) {
    return;
  }
  constexpr std::size_t kMostStrategies = 8;
  double fastest = std::numeric_limits<double>::infinity();
  for (const Candidate& candidate : best) {
    fastest = std::min(fastest, candidate.seconds());
  }
  const auto may_have = [&](const Candidate& candidate) {
    return may_have_whole_layers(model, candidate.strategy);
  };
  const Pricer pricer(model, cluster, options);
  std::vector<Candidate> found;
  for (const std::size_t index : fastest_of(best, kMostStrategies, may_have)) {
    auto candidate = WholeLayers(model, cluster, options, pricer, best[index]).fastest();
    if (candidate && candidate->seconds() < fastest) {
      found.push_back(std::move(*candidate));
    }
  }
  std::move(found.begin(), found.end(), std::back_inserter(best));
}

} // namespace tessera::planner
