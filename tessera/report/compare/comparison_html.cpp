#include <algorithm>
#include <cmath>
#include <map>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/report/chart.h"
#include "tessera/report/compare/comparison.h"
#include "tessera/report/compare/comparison_style.h"
#include "tessera/report/format.h"
#include "tessera/report/html_sections.h"
#include "tessera/report/markup.h"
#include "tessera/report/positions.h"
#include "tessera/report/report.h"
#include "tessera/report/report_style.h"

namespace tessera::report {

namespace {

std::string style_of(std::size_t run) {
  return str("run-", static_cast<char>('a' + run));
}

/// What a loss is drawn over.
struct Axis {
  const char* title; // "over steps"
  std::string label;
  std::string name;
  double unit = 1; // by which places are divided
  std::function<std::string(double)> text;
  const char* missing; // why a run is not shown
  /// Where a step stands on the axis; nullopt when its log does not say.
  std::function<std::optional<double>(const StepRecord&, const Position&)> place;
};

Axis steps_axis() {
  return {
      "over steps",
      "step (updates of the optimizer)",
      "step",
      1,
      {},
      "has no steps",
      [](const StepRecord& step, const Position&) {
        return std::optional<double>(static_cast<double>(step.step));
      }};
}

Axis tokens_axis() {
  return {
      "over tokens",
      "tokens trained on",
      "tokens",
      1,
      format_count,
      "does not say how many tokens a step has",
      [](const StepRecord&, const Position& position) {
        const auto tokens = static_cast<double>(position.tokens);
        return tokens > 0 ? std::optional<double>(tokens) : std::nullopt;
      }};
}

/// Times have the unit that suits the longest run.
Axis time_axis(const std::vector<std::vector<Position>>& all) {
  double longest = 0;
  for (const auto& positions : all) {
    for (const Position& position : positions) {
      longest = std::max(longest, position.seconds.value_or(0));
    }
  }
  const bool hours = longest >= 2 * 3600;
  const bool minutes = longest >= 2 * 60;
  const std::string unit = hours ? "hours" : minutes ? "minutes" : "seconds";
  return {
      "over time",
      "wall time of all starts, " + unit,
      unit,
      hours     ? 3600.0
      : minutes ? 60.0
                : 1.0,
      [](double value) { return format_number(value); },
      "has no times",
      [](const StepRecord&, const Position& position) { return position.seconds; }};
}

/// The losses of one run along an axis.
struct Curve {
  std::vector<Point> training;
  std::vector<Point> validation;
  std::int64_t left_out = 0; // steps that do not stand behind the one before them
};

Curve curve_of(const RunLog& log, const std::vector<Position>& positions, const Axis& axis) {
  Curve curve;
  std::map<std::int64_t, double> places; // of the steps
  for (std::size_t i = 0; i < log.steps.size(); ++i) {
    const std::optional<double> place = axis.place(log.steps[i], positions[i]);
    if (!place) {
      continue;
    }
    const double x = *place / axis.unit;
    if (!curve.training.empty() && x <= curve.training.back().first) {
      ++curve.left_out; // the run line of this start was lost, so that its time begins again
      continue;
    }
    curve.training.emplace_back(x, log.steps[i].loss);
    places[log.steps[i].step] = x;
  }
  for (const ValidationRecord& record : log.validations) {
    // A model may be validated before its first step.
    const auto found = places.find(record.step);
    const bool at_start = record.step == 0 && !places.empty();
    if (found != places.end() || at_start) {
      curve.validation.emplace_back(at_start ? 0 : found->second, record.loss);
    }
  }
  return curve;
}

constexpr double kShown = 150; // half lives of the smoothing in a long run

std::string
chart_of(const Axis& axis, const std::string& what, const std::vector<Series>& series, int height) {
  ChartOptions options;
  options.title = str(what, ", nats per token, ", axis.title);
  options.x_label = axis.label;
  options.x_name = axis.name;
  options.x_text = axis.text;
  options.y_text = [](double value) { return format_number(value); };
  options.height = height;
  options.readouts = 150;
  options.last_before = true;
  return series.empty() ? "" : line_chart(options, series);
}

/// Returns one chart, with remarks about the runs that it does not show.
std::string losses_over(
    const Comparison& comparison,
    const std::vector<std::vector<Position>>& positions,
    const Axis& axis,
    bool of_validation,
    int height) {
  std::vector<Series> series;
  std::vector<std::string> not_shown;
  std::string out;
  for (std::size_t i = 0; i < comparison.runs.size(); ++i) {
    const ComparedRun& run = comparison.runs[i];
    const Curve curve = curve_of(run.log, positions[i], axis);
    if (curve.training.empty()) {
      not_shown.push_back(letter(i));
      continue;
    }
    if (curve.left_out > 0 && !of_validation) {
      out += remark(
          str(letter(i),
              ": ",
              curve.left_out,
              " steps are left out ",
              axis.title,
              ", because their times do not follow those before them."));
    }
    const auto half_life = std::round(static_cast<double>(curve.training.size()) / kShown);
    const bool smooth = half_life > 1 && !of_validation;
    const auto& points = of_validation ? curve.validation : curve.training;
    if (points.empty()) {
      continue;
    }
    series.push_back(
        {str(letter(i),
             ": ",
             run.name,
             smooth ? str(", smoothed: weights halve every ", half_life, " steps to both sides")
                    : ""),
         style_of(i),
         of_validation,
         smooth ? smoothed(points, half_life) : points,
         letter(i)});
  }
  out = chart_of(axis, of_validation ? "Validation loss" : "Training loss", series, height) + out;
  if (!not_shown.empty() && !of_validation) {
    out += remark(str("Not shown, because the log ", axis.missing, ": ", join(not_shown, ", ")));
  }
  return "<div>" + out + "</div>\n";
}

std::string losses(const Comparison& comparison) {
  std::vector<std::vector<Position>> all;
  bool validated = false;
  for (const ComparedRun& run : comparison.runs) {
    all.push_back(positions(run.log));
    validated = validated || !run.log.validations.empty();
  }
  std::string out = "<h2>Training loss</h2>\n";
  const auto charts = [&](bool of_validation) {
    out += losses_over(comparison, all, steps_axis(), of_validation, 300);
    out += "<div class=\"pair\">\n";
    out += losses_over(comparison, all, tokens_axis(), of_validation, 240);
    out += losses_over(comparison, all, time_axis(all), of_validation, 240);
    out += "</div>\n";
  };
  charts(false);
  out += "<h2>Validation loss</h2>\n";
  if (validated) {
    charts(true);
  } else {
    out += remark("No log has a validation loss.");
  }
  return out;
}

std::string swatch(std::size_t run) {
  return fill(
      "<svg width=\"22\" height=\"10\"><path class=\"{}\" d=\"M1 5h20\"/></svg>", {style_of(run)});
}

std::string runs_table(const Comparison& comparison) {
  std::string out =
      "<div class=\"scroll\"><table class=\"runs\"><tr><th>run</th><th>log</th><th>model</th>"
      "<th>layout</th><th>started</th></tr>\n";
  for (std::size_t i = 0; i < comparison.runs.size(); ++i) {
    const ComparedRun& run = comparison.runs[i];
    const RunFacts& facts = run.log.run;
    out += fill(
        "<tr><td>{}{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
        {swatch(i),
         letter(i),
         escape(run.name),
         escape(facts.model),
         escape(words::layout(facts)),
         escape(facts.started)});
  }
  return out + "</table></div>\n";
}

std::string
compared_table(const std::string& name, const std::vector<ComparedRow>& rows, std::size_t runs) {
  std::string out =
      fill("<div class=\"scroll\"><table class=\"compared\"><tr><th>{}</th>", {escape(name)});
  for (std::size_t i = 0; i < runs; ++i) {
    out += fill("<th>{}</th>", {letter(i)});
  }
  out += "</tr>\n";
  for (const ComparedRow& row : rows) {
    out += fill("<tr><th>{}</th>", {escape(row.name)});
    for (const std::string& value : row.values) {
      out += fill("<td>{}</td>", {escape(value)});
    }
    out += "</tr>\n";
  }
  return out + "</table></div>\n";
}

std::string differences_section(const Comparison& comparison) {
  const Differences different = differences(comparison);
  const std::size_t runs = comparison.runs.size();
  std::string out = "<h2>What differs</h2>\n";
  out += different.facts.empty()
             ? remark("The runs differ in none of the facts that a log states of a run.")
             : compared_table("of the run", different.facts, runs);
  out += "<h3>Configuration</h3>\n";
  out += different.configuration.empty()
             ? remark("No key of the configurations that the logs hold differs.")
             : compared_table("key", different.configuration, runs);
  for (std::size_t i = 0; i < runs; ++i) {
    if (comparison.runs[i].log.run.config_json.empty()) {
      out += remark(letter(i) + ": The log has no configuration.");
    }
  }
  return out;
}

std::string configurations(const Comparison& comparison) {
  std::string out;
  for (std::size_t i = 0; i < comparison.runs.size(); ++i) {
    const ComparedRun& run = comparison.runs[i];
    if (!run.log.run.config_json.empty()) {
      out += fill(
          "<details><summary>Configuration of {}: {}</summary><pre>{}</pre></details>\n",
          {letter(i), escape(run.name), escape(run.log.run.config_json)});
    }
  }
  return out;
}

} // namespace

std::string to_html(const Comparison& comparison) {
  check_comparable(comparison);
  const std::size_t runs = comparison.runs.size();
  const std::string title = str("Comparison of ", runs, " runs");
  std::string out = page_begin(title, str(kStyle, kComparisonStyle));
  out += fill("<h1>{}</h1>\n", {title});
  out += runs_table(comparison);
  for (const std::string& limit : remarks(comparison)) {
    out += remark(limit);
  }
  out += "<h2>At the end</h2>\n" + compared_table("figure", final_figures(comparison), runs);
  out += losses(comparison);
  out += differences_section(comparison);
  out += configurations(comparison);
  return out + page_end();
}

} // namespace tessera::report
