#pragma once

// Parts of the AMP paper's experiments (Li et al. 2022, section 4): layer assignments that its
// baselines use, statistics of its tables, and plots of its figures. Header only.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "tessera/cost/strategy_cost.h"

namespace tessera::bench {

/// Returns stages with equally many transformer layers, the first ones with more ("ours w/ uniform"
/// of table 5). A layer of another kind belongs to the stage of the transformer layer in front of
/// it, or to the first stage.
inline std::vector<int> even_layers(const cost::DescribedModel& model, int stages) {
  std::vector<int> transformers;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    if (model.layers[i].kind == "transformer_layer") {
      transformers.push_back(static_cast<int>(i));
    }
  }
  const int count = static_cast<int>(transformers.size());
  std::vector<int> cuts = {0};
  int before = 0; // transformer layers of the stages so far
  for (int k = 0; k + 1 < stages; ++k) {
    before += count / stages + (k < count % stages ? 1 : 0);
    cuts.push_back(transformers.at(static_cast<std::size_t>(before)));
  }
  cuts.push_back(static_cast<int>(model.layers.size()));
  return cuts;
}

/// Returns the stages, none of them empty, whose largest number of parameters is least ("ours w/
/// parameter"); of several such the one whose last cuts come first.
inline std::vector<int> even_parameters(const cost::DescribedModel& model, int stages) {
  const int layers = static_cast<int>(model.layers.size());
  std::vector<double> sums(1, 0);
  for (const cost::Layer& layer : model.layers) {
    sums.push_back(sums.back() + static_cast<double>(layer.parameters));
  }
  const auto at = [](int i) { return static_cast<std::size_t>(i); };
  // most[k][i]: the least that the largest of k + 1 stages over the first i layers can hold.
  std::vector<std::vector<double>> most(
      at(stages), std::vector<double>(sums.size(), std::numeric_limits<double>::infinity()));
  std::vector<std::vector<int>> from(at(stages), std::vector<int>(sums.size(), 0));
  for (int i = 1; i <= layers; ++i) {
    most[0][at(i)] = sums[at(i)];
  }
  for (int k = 1; k < stages; ++k) {
    for (int i = k + 1; i <= layers; ++i) {
      for (int j = k; j < i; ++j) {
        const double largest = std::max(most[at(k - 1)][at(j)], sums[at(i)] - sums[at(j)]);
        if (largest < most[at(k)][at(i)]) {
          most[at(k)][at(i)] = largest;
          from[at(k)][at(i)] = j;
        }
      }
    }
  }
  std::vector<int> cuts(at(stages + 1), layers);
  for (int k = stages - 1; k > 0; --k) {
    cuts[at(k)] = from[at(k)][at(cuts[at(k + 1)])];
  }
  cuts[0] = 0;
  return cuts;
}

/// Returns the model with the time of its narrow transformer layers, those that do not have the
/// most parameters, set to `share` times that of a wide one (equation 9).
inline cost::DescribedModel with_narrow_layers(cost::DescribedModel model, double share) {
  std::int64_t widest = 0;
  for (const cost::Layer& layer : model.layers) {
    widest = std::max(widest, layer.kind == "transformer_layer" ? layer.parameters : 0);
  }
  std::vector<cost::MeasuredLayer>& times = model.measured().layers;
  std::size_t wide = 0;
  while (model.layers[wide].parameters != widest) {
    ++wide;
  }
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    if (model.layers[i].kind != "transformer_layer" || model.layers[i].parameters == widest) {
      continue;
    }
    for (auto& [device, by_degree] : times[i].forward_seconds_per_sample) {
      for (auto& [degree, seconds] : by_degree) {
        seconds = share * times[wide].forward_seconds_per_sample.at(device).at(degree);
      }
    }
  }
  return model;
}

/// Least, mean and deviation of the best of some strategies, as tables 3 to 5 list them.
struct TopTen {
  double least = 0;
  double mean = 0;
  double deviation = 0; // of the population
  int count = 0;
};

inline TopTen top_ten(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  seconds.resize(std::min<std::size_t>(seconds.size(), 10));
  TopTen result;
  result.count = static_cast<int>(seconds.size());
  if (seconds.empty()) {
    return result;
  }
  result.least = seconds.front();
  result.mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / result.count;
  for (const double one : seconds) {
    result.deviation += (one - result.mean) * (one - result.mean) / result.count;
  }
  result.deviation = std::sqrt(result.deviation);
  return result;
}

/// One series of a plot.
struct Series {
  std::string name;
  std::vector<double> x;
  std::vector<double> y;
  bool line = false; // else points
};

/// Returns a plot as SVG, both axes from 0 to the largest value.
inline std::string
plot(const std::string& x_name, const std::string& y_name, const std::vector<Series>& all) {
  constexpr double kWidth = 480;
  constexpr double kHeight = 320;
  constexpr double kEdge = 48;
  const char* colours[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd"};
  double most_x = 0;
  double most_y = 0;
  for (const Series& one : all) {
    for (const double x : one.x) {
      most_x = std::max(most_x, x);
    }
    for (const double y : one.y) {
      most_y = std::max(most_y, y);
    }
  }
  std::string out;
  const auto add = [&out](const char* format, auto... values) {
    char text[512];
    std::snprintf(text, sizeof text, format, values...);
    out += text;
  };
  const auto x_of = [&](double x) { return kEdge + x / most_x * (kWidth - 2 * kEdge); };
  const auto y_of = [&](double y) { return kHeight - kEdge - y / most_y * (kHeight - 2 * kEdge); };
  add("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" "
      "font-family=\"sans-serif\" "
      "font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      kWidth,
      kHeight);
  for (int i = 0; i <= 4; ++i) {
    add("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.3g</text>\n",
        x_of(most_x * i / 4),
        kHeight - kEdge + 16,
        most_x * i / 4);
    add("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%.3g</text>\n",
        kEdge - 6,
        y_of(most_y * i / 4) + 4,
        most_y * i / 4);
  }
  add("<path d=\"M %.1f %.1f V %.1f H %.1f\" fill=\"none\" stroke=\"black\"/>\n",
      kEdge,
      kEdge / 2,
      kHeight - kEdge,
      kWidth - kEdge / 2);
  add("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
      kWidth / 2,
      kHeight - 12,
      x_name.c_str());
  add("<text x=\"14\" y=\"%.1f\" text-anchor=\"middle\" transform=\"rotate(-90 14 "
      "%.1f)\">%s</text>\n",
      kHeight / 2,
      kHeight / 2,
      y_name.c_str());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const char* colour = colours[i % 4];
    if (all[i].line) {
      out += "<polyline fill=\"none\" stroke=\"" + std::string(colour) + "\" points=\"";
      for (std::size_t j = 0; j < all[i].x.size(); ++j) {
        add("%.1f,%.1f ", x_of(all[i].x[j]), y_of(all[i].y[j]));
      }
      out += "\"/>\n";
    } else {
      for (std::size_t j = 0; j < all[i].x.size(); ++j) {
        add("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\" fill-opacity=\"0.6\"/>\n",
            x_of(all[i].x[j]),
            y_of(all[i].y[j]),
            colour);
      }
    }
    add("<text x=\"%.1f\" y=\"%.1f\" fill=\"%s\">%s</text>\n",
        kEdge + 12,
        kEdge / 2 + 12 + 14.0 * static_cast<double>(i),
        colour,
        all[i].name.c_str());
  }
  return out + "</svg>\n";
}

} // namespace tessera::bench
