// What drawn strategies do in the simulator, beside a recording: no simulation changes unseen.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/simulator/simulate.h"

#include "tests/support/recording.h"
#include "tests/unit/cost/drawn_cases.h"

namespace tessera::simulator {
namespace {

using cost::Draw;

SimulationOptions drawn_options(Draw& draw, const cost::Cluster& cluster) {
  SimulationOptions options;
  options.alike_once = draw.one_in(2);
  options.keep_events = draw.one_in(2);
  if (draw.one_in(4)) {
    options.jitter = 0.1;
    options.seed = static_cast<std::uint64_t>(draw.whole(0, 1000));
  }
  if (draw.one_in(4)) {
    options.slow_devices[draw.whole(0, cluster.device_count() - 1)] = draw.size(0.5, 4);
  }
  return options;
}

// Returns the times of the events with what they are, each weighed by where it is.
std::string recorded(const timeline::Timeline& timeline) {
  double starts = 0;
  double ends = 0;
  double kinds = 0;
  for (const timeline::Event& event : timeline.events) {
    starts += event.start_us * (event.rank + 1);
    ends += event.end_us * (event.microbatch + 2);
    kinds += static_cast<double>(event.bytes + 7 * event.lane + event.step) +
             static_cast<double>(
                 (event.name.size() + 3 * event.category.size()) *
                 (static_cast<std::size_t>(event.rank) + 2)) +
             0.5 * event.pp_rank;
  }
  return " events " + std::to_string(timeline.events.size()) + " " + tessera::recorded(starts) +
         " " + tessera::recorded(ends) + " " + tessera::recorded(kinds);
}

std::string recorded(const SimulationResult& result) {
  std::string text = " seconds " + tessera::recorded(result.iteration_seconds);
  text += " bubble " + tessera::recorded(result.bubble_share);
  double high_water = 0;
  double needed = 0;
  for (std::size_t rank = 0; rank < result.memory_high_water.size(); ++rank) {
    high_water += result.memory_high_water[rank] * static_cast<double>(rank + 1);
    needed += result.needed_bytes[rank] * static_cast<double>(rank + 1);
  }
  text += " bytes " + tessera::recorded(high_water) + " " + tessera::recorded(needed);
  double samples = 0;
  double moments = 0;
  for (const auto& stage : result.memory_over_time) {
    samples += static_cast<double>(stage.size());
    for (const MemorySample& sample : stage) {
      moments += sample.time_us * sample.bytes;
    }
  }
  text += " over time " + tessera::recorded(samples) + " " + tessera::recorded(moments);
  text += " tasks " + std::to_string(result.tasks) + " of " +
          std::to_string(result.simulated_replicas) + " rates " +
          std::to_string(result.computed_rates);
  return text + recorded(result.timeline);
}

TEST(RecordedSimulations, OfDrawnStrategies) {
  std::vector<std::string> lines;
  int refused = 0;
  for (unsigned seed = 0; seed < 400; ++seed) {
    Draw draw(2'000'000 + seed);
    const cost::DescribedModel model = cost::drawn_model(draw, 6);
    const cost::Cluster cluster = cost::drawn_cluster(draw, 4);
    const cost::Strategy strategy = cost::drawn_strategy(draw, model, cluster);
    if (strategy.device_of_rank.empty()) {
      continue;
    }
    SimulationOptions options = drawn_options(draw, cluster);
    options.constants = cost::runtime_constants(cluster, model.precision);
    const std::string which = std::to_string(seed) + " " + cost::text_of(strategy);
    try {
      lines.push_back(which + recorded(simulate(model, cluster, strategy, options)));
    } catch (const ConfigError&) {
      lines.push_back(which + " refused");
      ++refused;
    }
  }
  EXPECT_GT(lines.size(), 300u);
  EXPECT_LT(refused, 130);
  expect_as_recorded(RECORDED_SIMULATIONS "/recorded_simulations.txt", lines);
}

} // namespace
} // namespace tessera::simulator
