#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include "tessera/base/error.h"
#include "tessera/plan/plan.h"
#include "tessera/planner/decision.h"
#include "tessera/planner/description.h"
#include "tessera/planner/strategies_csv.h"

#include "cli/command.h"
#include "cli/planning.h"

namespace tessera::cli {

namespace {

struct Options {
  PlanningInput input;
  bool schema = false;
  std::string price;
  int explain = 0;
  std::string config_file;
  std::string plan_file;
};

void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
}

const planner::Candidate& first_runnable(
    const planner::SearchResult& result,
    const cost::DescribedModel& model) {
  for (const planner::Candidate& candidate : result.best) {
    if (!planner::not_runnable(candidate, model)) {
      return candidate;
    }
  }
  throw PlanError(
      str("none of the ",
          result.best.size(),
          " best strategies runs in this version: the first, for one, ",
          *planner::not_runnable(result.best.front(), model),
          "; take another --method"));
}

void write_decision(
    const Options& options,
    const planner::SearchResult& result,
    const cost::DescribedModel& model) {
  const planner::Candidate& chosen = first_runnable(result, model);
  if (!options.config_file.empty()) {
    write_text_file(
        options.config_file, planner::to_config_json(chosen, model));
  }
  if (!options.plan_file.empty()) {
    plan::save_plan(planner::to_plan(chosen, model), options.plan_file);
  }
  bool in_order = true;
  std::string order;
  for (std::size_t i = 0; i < chosen.node_order.size(); ++i) {
    in_order = in_order && chosen.node_order[i] == static_cast<int>(i);
    order += (i == 0 ? "" : ",") + std::to_string(chosen.node_order[i]);
  }
  std::printf(
      "written: pp %d  dp %d  microbatch size %d\n",
      chosen.strategy.pp,
      chosen.strategy.dp,
      chosen.strategy.microbatch_size);
  if (!in_order) {
    std::printf("start the hosts in the order %s\n", order.c_str());
  }
}

void run(const Options& options) {
  if (options.schema) {
    print(planner::schema());
    return;
  }
  const cost::DescribedModel model = model_of(options.input);
  const cost::Cluster cluster = cluster_of(options.input);
  if (!options.price.empty()) {
    print(planner::price_table(
        planner::read_text_file(options.price), options.price, model, cluster));
    return;
  }
  planner::SearchOptions search = options.input.search;
  search.keep = std::max(search.keep, options.explain);
  // What is written must run.
  search.runnable_only = search.runnable_only || !options.config_file.empty() ||
                         !options.plan_file.empty();
  const planner::SearchResult result =
      search_with_progress(model, cluster, search);
  std::printf(
      "%s on %s, global batch size %d: %d combinations of degrees and "
      "microbatch sizes\n",
      model.name.c_str(),
      cluster.name.c_str(),
      model.global_batch_size,
      result.considered);
  print(planner::summary(result));
  for (int i = 0;
       i < std::min(options.explain, static_cast<int>(result.best.size()));
       ++i) {
    const auto& candidate = result.best[static_cast<std::size_t>(i)];
    std::printf("\n%d. ", i + 1);
    print(planner::explain(candidate, model, cluster));
    if (const auto reason = planner::not_runnable(candidate, model)) {
      std::printf("  priced but not runnable: %s\n", reason->c_str());
    }
  }
  if (!options.config_file.empty() || !options.plan_file.empty()) {
    write_decision(options, result, model);
  }
}

void set_up(CLI::App& app) {
  auto options = std::make_shared<Options>();
  add_planning_options(app, options->input);
  app.add_flag(
      "--schema", options->schema, "print the form of both files and stop");
  app.add_option(
      "--price",
      options->price,
      "price the strategies of this CSV file instead of searching");
  app.add_option("--explain", options->explain, "show the parts of the K best")
      ->check(CLI::Range(0, 100000));
  app.add_option(
      "-o,--output",
      options->config_file,
      "write the configuration of the best strategy that runs");
  app.add_option(
      "--plan-file", options->plan_file, "also write it as a plan file");
  app.callback([options] { run(*options); });
}

const RegisterCommand registered({
    "plan",
    "find the strategy for a model and a cluster",
    set_up,
});

} // namespace

} // namespace tessera::cli
