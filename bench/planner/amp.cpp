// The tables and figures of the AMP paper (Li et al. 2022, section 4), predicted.
// usage: planner_amp FOLDER [SVG-FOLDER]
// FOLDER holds the published inputs: model_gpt2.json, model_transgan.json,
// cluster_homogeneous.json, cluster_heterogeneous.json, cluster_p3.json, measured_homogeneous.csv.
// With SVG-FOLDER, figures 2 and 3 are drawn there.
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/planner/description.h"
#include "tessera/planner/rank_correlation.h"
#include "tessera/planner/search.h"
#include "tessera/planner/strategies_csv.h"
#include "tessera/simulator/simulate.h"

#include "bench/planner/amp_study.h"

namespace {

using namespace tessera;
using bench::TopTen;
using planner::Method;

struct Setup {
  cost::DescribedModel model;
  cost::Cluster cluster;
};

planner::SearchResult best_of(const Setup& setup, Method method) {
  planner::SearchOptions options;
  options.method = method;
  options.keep = method == Method::kRandom ? 50 : 10;
  return planner::search(setup.model, setup.cluster, options);
}

std::vector<double> seconds_of(const planner::SearchResult& result) {
  std::vector<double> seconds;
  for (const planner::Candidate& one : result.best) {
    seconds.push_back(one.seconds());
  }
  return seconds;
}

void show(const char* name, const TopTen& ten) {
  std::printf(
      "  %-20s least %.2f s, mean %.2f +- %.2f s of %d\n",
      name,
      ten.least,
      ten.mean,
      ten.deviation,
      ten.count);
}

void show_methods(const char* title, const Setup& setup, bool draws) {
  std::printf("%s\n", title);
  show("Megatron", bench::top_ten(seconds_of(best_of(setup, Method::kMegatron))));
  if (draws) {
    show("random", bench::top_ten(seconds_of(best_of(setup, Method::kRandom))));
  }
  show("AMP", bench::top_ten(seconds_of(best_of(setup, Method::kAmp))));
  show("annealing", bench::top_ten(seconds_of(best_of(setup, Method::kAnnealing))));
}

double price_with(const Setup& setup, cost::Strategy strategy, std::vector<int> cuts) {
  strategy.boundaries = std::move(cuts);
  return cost::price(setup.model, setup.cluster, strategy).seconds;
}

// Table 5: the best strategy with the layers of the two baselines.
void show_assignments(const Setup& setup) {
  const auto found = best_of(setup, Method::kAmp);
  const cost::Strategy& best = found.best.front().strategy;
  const int layers = static_cast<int>(setup.model.layers.size());
  const double megatron = best_of(setup, Method::kMegatron).best.front().seconds();
  std::printf(
      "table 5, uneven model (pp %d dp %d tp %d mbs %d)\n"
      "  Megatron %.2f s, by parameters %.2f s, even layers %.2f s, AMP %.2f s\n",
      best.pp,
      best.dp,
      best.tp,
      best.microbatch_size,
      megatron,
      price_with(setup, best, bench::even_parameters(setup.model, best.pp)),
      price_with(setup, best, bench::even_layers(layers, best.pp)),
      found.best.front().seconds());
  show("AMP, ten best", bench::top_ten(seconds_of(found)));
}

// The narrow layers of a model are those with the fewest parameters; their times grow by `factor`.
cost::DescribedModel with_narrow_layers(cost::DescribedModel model, double share) {
  std::int64_t widest = 0;
  double wide_seconds = 0;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    if (model.layers[i].kind == "transformer_layer" && model.layers[i].parameters > widest) {
      widest = model.layers[i].parameters;
    }
  }
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    if (model.layers[i].parameters == widest) {
      wide_seconds = model.measured().layers[i].forward_seconds_per_sample.begin()->second.at(1);
    }
  }
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    if (model.layers[i].kind != "transformer_layer" || model.layers[i].parameters == widest) {
      continue;
    }
    for (auto& [device, by_degree] : model.measured().layers[i].forward_seconds_per_sample) {
      for (auto& [degree, seconds] : by_degree) {
        seconds = share * wide_seconds;
      }
    }
  }
  return model;
}

// Figure 3: speed-up of the optimal layers over both baselines, at pp 4, dp 4, tp 1.
std::vector<bench::Series> figure_three(const Setup& setup) {
  std::vector<bench::Series> series = {
      {"over even layers", {}, {}, true}, {"over even parameters", {}, {}, true}};
  std::printf(
      "figure 3, time of narrow layers to wide ones: speed-up over even layers, parameters\n");
  for (double share = 0.1; share < 1.01; share += 0.1) {
    const Setup uneven = {with_narrow_layers(setup.model, share), setup.cluster};
    planner::SearchOptions options;
    options.tensor_degree = 1;
    options.keep = 1000;
    const auto found = planner::search(uneven.model, uneven.cluster, options);
    for (const planner::Candidate& one : found.best) {
      if (one.strategy.pp != 4 || one.strategy.dp != 4) {
        continue;
      }
      const int layers = static_cast<int>(uneven.model.layers.size());
      const double even = price_with(uneven, one.strategy, bench::even_layers(layers, 4));
      const double parameters =
          price_with(uneven, one.strategy, bench::even_parameters(uneven.model, 4));
      series[0].x.push_back(share);
      series[1].x.push_back(share);
      series[0].y.push_back(even / one.seconds());
      series[1].y.push_back(parameters / one.seconds());
      std::printf("  %.1f: %.2f, %.2f\n", share, even / one.seconds(), parameters / one.seconds());
      break;
    }
  }
  return series;
}

// Figure 2 of the homogeneous setup: every finished run, estimated and executed by the simulator.
std::vector<bench::Series> figure_two(const std::string& folder, const Setup& setup) {
  const std::string path = folder + "/measured_homogeneous.csv";
  const auto table = planner::price_rows(read_file(path), path, setup.model, setup.cluster);
  bench::Series priced = {"estimate", {}, {}, false};
  bench::Series simulated = {"simulation", {}, {}, false};
  for (const planner::PricedRow& row : table.rows) {
    const double measured = std::stod(table.cell(row, "measured_s"));
    if (std::isinf(measured)) {
      continue;
    }
    cost::Strategy strategy;
    strategy.pp = std::stoi(table.cell(row, "pp"));
    strategy.dp = std::stoi(table.cell(row, "dp"));
    strategy.tp = std::stoi(table.cell(row, "tp"));
    strategy.microbatch_size = std::stoi(table.cell(row, "mbs"));
    std::string cuts = table.cell(row, "layer_boundaries");
    for (char& c : cuts) {
      c = c == '[' || c == ']' || c == ';' ? ' ' : c;
    }
    std::size_t used = 0;
    for (const char* at = cuts.c_str(); *at != '\0';) {
      if (*at == ' ') {
        ++at;
        continue;
      }
      strategy.boundaries.push_back(std::stoi(at, &used));
      at += used;
    }
    std::vector<int> order(static_cast<std::size_t>(strategy.devices()));
    std::iota(order.begin(), order.end(), 0);
    strategy.device_of_rank = cost::lay_out(strategy, strategy.placement, order);
    simulator::SimulationOptions options;
    options.keep_events = false;
    priced.x.push_back(measured);
    priced.y.push_back(row.cost.seconds);
    simulated.x.push_back(measured);
    simulated.y.push_back(
        simulator::simulate(setup.model, setup.cluster, strategy, options).iteration_seconds);
  }
  std::printf(
      "figure 2, %zu finished runs: Spearman of the estimate %.3f, of the simulation %.3f\n",
      priced.x.size(),
      planner::spearman(priced.x, priced.y),
      planner::spearman(simulated.x, simulated.y));
  return {priced, simulated};
}

void write(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) {
    throw Error("cannot write " + path);
  }
}

void run(const std::string& folder, const std::string& pictures) {
  const auto load = [&](const char* model, const char* cluster) {
    return Setup{
        planner::load_model(folder + "/model_" + model + ".json"),
        planner::load_cluster(folder + "/cluster_" + cluster + ".json")};
  };
  const Setup homogeneous = load("gpt2", "homogeneous");
  show_methods("table 3, homogeneous", homogeneous, false);
  show_methods("table 4, uneven cluster", load("gpt2", "heterogeneous"), true);
  const Setup uneven = load("transgan", "p3");
  show_assignments(uneven);
  const auto two = figure_two(folder, homogeneous);
  const auto three = figure_three(uneven);
  if (!pictures.empty()) {
    write(pictures + "/planner_amp_figure2.svg", bench::plot("measured, s", "predicted, s", two));
    write(
        pictures + "/planner_amp_figure3.svg",
        bench::plot("time of a narrow layer to a wide one", "speed-up", three));
  }
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::fprintf(stderr, "usage: planner_amp FOLDER [SVG-FOLDER]\n");
    return 2;
  }
  try {
    run(argv[1], argc == 3 ? argv[2] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "planner_amp: %s\n", error.what());
    return 1;
  }
  return 0;
}
