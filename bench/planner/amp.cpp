// The tables and figures of the AMP paper (Li et al. 2022, section 4), predicted.
// usage: planner_amp FOLDER [SVG-FOLDER]
// FOLDER holds the published inputs (docs/adr/0119-amp-s-runs-stay-outside.md).
// With SVG-FOLDER, figures 2 and 3 are drawn there.
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include "tessera/base/error.h"

#include "bench/planner/amp_paper.h"

namespace {

using namespace tessera;
using bench::AmpSetup;
using bench::TopTen;
using planner::Method;

void show(const char* name, const TopTen& ten) {
  std::printf(
      "  %-20s least %.2f s, mean %.2f +- %.2f s of %d\n",
      name,
      ten.least,
      ten.mean,
      ten.deviation,
      ten.count);
}

void show_methods(const char* title, const AmpSetup& setup, bool draws) {
  std::printf("%s\n", title);
  show("Megatron", bench::amp_top_ten(setup, Method::kMegatron));
  if (draws) {
    show("random", bench::amp_top_ten(setup, Method::kRandom));
  }
  show("AMP", bench::amp_top_ten(setup, Method::kAmp));
  show("annealing", bench::amp_top_ten(setup, Method::kAnnealing));
}

void show_assignments(const AmpSetup& setup) {
  const bench::Assignments seconds = bench::amp_assignments(setup);
  std::printf(
      "table 5, uneven model, layers at pp 4, dp 4\n"
      "  by parameters %.2f s, even layers %.2f s, best %.2f s\n",
      seconds.by_parameters,
      seconds.even_layers,
      seconds.best);
  show_methods("table 5, uneven model", setup, true);
}

std::vector<bench::Series> figure_two(const std::string& folder) {
  const auto series = bench::amp_figure_two(folder);
  std::printf(
      "figure 2, %zu finished runs: Spearman of the estimate %.3f, of the simulation %.3f\n",
      series[0].x.size(),
      planner::spearman(series[0].x, series[0].y),
      planner::spearman(series[1].x, series[1].y));
  return series;
}

std::vector<bench::Series> figure_three(const AmpSetup& setup) {
  const auto series = bench::amp_figure_three(setup);
  std::printf(
      "figure 3, time of narrow layers to wide ones: speed-up over even layers, parameters\n");
  for (std::size_t i = 0; i < series[0].x.size(); ++i) {
    std::printf("  %.2f: %.2f, %.2f\n", series[0].x[i], series[0].y[i], series[1].y[i]);
  }
  return series;
}

void write(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) {
    throw Error("cannot write " + path);
  }
}

void run(const std::string& folder, const std::string& pictures) {
  show_methods("table 3, homogeneous", bench::amp_setup(folder, "gpt2", "homogeneous"), false);
  show_methods("table 4, uneven cluster", bench::amp_setup(folder, "gpt2", "heterogeneous"), true);
  const AmpSetup uneven = bench::amp_setup(folder, "transgan", "p3");
  show_assignments(uneven);
  const auto two = figure_two(folder);
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
