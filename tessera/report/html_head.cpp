#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/report/format.h"
#include "tessera/report/html_sections.h"
#include "tessera/report/markup.h"

namespace tessera::report {

namespace {

std::string card(const std::string& value, const std::string& name, const std::string& more) {
  return fill(
      "<div><b>{}</b><span>{}</span>{}</div>\n",
      {escape(value), escape(name), more.empty() ? "" : fill("<small>{}</small>", {escape(more)})});
}

std::string badge(const Summary& summary) {
  const std::string& name = summary.state.name;
  return fill(
      "<p class=\"state\"><i class=\"{}\"></i>{}</p>\n",
      {escape(name), escape(words::state(summary))});
}

std::string loss_cards(const Summary& summary) {
  std::string out;
  if (summary.last_loss) {
    const bool one = summary.last_loss_from == *summary.last_step;
    out += card(
        format_number(*summary.last_loss),
        one ? str("training loss at step ", *summary.last_step)
            : str("training loss, mean of steps ",
                  summary.last_loss_from,
                  " to ",
                  *summary.last_step),
        "");
  }
  if (summary.best_validation_loss) {
    out += card(
        format_number(*summary.best_validation_loss),
        str("best validation loss, at step ", summary.best_validation_step),
        str("perplexity ", format_number(perplexity(*summary.best_validation_loss))));
  }
  return out;
}

std::string speed_cards(const ReportInput& input, const Summary& summary) {
  std::string out;
  if (summary.tokens_per_second) {
    out += card(
        format_count(summary.tokens_per_second->median),
        "tokens per second",
        words::spread(*summary.tokens_per_second, format_count));
  }
  if (summary.step_seconds) {
    out += card(
        format_seconds(summary.step_seconds->median),
        "time of a step",
        words::spread(*summary.step_seconds, format_seconds));
  }
  if (summary.bubble_share) {
    out += card(
        format_share(summary.bubble_share->median),
        summary.bubble_of_timeline ? "pipeline bubble, of the timeline" : "pipeline bubble",
        words::spread(*summary.bubble_share, format_share));
  }
  const std::string mfu = words::mfu(input, summary);
  const std::size_t end = mfu.find(" of "); // ends the figure, if there is one
  out += summary.mfu ? card(mfu.substr(0, end), "model FLOPs utilisation", mfu.substr(end + 1))
                     : card("unknown", "model FLOPs utilisation", mfu.substr(mfu.find(':') + 2));
  return out;
}

std::string total_cards(const Summary& summary) {
  std::string out;
  if (summary.wall_seconds) {
    const double seconds = *summary.wall_seconds;
    out += card(
        format_seconds(seconds),
        "wall time, start and validation included",
        seconds > 0 && summary.tokens > 0
            ? str(format_count(static_cast<double>(summary.tokens) / seconds),
                  " tokens per second over all of it")
            : "");
  }
  if (summary.tokens > 0) {
    out += card(format_count(static_cast<double>(summary.tokens)), "tokens trained on", "");
  }
  const auto& memory = summary.peak_memory_bytes;
  if (!memory.empty()) {
    out += card(
        format_bytes(static_cast<double>(*std::max_element(memory.begin(), memory.end()))),
        "most memory of a rank",
        "");
  }
  return out;
}

std::string row(const std::string& name, const std::string& value) {
  return value.empty() ? ""
                       : fill("<tr><th>{}</th><td>{}</td></tr>\n", {escape(name), escape(value)});
}

/// Returns the command quoted for a shell.
std::string command_line(const std::vector<std::string>& words) {
  constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+./:,@%";
  std::string out;
  for (const std::string& word : words) {
    out += out.empty() ? "" : " ";
    if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) {
      out += word;
      continue;
    }
    out += '\'';
    for (const char c : word) {
      out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    }
    out += '\'';
  }
  return out;
}

std::string starts_table(const RunLog& log) {
  std::string out =
      "<h3>Starts</h3>\n<div class=\"scroll\"><table class=\"list\"><tr><th>started</th>"
      "<th>first step</th><th>last step</th><th>wall time</th><th>ranks</th><th>end</th></tr>\n";
  for (std::size_t i = 0; i < log.starts.size(); ++i) {
    const Start& start = log.starts[i];
    const RunFacts& run = start.facts;
    out += fill(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
        {escape(run.started.empty() ? "-" : run.started),
         i == 0 && run.first_step == 1 ? "1" : str("resumed at step ", run.first_step),
         start.last_step > 0 ? str(start.last_step) : "none",
         start.elapsed_seconds > 0 ? format_seconds(start.elapsed_seconds) : "-",
         str(run.world_size),
         escape(start.end ? start.end->state : "no end recorded")});
  }
  return out + "</table></div>\n";
}

} // namespace

std::string page_begin(const std::string& title, const std::string& style) {
  return fill(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'; img-src data:\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<title>{} - Tessera</title>\n"
      "<style>{}</style></head>\n<body>\n",
      {escape(title), style});
}

std::string page_end() {
  return "</body></html>\n";
}

std::string remark(const std::string& text) {
  return fill("<p class=\"note\">{}</p>\n", {escape(text)});
}

std::string head_section(const ReportInput& input, const Summary& summary) {
  const RunFacts& run = input.log.run;
  std::vector<std::string> facts;
  if (run.parameters > 0) {
    facts.push_back(format_count(static_cast<double>(run.parameters)) + " parameters");
  }
  facts.push_back(run.precision);
  facts.push_back(words::layout(run));
  facts.push_back(
      str(run.microbatches,
          run.microbatches == 1 ? " microbatch" : " microbatches",
          run.schedule.empty() || run.pipeline_parallel_degree == 1 ? "" : ", " + run.schedule));
  std::string line;
  for (const std::string& fact : facts) {
    line += fact.empty() ? "" : (line.empty() ? "" : " &middot; ") + escape(fact);
  }
  std::string out = fill(
      "<h1>{}</h1>\n<p class=\"under\">{}</p>\n",
      {escape(run.model.empty() ? "Training run" : run.model), line});
  if (!input.log.starts.empty()) {
    out += badge(summary);
  }
  out += "<div class=\"figures\">\n";
  out += loss_cards(summary) + speed_cards(input, summary) + total_cards(summary);
  return out + "</div>\n";
}

std::string run_section(const ReportInput& input, const Summary& summary) {
  const RunLog& log = input.log;
  const RunFacts& run = log.run;
  std::string out = "<h2>Run</h2>\n<table class=\"facts\">\n";
  out += row("state", log.starts.empty() ? "" : words::state(summary));
  out +=
      row("steps",
          run.steps > 0 ? str(summary.state.step, " of ", run.steps) : str(summary.state.step));
  out += row("command", command_line(run.command));
  out += row("program", run.program);
  out += row("run id", run.run_id);
  out += row("data", run.data);
  out += row("operations of a device", words::device_flops(input, summary));
  out += row("MFU", words::mfu(input, summary));
  if (run.flops_per_token > 0) {
    out += row(
        "FLOPs per token",
        format_count(run.flops_per_token) +
            ": 6 for each weight of a matrix product, 12 x layers x width x sequence for attention"
            " (counted as if it were not causal)");
  }
  out +=
      row("bubble",
          "share of ranks x time from the first forward to the last backward of a step in which a "
          "rank ran neither");
  out += "</table>\n";
  return out + (log.starts.empty() ? "" : starts_table(log));
}

} // namespace tessera::report
