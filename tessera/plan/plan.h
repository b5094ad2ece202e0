#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tessera/topology/rank_layout.h"

namespace tessera::plan {

/// What was decided, as a value: the runtime executes it and cannot tell
/// whether a person, the partitioner, the planner or a test wrote it.
struct Plan {
  int version = 1;
  std::string model; // for messages; "" when unknown
  topology::Degrees degrees;
  std::string placement = "DPT";
  std::string schedule = "interleaved";
  int microbatches = 1;
  int active_microbatches = 0; // 0: partitions + 2
  /// module path -> pp rank, for every interceptable module.
  std::map<std::string, int> partition;
};

std::string to_json(const Plan& plan);
/// Throws: PlanError naming the field, what was found and what is allowed.
Plan plan_from_json(const std::string& text);

/// Throws: PlanError when a path of `modules` has no entry, an entry is outside
/// 0 .. pipeline - 1, or the plan names a module that the model lacks.
void validate(const Plan& plan, const std::vector<std::string>& modules);

} // namespace tessera::plan
