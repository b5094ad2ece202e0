#include "tessera/report/compare/comparison.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/report/format.h"
#include "tessera/report/report.h"

namespace tessera::report {

namespace {

constexpr std::size_t kLast = 10; // steps over which a final loss is averaged, as in summarize

using Step = std::vector<StepRecord>::const_iterator;

/// Returns the record of a step, the end where the log does not have it.
Step find_step(const RunLog& log, std::int64_t step) {
  const auto found = std::lower_bound(
      log.steps.begin(), log.steps.end(), step, [](const StepRecord& record, std::int64_t wanted) {
        return record.step < wanted;
      });
  return found != log.steps.end() && found->step == step ? found : log.steps.end();
}

/// Returns the mean of the losses of up to kLast steps that end with `step`, which the log has.
double loss_at(const RunLog& log, std::int64_t step) {
  const Step found = find_step(log, step);
  const auto count = std::min<std::ptrdiff_t>(kLast, found - log.steps.begin() + 1);
  const double sum = std::accumulate(
      found + 1 - count, found + 1, 0.0, [](double s, const StepRecord& r) { return s + r.loss; });
  return sum / static_cast<double>(count);
}

/// Returns the last step that every log holds; nullopt when there is none.
std::optional<std::int64_t> last_common_step(const std::vector<ComparedRun>& runs) {
  const auto& first = runs.front().log.steps;
  const auto common = std::find_if(first.rbegin(), first.rend(), [&](const StepRecord& step) {
    return std::all_of(runs.begin(), runs.end(), [&](const ComparedRun& run) {
      return find_step(run.log, step.step) != run.log.steps.end();
    });
  });
  return common == first.rend() ? std::nullopt : std::optional<std::int64_t>(common->step);
}

std::string number(double value) {
  return format_number(value);
}

std::string at_step(double value, std::int64_t step) {
  return str(format_number(value), " (step ", step, ")");
}

/// One run with its figures.
struct Row {
  const RunLog& log;
  Summary summary;
};

std::vector<Row> rows_of(const Comparison& comparison) {
  std::vector<Row> rows;
  for (const ComparedRun& run : comparison.runs) {
    ReportInput input;
    input.log = run.log;
    input.now = comparison.now;
    rows.push_back({run.log, summarize(input)});
  }
  return rows;
}

std::string with_reason(const Summary& summary) {
  const State& state = summary.state;
  const std::string name = state.name == "open" ? "no end recorded" : state.name;
  return state.reason.empty() ? name : name + ": " + state.reason;
}

std::string memory_of(const Summary& summary, bool of_all_ranks) {
  const auto& peaks = summary.peak_memory_bytes;
  if (peaks.empty()) {
    return "";
  }
  const std::int64_t bytes = of_all_ranks
                                 ? std::accumulate(peaks.begin(), peaks.end(), std::int64_t{0})
                                 : *std::max_element(peaks.begin(), peaks.end());
  return format_bytes(static_cast<double>(bytes));
}

std::string left_out(const RunLog& log) {
  const auto count = std::count_if(log.steps.begin(), log.steps.end(), [](const StepRecord& step) {
    return !step.skipped.empty();
  });
  return count > 0 ? str(count) : "";
}

} // namespace

std::string letter(std::size_t run) {
  return std::string(1, static_cast<char>('A' + run));
}

void check_comparable(const Comparison& comparison) {
  const auto& runs = comparison.runs;
  if (runs.size() < 2 || runs.size() > kMostComparedRuns) {
    throw Error(
        str("a comparison shows 2 to ", kMostComparedRuns, " runs; these are ", runs.size()));
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const std::string& id = runs[i].log.run.run_id;
      if (!id.empty() && id == runs[j].log.run.run_id) {
        throw Error(
            str("'",
                runs[j].name,
                "' and '",
                runs[i].name,
                "' hold the same run, ",
                id,
                "; name each run once"));
      }
    }
  }
}

std::vector<ComparedRow> final_figures(const Comparison& comparison) {
  const std::vector<Row> runs = rows_of(comparison);
  std::vector<ComparedRow> figures;
  // Adds a figure that `get` returns as text, "" where a run does not have it.
  const auto add = [&](const std::string& name, auto get) {
    ComparedRow row{name, {}};
    for (const Row& run : runs) {
      const std::string value = get(run);
      row.values.push_back(value.empty() ? "-" : value);
    }
    const auto missing = std::count(row.values.begin(), row.values.end(), "-");
    if (static_cast<std::size_t>(missing) < runs.size()) {
      figures.push_back(std::move(row));
    }
  };
  const auto text = [](const auto& value, auto format) {
    return value ? format(*value) : std::string();
  };
  const auto median = [&text](const std::optional<Spread>& spread, auto format) {
    return text(spread, [&](const Spread& s) { return format(s.median); });
  };
  add("end", [](const Row& run) { return with_reason(run.summary); });
  add("last step", [](const Row& run) {
    const std::int64_t of = run.log.run.steps;
    return str(run.summary.state.step, of > 0 ? str(" of ", of) : "");
  });
  add("training loss, mean of the last steps, at most 10",
      [&](const Row& run) { return text(run.summary.last_loss, number); });
  if (const auto common = last_common_step(comparison.runs)) {
    add(str("training loss at step ", *common, ", the last that all have, averaged alike"),
        [&](const Row& run) { return number(loss_at(run.log, *common)); });
  }
  add("best validation loss", [](const Row& run) {
    const auto& loss = run.summary.best_validation_loss;
    return loss ? at_step(*loss, run.summary.best_validation_step) : "";
  });
  add("last validation loss", [](const Row& run) {
    const auto& all = run.log.validations;
    return all.empty() ? "" : at_step(all.back().loss, all.back().step);
  });
  add("tokens per second, median",
      [&](const Row& run) { return median(run.summary.tokens_per_second, format_count); });
  add("time of a step, median",
      [&](const Row& run) { return median(run.summary.step_seconds, format_seconds); });
  add("pipeline bubble, median",
      [&](const Row& run) { return median(run.summary.bubble_share, format_share); });
  add("model FLOPs utilisation",
      [&](const Row& run) { return text(run.summary.mfu, format_share); });
  add("wall time", [&](const Row& run) { return text(run.summary.wall_seconds, format_seconds); });
  add("tokens trained on", [](const Row& run) {
    const std::int64_t tokens = run.summary.tokens;
    return tokens > 0 ? format_count(static_cast<double>(tokens)) : "";
  });
  add("most memory of a rank", [](const Row& run) { return memory_of(run.summary, false); });
  add("memory of all ranks, sum of peaks",
      [](const Row& run) { return memory_of(run.summary, true); });
  add("restarts",
      [](const Row& run) { return run.log.starts.empty() ? "" : str(run.log.starts.size() - 1); });
  add("updates left out", [](const Row& run) { return left_out(run.log); });
  return figures;
}

std::vector<std::string> remarks(const Comparison& comparison) {
  std::vector<std::string> out;
  const auto& runs = comparison.runs;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const RunLog& log = runs[i].log;
    const auto say = [&](const std::string& what) { out.push_back(str(letter(i), ": ", what)); };
    for (const std::string& lost : words::damage(log)) {
      say(lost);
    }
    if (log.steps.empty()) {
      say("The log has no steps yet.");
      continue;
    }
    if (log.steps.front().step > 1) {
      say(
          str("The log begins with step ",
              log.steps.front().step,
              "; tokens and time are counted from there."));
    }
    const auto broken =
        std::find_if(log.steps.begin(), log.steps.end(), [](const StepRecord& step) {
          return !std::isfinite(step.loss);
        });
    if (broken != log.steps.end()) {
      say(str("The training loss was not finite at step ", broken->step, "."));
    }
  }
  const bool other_data = std::any_of(runs.begin(), runs.end(), [&](const ComparedRun& run) {
    return run.log.run.data != runs.front().log.run.data;
  });
  if (other_data) {
    out.emplace_back(
        "The runs name different data. Losses are per token of each run's own tokenizer, and are "
        "comparable only where data and tokenizer are the same.");
  }
  return out;
}

} // namespace tessera::report
