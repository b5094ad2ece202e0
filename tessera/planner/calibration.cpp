#include "tessera/planner/calibration.h"

#include "tessera/base/error.h"
#include "tessera/base/json/parse.h"
#include "tessera/base/json/read.h"
#include "tessera/base/statistics.h"
#include "tessera/planner/rank_correlation.h"

namespace tessera::planner {

int fastest(const std::vector<Trial>& trials) {
  int best = -1;
  for (std::size_t i = 0; i < trials.size(); ++i) {
    if (trials[i].measured_seconds &&
        (best < 0 ||
         *trials[i].measured_seconds < *trials[static_cast<std::size_t>(best)].measured_seconds)) {
      best = static_cast<int>(i);
    }
  }
  return best;
}

std::optional<double> rank_agreement(const std::vector<Trial>& trials) {
  constexpr std::size_t kLeast = 3;
  std::vector<double> predicted;
  std::vector<double> measured;
  for (const Trial& trial : trials) {
    if (trial.measured_seconds) {
      predicted.push_back(trial.predicted_seconds);
      measured.push_back(*trial.measured_seconds);
    }
  }
  if (predicted.size() < kLeast) {
    return std::nullopt;
  }
  return spearman(predicted, measured);
}

std::string calibration_json(
    const std::vector<Candidate>& candidates,
    const std::vector<Trial>& trials,
    const TrialFactors& factors,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster) {
  OrderedJson json;
  json["cluster"] = cluster.name;
  json["model"] = model.name;
  json["global_batch_size"] = model.global_batch_size;
  json["trials"] = OrderedJson::array();
  std::vector<double> ratios;
  for (std::size_t i = 0; i < trials.size(); ++i) {
    const cost::Strategy& strategy = candidates[i].strategy;
    OrderedJson entry;
    entry["pp"] = strategy.pp;
    entry["dp"] = strategy.dp;
    entry["tp"] = strategy.tp;
    if (strategy.distribution != cost::Distribution::kAsMeasured) {
      entry["tensor_kind"] = text_of(strategy.distribution);
      entry["prescaled_batch"] = strategy.same_samples;
    }
    entry["mbs"] = strategy.microbatch_size;
    if (!strategy.replica_microbatch.empty()) {
      entry["replica_mbs"] = strategy.replica_microbatch;
    }
    if (!strategy.whole_layers.empty()) {
      entry["whole_layers"] = strategy.whole_layers;
    }
    entry["layer_boundaries"] = strategy.boundaries;
    entry["stages_per_rank"] = strategy.stages_per_rank;
    entry["schedule"] = text_of(strategy.schedule);
    if (strategy.active_microbatches > 0) {
      entry["active_microbatches"] = strategy.active_microbatches;
    }
    if (strategy.fast_mode) {
      entry["fast_mode"] = true;
    }
    entry["predicted_s"] = trials[i].predicted_seconds;
    entry["estimated_s"] = candidates[i].cost.seconds;
    entry["memory_gib"] = candidates[i].cost.needed_bytes() / (1 << 30);
    if (!trials[i].predicted_peak_bytes.empty()) {
      entry["predicted_peak_bytes"] = trials[i].predicted_peak_bytes;
    }
    if (!trials[i].measured_peak_bytes.empty()) {
      entry["measured_peak_bytes"] = trials[i].measured_peak_bytes;
    }
    if (trials[i].measured_seconds) {
      entry["measured_s"] = *trials[i].measured_seconds;
      if (candidates[i].predicted_seconds() > 0) {
        ratios.push_back(*trials[i].measured_seconds / candidates[i].predicted_seconds());
      }
    } else {
      entry["failure"] = trials[i].failure;
    }
    json["trials"].push_back(entry);
  }
  if (const auto agreement = rank_agreement(trials)) {
    json["spearman"] = *agreement;
  }
  if (!ratios.empty()) {
    json["measured_by_predicted"] = median(std::move(ratios));
    json["factors"] = {
        {"compute", factors.compute}, {"exchange", factors.exchange}, {"waiting", factors.waiting}};
  }
  return json.dump(1) + "\n";
}

double calibration_ratio_of(const std::string& text, const std::string& origin) {
  try {
    const auto json = parse_json(text, origin);
    form::Faults faults(origin);
    double ratio = 0;
    form::Reader(json, faults)(
        {.name = "measured_by_predicted", .bounds = form::more_than(0)}, ratio);
    return ratio;
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {
    throw ConfigError(error.what());
  }
}

} // namespace tessera::planner
