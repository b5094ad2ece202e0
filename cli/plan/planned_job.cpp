#include "cli/plan/planned_job.h"

#include "tessera/base/json/parse.h"
#include "tessera/planner/planned_config.h"

#include "cli/train/job_text.h"

namespace tessera::cli {

std::string job_with_parallel(const std::string& job_json, const config::Config& parallel) {
  auto job = job_object(job_json, "the job");
  job.erase("strategy");
  OrderedJson result;
  result["parallel"] = OrderedJson::parse(planner::to_short_json(parallel));
  for (const auto& item : job.items()) {
    if (item.key() != "parallel") {
      result[item.key()] = item.value();
    }
  }
  return result.dump(2) + "\n";
}

} // namespace tessera::cli
