// What drawn searches find, and what they say of it, beside a recording: no plan changes unseen.
#include "tessera/base/error.h"
#include "tessera/planner/calibration.h"
#include "tessera/planner/candidate_text.h"
#include "tessera/planner/candidates_json.h"
#include "tessera/planner/judgement.h"
#include "tessera/planner/node_sets.h"
#include "tessera/planner/nothing_fits.h"
#include "tessera/planner/search.h"
#include "tessera/planner/staged_search.h"
#include "tessera/planner/strategies_csv.h"
#include "tessera/planner/to_config.h"
#include "tessera/planner/trial_factors.h"
#include "tessera/planner/without_hosts.h"

#include "tests/support/recording.h"
#include "tests/unit/cost/drawn_cases.h"

namespace tessera::planner {
namespace {

using cost::Draw;

// A model of up to `layers` layers and its cluster, whose memory may be scarce.
struct Case {
  Case(Draw& draw, int layers, int devices)
      : model(cost::drawn_model(draw, layers)), cluster(cost::drawn_cluster(draw, devices)) {
    if (draw.one_in(2)) {
      for (cost::DeviceKind& kind : cluster.kinds) {
        kind.memory_bytes *= 0.15;
      }
    }
  }
  cost::DescribedModel model;
  cost::Cluster cluster;
};

SearchOptions drawn_search(Draw& draw) {
  SearchOptions options;
  options.method = draw.one_of<Method>(
      {Method::kAmp,
       Method::kAmp,
       Method::kAmp,
       Method::kAnnealing,
       Method::kMegatron,
       Method::kRandom});
  options.keep = draw.whole(1, 4);
  options.seed = static_cast<std::uint64_t>(draw.whole(0, 100));
  options.samples = 20;
  options.annealing_steps = 30;
  options.schedule = draw.one_in(2) ? cost::Schedule::kInterleaved : cost::Schedule::kSimple;
  options.active_microbatches = draw.one_in(3) ? draw.whole(1, 4) : 0;
  options.most_stages_per_rank = draw.one_in(3) ? draw.whole(2, kMostStagesPerRank) : 1;
  options.shard_optimizer_state = draw.one_in(3);
  options.shard_parameters = options.shard_optimizer_state && draw.one_in(3);
  options.offload_optimizer_state = draw.one_in(5);
  options.offload_activations = draw.one_in(5);
  options.keep_products = draw.one_in(4);
  options.save_memory = draw.one_in(3);
  options.compare_savings = draw.one_in(3);
  options.compare_schedules = draw.one_in(3);
  options.can_recompute = draw.one_in(3);
  options.memory_limit_bytes = draw.one_in(3) ? draw.size(1e9, 1e10) : 0;
  options.subsets = draw.one_in(3);
  options.spare_nodes = draw.one_in(6) ? 1 : 0;
  options.objective =
      draw.one_of<Objective>({Objective::kTime, Objective::kCost, Objective::kEnergy});
  options.overlap_gradients = draw.one_in(2);
  options.unlike_samples = draw.one_in(3);
  options.runnable_only = draw.one_in(3);
  options.simulate = draw.one_in(2) ? draw.whole(1, 4) : 0;
  options.tensor_degree = draw.one_in(4) ? draw.whole(1, 2) : 0;
  options.keep_node_order = draw.one_in(3);
  return options;
}

std::string one_line(std::string text) {
  for (char& c : text) {
    c = c == '\n' ? '|' : c;
  }
  return text;
}

std::string in_short(const Candidate& candidate) {
  std::string text = " [ " + headline(candidate.strategy) + " ; cuts";
  for (const int cut : candidate.strategy.boundaries) {
    text += " " + std::to_string(cut);
  }
  text += " nodes";
  for (const int node : candidate.node_order) {
    text += " " + std::to_string(node);
  }
  for (const int samples : candidate.strategy.replica_microbatch) {
    text += " of " + std::to_string(samples);
  }
  text += candidate.leaves_out ? " leaves some out" : "";
  text += candidate.can_recompute ? " recomputes" : "";
  return text + " " + std::to_string(candidate.microbatches) + " microbatches " +
         tessera::recorded(candidate.cost.seconds) + " " +
         tessera::recorded(candidate.simulated_seconds) + " ]";
}

std::string in_short(const SearchResult& result) {
  std::string text = " considered " + std::to_string(result.considered) + " bound " +
                     tessera::recorded(result.lower_bound);
  for (const Candidate& candidate : result.best) {
    text += in_short(candidate);
  }
  text += " front";
  for (const Candidate& candidate : result.front) {
    text += " " + tessera::recorded(candidate.seconds()) + " " + tensor_text(candidate.strategy);
  }
  return text;
}

// Returns the remedies and the message in which no path or time of the run stands.
std::string in_short(const NothingFits& error) {
  std::string text = " nothing fits";
  for (const Remedy remedy : error.remedies()) {
    text += " " + std::to_string(static_cast<int>(remedy));
  }
  return text + " " + one_line(error.what());
}

TEST(RecordedPlans, OfDrawnSearches) {
  std::vector<std::string> lines;
  int found = 0;
  for (unsigned seed = 0; seed < 260; ++seed) {
    Draw draw(3'000'000 + seed);
    const Case drawn(draw, 5, 3);
    SearchOptions options = drawn_search(draw);
    options.constants = cost::runtime_constants(drawn.cluster, drawn.model.precision);
    std::string line = std::to_string(seed);
    try {
      line += in_short(search(drawn.model, drawn.cluster, options));
      ++found;
    } catch (const NothingFits& error) {
      line += in_short(error);
    } catch (const Error& error) {
      line += " " + one_line(error.what());
    }
    lines.push_back(line);
  }
  EXPECT_GT(found, 100);
  expect_as_recorded(RECORDED_PLANS "/recorded_searches.txt", lines);
}

// Many microbatches of few devices, where ranks may hold several stages in turns.
TEST(RecordedPlans, OfTurns) {
  std::vector<std::string> lines;
  int in_turns = 0;
  for (unsigned seed = 0; seed < 150; ++seed) {
    Draw draw(8'000'000 + seed);
    Case drawn(draw, 12, 2);
    drawn.model.global_batch_size = 12;
    for (cost::DeviceKind& kind : drawn.cluster.kinds) {
      kind.memory_bytes = 1e12;
    }
    for (cost::Node& node : drawn.cluster.nodes) { // messages cost nearly nothing
      node.intra_bytes_per_s *= 1000;
      node.inter_bytes_per_s *= 1000;
      node.stream_bytes_per_s = 0;
    }
    drawn.cluster.links.clear();
    drawn.cluster.groups.clear();
    SearchOptions options = drawn_search(draw);
    options.method = Method::kAmp;
    options.active_microbatches = draw.whole(0, 3);
    options.most_stages_per_rank = kMostStagesPerRank;
    options.simulate = 8;
    options.keep = 8;
    options.tensor_degree = 1;
    options.constants = cost::runtime_constants(drawn.cluster, drawn.model.precision);
    std::string line = std::to_string(seed);
    try {
      for (const Candidate& one : search(drawn.model, drawn.cluster, options).best) {
        line += " " + std::to_string(one.strategy.pp) + "x" +
                std::to_string(one.strategy.stages_per_rank) + " of " +
                std::to_string(one.strategy.active_microbatches) + " in " +
                tessera::recorded(one.seconds());
        in_turns += one.strategy.stages_per_rank > 1 ? 1 : 0;
      }
    } catch (const Error&) {
      line += " refused";
    }
    lines.push_back(line);
  }
  EXPECT_GT(in_turns, 10);
  expect_as_recorded(RECORDED_PLANS "/recorded_turns.txt", lines);
}

TEST(RecordedPlans, OfStagesOfOwnWidths) {
  std::vector<std::string> lines;
  int found = 0;
  for (unsigned seed = 0; seed < 150; ++seed) {
    Draw draw(4'000'000 + seed);
    Case drawn(draw, 5, 3);
    SearchOptions options = drawn_search(draw);
    options.runnable_only = false;
    options.constants = cost::runtime_constants(drawn.cluster, drawn.model.precision);
    const double beat = draw.one_in(3) ? draw.size(0.01, 1) : 1e9;
    std::string line = std::to_string(seed);
    try {
      const StagedResult result = search_staged(drawn.model, drawn.cluster, options, beat);
      line += " bound " + tessera::recorded(result.lower_bound) + " together " +
              std::to_string(result.devices_together) + " " +
              std::to_string(result.layers_together);
      for (const StagedCandidate& candidate : result.best) {
        line += " " + tessera::recorded(candidate.cost.seconds);
      }
      line += " " + one_line(staged_text(result, drawn.cluster));
      found += result.best.empty() ? 0 : 1;
    } catch (const Error& error) {
      line += " " + one_line(error.what());
    }
    lines.push_back(line);
  }
  EXPECT_GT(found, 40);
  expect_as_recorded(RECORDED_PLANS "/recorded_stages.txt", lines);
}

// Texts and files of the first strategy, whether or not it runs.
std::string written(const SearchResult& result, const Case& drawn) {
  std::string text = summary(result, drawn.model) + front_text(result, drawn.cluster);
  for (const Candidate& candidate : result.best) {
    text += "\n" + not_runnable(candidate, drawn.model).value_or("runs");
    text += "\n" + recomputation_of(candidate.strategy);
    if (text.back() != '\n' && !not_runnable(candidate, drawn.model)) {
      text += "\n" + to_config_json(candidate, drawn.model);
    }
  }
  if (!result.best.empty()) {
    text += "\n" + explain(result.best.front(), drawn.model, drawn.cluster);
  }
  return text + "\n" + to_json(result, drawn.model, drawn.cluster);
}

TEST(RecordedPlans, AsTheyAreWritten) {
  std::vector<std::string> lines;
  for (unsigned seed = 0; lines.size() < 8 && seed < 400; ++seed) {
    Draw draw(5'000'000 + seed);
    const Case drawn(draw, 4, 2);
    SearchOptions options = drawn_search(draw);
    options.keep = 2;
    options.constants = cost::runtime_constants(drawn.cluster, drawn.model.precision);
    try {
      const SearchResult result = search(drawn.model, drawn.cluster, options);
      std::istringstream text(written(result, drawn));
      std::string line = std::to_string(seed);
      for (std::string part; std::getline(text, part);) {
        line += " | " + part;
      }
      lines.push_back(line);
    } catch (const Error&) {
      continue; // recorded above
    }
  }
  EXPECT_EQ(lines.size(), 8u);
  expect_as_recorded(RECORDED_PLANS "/recorded_texts.txt", lines);
}

// A table of strategies, some of which do not run, with every column that is read.
std::string drawn_table(Draw& draw, const Case& drawn, bool sized) {
  std::string csv =
      "pp,dp,tp,mbs,layer_boundaries,nodes,placement,global_batch,zero,recompute,"
      "stages_per_rank";
  csv += sized ? ",sequence" : "";
  csv += ",measured_s,measured_gib\n";
  for (int row = 0; row < 8; ++row) {
    cost::Cluster cluster = drawn.cluster;
    const int nodes = draw.whole(1, static_cast<int>(cluster.nodes.size()));
    cluster = cluster.first_nodes(nodes);
    const cost::Strategy one = cost::drawn_strategy(draw, drawn.model, cluster);
    if (one.boundaries.empty()) {
      continue;
    }
    std::string cuts;
    for (const int cut : one.boundaries) {
      cuts += (cuts.empty() ? "[" : ";") + std::to_string(cut);
    }
    // Into names first: a sum's terms are computed in an order of the compiler's.
    const auto placement = draw.one_of<std::string>({"PDT", "DPT", "TPD"});
    const int batch = drawn.model.global_batch_size * draw.whole(1, 2);
    const int zero = draw.one_of<int>({0, 1, 3});
    const int recompute = draw.whole(0, 1);
    const int sequence = draw.one_of<int>({32, 64});
    const auto measured = draw.one_in(4) ? "inf" : tessera::recorded(draw.size(1e-3, 1));
    const auto gib = draw.one_in(3) ? "" : tessera::recorded(draw.size(0.1, 10));
    for (const int value : {one.pp, one.dp, one.tp, one.microbatch_size}) {
      csv += std::to_string(value) + ",";
    }
    csv += cuts + "]," + std::to_string(nodes) + "," + placement;
    for (const int value : {batch, zero, recompute, one.stages_per_rank}) {
      csv += "," + std::to_string(value);
    }
    csv += sized ? "," + std::to_string(sequence) : "";
    csv += "," + measured + "," + gib + "\n";
  }
  return csv;
}

TEST(RecordedPlans, OfPricedTables) {
  std::vector<std::string> lines;
  int priced = 0;
  for (unsigned seed = 0; seed < 80; ++seed) {
    Draw draw(6'000'000 + seed);
    const Case drawn(draw, 5, 3);
    const bool sized = std::holds_alternative<cost::SizedModel>(drawn.model.source);
    const std::string csv = drawn_table(draw, drawn, sized);
    std::string line = std::to_string(seed) + " ";
    try {
      line += one_line(price_table(csv, "table", drawn.model, drawn.cluster));
      const Judgement judged = judge(
          price_rows(csv, "table", drawn.model, drawn.cluster), [](const auto&) { return true; });
      for (const double value :
           {judged.spearman,
            judged.median_error,
            judged.worst_decile_error,
            judged.median_ratio,
            judged.memory_error,
            judged.regret,
            judged.right()}) {
        line += " " + tessera::recorded(value);
      }
      ++priced;
    } catch (const Error& error) {
      line += one_line(error.what());
    }
    lines.push_back(line);
  }
  EXPECT_GT(priced, 25);
  expect_as_recorded(RECORDED_PLANS "/recorded_tables.txt", lines);
}

TEST(RecordedPlans, OfTrialsAndOfParts) {
  std::vector<std::string> lines;
  for (unsigned seed = 0; seed < 120; ++seed) {
    Draw draw(7'000'000 + seed);
    const Case drawn(draw, 4, 2);
    SearchOptions options = drawn_search(draw);
    options.spare_nodes = draw.whole(0, 1);
    std::string line = std::to_string(seed);
    try {
      line += " sets";
      for (const std::vector<int>& nodes : node_sets(drawn.model, drawn.cluster, options)) {
        for (const int node : nodes) {
          line += " " + std::to_string(node);
        }
        line += " /";
      }
      const cost::Cluster left = without_hosts(drawn.cluster, {"0"});
      line += " without one " + std::to_string(left.device_count()) + " " +
              std::to_string(left.links.size()) + " " + std::to_string(left.groups.size()) + " " +
              std::to_string(left.collectives.size());
    } catch (const Error& error) {
      line += " " + one_line(error.what());
    }
    try {
      options.spare_nodes = 0;
      SearchResult result = search(drawn.model, drawn.cluster, options);
      std::vector<Trial> trials;
      for (const Candidate& candidate : result.best) {
        Trial trial;
        trial.predicted_seconds = candidate.predicted_seconds();
        if (!draw.one_in(4)) {
          trial.measured_seconds = trial.predicted_seconds * draw.size(0.5, 3);
        }
        trials.push_back(trial);
      }
      const TrialFactors factors = fit_factors(result.best, trials);
      line += " " + text_of(factors) + " fastest " + std::to_string(fastest(trials)) + " agree " +
              tessera::recorded(rank_agreement(trials).value_or(-2));
      if (seed % 5 == 0) {
        line += " " + one_line(calibration_json(
                          result.best, trials, factors, drawn.model, drawn.cluster));
      }
      calibrate(result, factors);
      for (const Candidate& candidate : result.best) {
        line += " " + tessera::recorded(candidate.seconds());
      }
    } catch (const Error&) {
      line += " refused";
    }
    lines.push_back(line);
  }
  expect_as_recorded(RECORDED_PLANS "/recorded_trials.txt", lines);
}

} // namespace
} // namespace tessera::planner
