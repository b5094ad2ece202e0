#include "cli/train/planned_job.h"

#include "tessera/base/json/parse.h"
#include "tessera/planner/planned_config.h"
#include "tessera/planner/to_config.h"

#include "cli/train/job_text.h"

namespace tessera::cli {

namespace {

config::Config parallel_of(const OrderedJson& job) {
  const std::string said = with_precision(
                               job.contains("parallel") ? job["parallel"] : OrderedJson::object(),
                               job.value("precision", std::string("f32")))
                               .dump();
  return config::parse_config(said, "parallel");
}

} // namespace

std::string job_with_parallel(const std::string& job_json, const config::Config& parallel) {
  auto job = job_object(job_json, "the job");
  job.erase("strategy");
  job.erase("memory_limit_gib"); // of the plan that is made here
  config::Config planned = parallel;
  OrderedJson& optimizer = job["optimizer"];
  if (planned.sharded_data_parallel_degree > 1 && optimizer.contains("clip_norm")) {
    // Sharded gradients are clipped by a key of the configuration in place of the job's.
    planned.sdp_gradient_clipping = sharded_clipping(optimizer["clip_norm"].get<double>());
    optimizer.erase("clip_norm");
  }
  if (optimizer.empty()) {
    job.erase("optimizer");
  }
  OrderedJson result;
  result["parallel"] = OrderedJson::parse(planner::to_short_json(planned));
  for (const auto& item : job.items()) {
    if (item.key() != "parallel") {
      result[item.key()] = item.value();
    }
  }
  return result.dump(2) + "\n";
}

std::string job_with_plan(
    const std::string& job_json,
    const planner::Candidate& candidate,
    const cost::DescribedModel& model) {
  auto job = job_object(job_json, "the job");
  const config::Config base = parallel_of(job);
  if (candidate.strategy.activation_checkpointing &&
      job.value(kRecomputationKey, std::string("none")) == "none") {
    job[kRecomputationKey] = planner::recomputation_of(candidate.strategy);
  }
  return job_with_parallel(
      job.dump(), planner::with_plan(base, planner::to_config(candidate, model)));
}

std::vector<std::string> replaced_by_plan(
    const std::string& job_json,
    const planner::Candidate& candidate,
    const cost::DescribedModel& model) {
  return planner::replaced_keys(
      parallel_of(job_object(job_json, "the job")), planner::to_config(candidate, model));
}

double sharded_clipping(double clip_norm) {
  constexpr double kNothing = 1e30;
  return clip_norm > 0 ? clip_norm : kNothing;
}

std::string job_resuming_from(const std::string& job_json, const std::string& directory) {
  auto job = job_object(job_json, "the job");
  job["checkpoint"]["directory"] = directory;
  return job.dump(2) + "\n";
}

} // namespace tessera::cli
