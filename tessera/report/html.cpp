#include <algorithm>
#include <cmath>
#include <map>

#include "tessera/base/error.h"
#include "tessera/report/chart.h"
#include "tessera/report/format.h"
#include "tessera/report/report.h"
#include "tessera/report/report_style.h"
#include "tessera/report/timeline_picture.h"

namespace tessera::report {

namespace {

constexpr std::size_t kMostSteps = 6;

std::string figure(const std::string& value, const std::string& name) {
  return str("<div><b>", escape(value), "</b><span>", escape(name), "</span></div>\n");
}

std::string none(const std::string& text) {
  return str("<p class=\"note\">", escape(text), "</p>\n");
}

std::string head(const ReportInput& input, const Summary& summary) {
  const RunFacts& run = input.log.run;
  std::string out = str(
      "<h1>", escape(run.model.empty() ? "Training run" : run.model), "</h1>\n<p class=\"under\">");
  std::vector<std::string> facts;
  const auto add = [&facts](const std::string& fact) {
    if (!fact.empty()) {
      facts.push_back(fact);
    }
  };
  if (run.parameters > 0) {
    add(format_count(static_cast<double>(run.parameters)) + " parameters");
  }
  add(run.precision);
  if (!run.data.empty()) {
    add("data: " + run.data);
  }
  if (!run.started.empty()) {
    add("started " + run.started);
  }
  if (run.first_step > 0) {
    add(str("resumed at step ", run.first_step));
  }
  for (std::size_t i = 0; i < facts.size(); ++i) {
    out += (i == 0 ? "" : " &middot; ") + escape(facts[i]);
  }
  out += "</p>\n<div class=\"figures\">\n";
  if (summary.last_step) {
    out += figure(
        format_number(*summary.last_loss), str("training loss at step ", *summary.last_step));
  }
  if (summary.best_validation_loss) {
    out += figure(format_number(*summary.best_validation_loss), "best validation loss");
  }
  if (summary.tokens_per_second) {
    out += figure(format_count(*summary.tokens_per_second), "tokens per second (median)");
  }
  if (summary.step_seconds) {
    out += figure(format_seconds(*summary.step_seconds), "a step takes (median)");
  }
  if (summary.bubble_share) {
    out += figure(format_share(*summary.bubble_share), "pipeline bubble");
  }
  const auto& memory = summary.peak_memory_bytes;
  if (!memory.empty()) {
    out += figure(
        format_bytes(static_cast<double>(*std::max_element(memory.begin(), memory.end()))),
        "most memory of a rank");
  }
  out += figure(
      str(run.world_size),
      str("ranks: ",
          run.pipeline_parallel_degree,
          " pp x ",
          run.tensor_parallel_degree,
          " tp x ",
          run.data_parallel_degree,
          " rdp"));
  out += figure(
      str(run.microbatches), "microbatches" + (run.schedule.empty() ? "" : ", " + run.schedule));
  return out + "</div>\n";
}

std::string losses(const RunLog& log) {
  std::string out = "<h2>Loss</h2>\n";
  if (log.steps.empty() && log.validations.empty()) {
    return out + none("The log has no steps yet.");
  }
  std::vector<Point> training;
  training.reserve(log.steps.size());
  for (const StepRecord& step : log.steps) {
    training.emplace_back(step.step, step.loss);
  }
  std::vector<Series> series;
  const double half_life = static_cast<double>(training.size()) / 150;
  if (half_life > 1) {
    series.push_back({"each step", "raw", false, training});
    series.push_back({"training (smoothed)", "main", false, smoothed(training, half_life)});
  } else {
    series.push_back({"training", "main", false, training});
  }
  if (!log.validations.empty()) {
    Series validation{"validation", "second", true, {}};
    for (const ValidationRecord& record : log.validations) {
      validation.points.emplace_back(record.step, record.loss);
    }
    series.push_back(std::move(validation));
  }
  ChartOptions options;
  options.title = "Loss";
  options.x_label = "step";
  options.y_text = [](double value) { return format_number(value); };
  options.width = 1120;
  options.height = 330;
  out += line_chart(options, series);
  const auto broken = std::find_if(log.steps.begin(), log.steps.end(), [](const StepRecord& step) {
    return !std::isfinite(step.loss);
  });
  if (broken != log.steps.end()) {
    out += none(str("The training loss was not finite at step ", broken->step, "."));
  }
  return out;
}

/// A chart of one number of every step; empty when no step has it.
template <typename Get>
std::string chart_of(
    const RunLog& log,
    const std::string& title,
    std::string (*y_text)(double),
    bool from_zero,
    Get get) {
  Series series{title, "main", false, {}};
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
  options.y_text = y_text;
  options.from_zero = from_zero;
  options.width = 560;
  options.height = 220;
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
  out += chart_of(log, "Time of a step", format_seconds, true, [](const StepRecord& step) {
    return Value(step.step_seconds);
  });
  out += chart_of(log, "Learning rate", plain, true, [](const StepRecord& step) {
    return Value(step.learning_rate);
  });
  out += chart_of(
      log, "Gradient norm", plain, true, [](const StepRecord& step) { return step.grad_norm; });
  out += chart_of(log, "Pipeline bubble", format_share, true, [](const StepRecord& step) {
    return step.bubble_share;
  });
  return out + "</div>\n";
}

/// The last step and others spread evenly over the recorded ones.
std::vector<int> shown_steps(const std::vector<int>& all) {
  if (all.size() <= kMostSteps) {
    return all;
  }
  std::vector<int> shown;
  for (std::size_t i = 0; i < kMostSteps; ++i) {
    shown.push_back(all[i * (all.size() - 1) / (kMostSteps - 1)]);
  }
  return shown;
}

std::string pipeline(const timeline::Timeline& timeline) {
  std::string out = "<h2>Pipeline</h2>\n";
  const auto all = timeline::steps(timeline);
  if (all.empty()) {
    return out + none("No timeline was recorded (tessera report --timeline FILE).");
  }
  out +=
      str("<p class=\"under key\"><i style=\"background:var(--forward)\"></i>"
          "forward<i style=\"background:var(--backward)\"></i>backward (the number "
          "is the microbatch)<i style=\"background:var(--comm)\"></i>communication"
          "<i style=\"background:var(--optimizer)\"></i>optimizer<i "
          "style=\"background:#f4f6f9;border:1px solid var(--line)\"></i>waiting. ",
          timeline.origin == "simulated" ? "Simulated." : "Measured.",
          "</p>\n<div class=\"choice\">\n<span class=\"said\">step</span>");
  const auto shown = shown_steps(all);
  std::string style = "<style>";
  for (const int step : shown) {
    out +=
        str("<input type=\"radio\" name=\"step\" id=\"s",
            step,
            "\"",
            step == shown.back() ? " checked" : "",
            "><label for=\"s",
            step,
            "\">",
            step,
            "</label>");
    style += str("#s", step, ":checked ~ #p", step, "{display:block}");
  }
  out +=
      str("<span class=\"gap\"></span><span class=\"said\">zoom</span>",
          "<input type=\"radio\" name=\"zoom\" id=\"z1\" checked>",
          "<label for=\"z1\">1x</label>");
  for (const int zoom : {2, 4, 8}) {
    out +=
        str("<input type=\"radio\" name=\"zoom\" class=\"z",
            zoom,
            "\" id=\"z",
            zoom,
            "\"><label for=\"z",
            zoom,
            "\">",
            zoom,
            "x</label>");
  }
  out += style + "</style>\n";
  for (const int step : shown) {
    out +=
        str("<div class=\"panel\" id=\"p",
            step,
            "\">\n",
            timeline_picture(timeline, step),
            "<p class=\"note\">Bubble of this step: ",
            format_share(timeline::bubble_share(timeline, step)),
            ".</p></div>\n");
  }
  out += "</div>\n";
  if (shown.size() < all.size()) {
    out += none(str(shown.size(), " of ", all.size(), " recorded steps are shown."));
  }
  return out;
}

std::string traffic(const RunLog& log) {
  std::string out = "<h2>Bytes per group</h2>\n";
  std::map<std::string, TrafficRecord> latest; // they count from the start
  for (const TrafficRecord& record : log.traffic) {
    latest[record.group] = record;
  }
  if (latest.empty()) {
    return out + none("The log has no traffic.");
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
  return out + "<p class=\"under\">What left all ranks since the run began.</p>\n" +
         bar_chart(bars, 1120);
}

std::string memory(const RunLog& log, const Summary& summary) {
  std::string out = "<h2>Memory per rank</h2>\n";
  const auto& peak = summary.peak_memory_bytes;
  if (peak.empty()) {
    return out + none("The log has no memory figures.");
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
    bars.push_back(
        {str("rank ", rank, host),
         most,
         now,
         str("peak ", format_bytes(most), ", last ", format_bytes(now))});
  }
  return out + bar_chart(bars, 1120);
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
    return out + none("The log has no partition tree.");
  }
  return out + str("<img class=\"tree\" alt=\"module tree, coloured by "
                   "pipeline rank\" "
                   "src=\"data:image/svg+xml;base64,",
                   base64(log.partition_svg),
                   "\">\n");
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
    out += none("The log has neither configuration nor plan.");
  }
  return out;
}

} // namespace

std::string to_html(const ReportInput& input) {
  const Summary summary = summarize(input);
  const RunLog& log = input.log;
  const std::string title = escape(log.run.model.empty() ? "Training run" : log.run.model);
  std::string out =
      str("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n",
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src "
          "'none'; style-src 'unsafe-inline'; img-src data:\">\n",
          "<meta name=\"viewport\" content=\"width=device-width\">\n<title>",
          title,
          " - Tessera</title>\n<style>",
          kStyle,
          "</style></head>\n<body>\n");
  out += head(input, summary);
  if (log.torn) {
    out += none("The last line of the log was cut off and is left out.");
  }
  if (log.bad_lines > 0) {
    out += none(tessera::str(
        "Lines of the log that were no records and are left out: ", log.bad_lines, "."));
  }
  out += losses(log);
  out += pipeline(input.timeline);
  out += progress(log);
  out += memory(log, summary);
  out += traffic(log);
  out += partition(log);
  out += samples(log);
  out += documents(log);
  return out + "</body></html>\n";
}

} // namespace tessera::report
