#include <algorithm>
#include <cmath>
#include <map>

#include "tessera/base/error.h"
#include "tessera/report/bars.h"
#include "tessera/report/chart.h"
#include "tessera/report/format.h"
#include "tessera/report/html_sections.h"
#include "tessera/report/markup.h"
#include "tessera/report/report_style.h"

namespace tessera::report {

namespace {

std::string losses(const RunLog& log) {
  std::string out = "<h2>Loss</h2>\n";
  if (log.steps.empty() && log.validations.empty()) {
    return out + remark("The log has no steps yet.");
  }
  std::vector<Point> training;
  training.reserve(log.steps.size());
  for (const StepRecord& step : log.steps) {
    training.emplace_back(step.step, step.loss);
  }
  std::vector<Series> series;
  const auto half_life = std::round(static_cast<double>(training.size()) / 150);
  if (half_life > 1) {
    series.push_back({"training, each step", "raw", false, training, ""});
    series.push_back(
        {str("training, smoothed: weights halve every ", half_life, " steps to both sides"),
         "main",
         false,
         smoothed(training, half_life),
         "smoothed"});
  } else {
    series.push_back({"training, each step", "main", false, training, ""});
  }
  if (!log.validations.empty()) {
    Series validation{"validation", "second", true, {}, "validation"};
    for (const ValidationRecord& record : log.validations) {
      validation.points.emplace_back(record.step, record.loss);
    }
    series.push_back(std::move(validation));
  }
  ChartOptions options;
  options.title = "Loss, nats per token";
  options.x_label = "step (updates of the optimizer)";
  options.x_name = "step";
  options.y_text = [](double value) { return format_number(value); };
  options.height = 300;
  options.readouts = 200;
  out += line_chart(options, series);
  const auto broken = std::find_if(log.steps.begin(), log.steps.end(), [](const StepRecord& step) {
    return !std::isfinite(step.loss);
  });
  if (broken != log.steps.end()) {
    out += remark(str("The training loss was not finite at step ", broken->step, "."));
  }
  std::string left_out;
  for (const StepRecord& step : log.steps) {
    left_out += step.skipped.empty() ? "" : str(left_out.empty() ? "" : ", ", step.step);
  }
  if (!left_out.empty()) {
    out += remark(str("The update was left out at steps ", left_out, "."));
  }
  return out;
}

/// Returns a chart of one figure of every step; "" when no step has it.
template <typename Get>
std::string chart_of(
    const RunLog& log,
    const std::string& title,
    std::string (*y_text)(double),
    bool from_zero,
    Get get) {
  Series series{title, "main", false, {}, ""};
  for (const StepRecord& step : log.steps) {
    const std::optional<double> value = get(step);
    if (value) {
      series.points.emplace_back(step.step, *value);
    }
  }
  if (series.points.empty()) {
    return "";
  }
  ChartOptions options;
  options.title = title;
  options.x_label = "step";
  options.x_name = "step";
  options.y_text = y_text;
  options.from_zero = from_zero;
  options.height = 170;
  options.readouts = 100;
  return line_chart(options, {series});
}

std::string progress(const RunLog& log) {
  if (log.steps.empty()) {
    return "";
  }
  using Value = std::optional<double>;
  const auto plain = [](double value) { return format_number(value); };
  std::string out = "<h2>Progress</h2>\n<div class=\"pair\">\n";
  out += chart_of(log, "Tokens per second", format_count, true, [](const StepRecord& step) {
    return Value(step.tokens_per_second);
  });
  out += chart_of(
      log, "Time of a step (wall clock)", format_seconds, true, [](const StepRecord& step) {
        return Value(step.step_seconds);
      });
  out += chart_of(log, "Learning rate", plain, true, [](const StepRecord& step) {
    return Value(step.learning_rate);
  });
  out +=
      chart_of(log, "Gradient norm (L2, before clipping)", plain, true, [](const StepRecord& step) {
        return step.grad_norm;
      });
  out += chart_of(
      log,
      "Pipeline bubble (share of ranks x time)",
      format_share,
      true,
      [](const StepRecord& step) { return step.bubble_share; });
  return out + "</div>\n";
}

std::string traffic(const RunLog& log) {
  std::string out = "<h2>Bytes per group</h2>\n";
  std::map<std::string, TrafficRecord> latest; // the last record counts everything since the start
  for (const TrafficRecord& record : log.traffic) {
    latest[record.group] = record;
  }
  if (latest.empty()) {
    return out + remark("The log has no traffic.");
  }
  std::vector<Bar> bars;
  for (const auto& entry : latest) {
    const auto bytes = static_cast<double>(entry.second.bytes);
    bars.push_back(
        {entry.first,
         bytes,
         0,
         str(format_bytes(bytes),
             " in ",
             format_count(static_cast<double>(entry.second.calls)),
             " calls")});
  }
  std::stable_sort(
      bars.begin(), bars.end(), [](const Bar& a, const Bar& b) { return a.value > b.value; });
  const char* since = log.starts.size() > 1 ? "newest start" : "start";
  return out + fill("<p class=\"under\">What left all ranks since the {}.</p>\n", {since}) +
         bar_chart(bars);
}

std::string memory(const RunLog& log, const Summary& summary) {
  std::string out = "<h2>Memory per rank</h2>\n";
  const auto& peak = summary.peak_memory_bytes;
  if (peak.empty()) {
    return out + remark("The log has no memory figures.");
  }
  const auto last = std::find_if(log.steps.rbegin(), log.steps.rend(), [](const StepRecord& step) {
    return !step.memory_bytes.empty();
  });
  std::vector<Bar> bars;
  for (std::size_t rank = 0; rank < peak.size(); ++rank) {
    const double now =
        rank < last->memory_bytes.size() ? static_cast<double>(last->memory_bytes[rank]) : 0;
    const std::string host =
        rank < log.run.hosts.size() ? " on " + log.run.hosts[rank] : std::string();
    const auto most = static_cast<double>(peak[rank]);
    std::string text = str("peak ", format_bytes(most), ", last ", format_bytes(now));
    if (rank < summary.peak_tensor_bytes.size()) {
      const auto tensors = static_cast<double>(summary.peak_tensor_bytes[rank]);
      text += str(", tensors at most ", format_bytes(tensors));
    }
    bars.push_back({str("rank ", rank, host), most, now, text});
  }
  return out + bar_chart(bars);
}

std::string samples(const RunLog& log) {
  if (log.samples.empty()) {
    return "";
  }
  std::string out = "<h2>Text it writes</h2>\n";
  for (const SampleRecord& sample : log.samples) {
    out +=
        str("<figure><figcaption>step ",
            sample.step,
            "</figcaption><pre><b>",
            escape(sample.prompt),
            "</b>",
            escape(sample.text),
            "</pre></figure>\n");
  }
  return out;
}

std::string partition(const RunLog& log) {
  std::string out = "<h2>Partition</h2>\n";
  if (log.partition_svg.empty()) {
    return out + remark("The log has no partition tree.");
  }
  return out + fill(
                   "<div class=\"scroll tree\"><img alt=\"module tree, coloured by pipeline rank\" "
                   "src=\"data:image/svg+xml;base64,{}\"></div>\n",
                   {base64(log.partition_svg)});
}

std::string documents(const RunLog& log) {
  std::string out = "<h2>What was asked and decided</h2>\n";
  const auto add = [&out](const char* name, const std::string& json) {
    if (!json.empty()) {
      out += str("<details><summary>", name, "</summary><pre>", escape(json), "</pre></details>\n");
    }
  };
  add("Configuration", log.run.config_json);
  add("Plan", log.run.plan_json);
  if (log.run.config_json.empty() && log.run.plan_json.empty()) {
    out += remark("The log has neither configuration nor plan.");
  }
  return out;
}

} // namespace

std::string to_html(const ReportInput& input) {
  const Summary summary = summarize(input);
  const RunLog& log = input.log;
  std::string out = page_begin(log.run.model.empty() ? "Training run" : log.run.model, kStyle);
  out += head_section(input, summary);
  for (const std::string& lost : words::damage(log)) {
    out += remark(lost);
  }
  out += losses(log);
  out += pipeline_section(input.timeline, input.simulated);
  out += progress(log);
  out += memory(log, summary);
  out += traffic(log);
  out += partition(log);
  out += samples(log);
  out += run_section(input, summary);
  out += documents(log);
  return out + page_end();
}

} // namespace tessera::report
