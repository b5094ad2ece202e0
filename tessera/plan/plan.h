#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/schedule/schedule.h"
#include "tessera/topology/rank_layout.h"

namespace tessera::plans {

/// What was decided, as a value: the runtime executes it and cannot tell
/// whether a person, the partitioner, the planner or a test wrote it.
struct Plan {
  int version = 1;
  std::string model = {}; // for messages; "" when unknown
  topology::Degrees degrees = {};
  std::string placement = "DPT";
  std::string schedule = "interleaved";
  int microbatches = 1;
  int active_microbatches = 0; // 0: partitions + 2
  /// module path -> pp rank, for every interceptable module; "" is the root.
  std::map<std::string, int> partition = {};
  /// Order of a "custom" schedule, as schedule::parse_order reads it.
  std::string custom_schedule = {};

  bool operator==(const Plan&) const = default;

  /// `active_microbatches`, or pipeline degree + 2.
  int effective_active_microbatches() const;
};

/// Returns whether each microbatch ends, backward included, before the next begins.
bool runs_one_at_a_time(const Plan& plan);
void run_one_at_a_time(Plan& plan);

std::string to_json(const Plan& plan);
/// Any bytes are safe. Checks everything but the fit to a model and a world.
/// Throws: PlanError naming the field, what was found and what is allowed.
Plan plan_from_json(const std::string& text);

/// Writes or reads a plan file. Writing replaces the file in one step, so that
/// a reader never sees half a plan.
/// Throws: PlanError naming the file.
void save_plan(const Plan& plan, const std::string& path);
Plan load_plan(const std::string& path);

/// Checks the plan by itself: version, degrees, placement, schedule, and that
/// every entry of the partition is one of the pp ranks.
/// Throws: PlanError naming the field.
void validate(const Plan& plan);

/// Throws: PlanError when a path of `modules` has no entry, an entry is outside
/// 0 .. pipeline - 1, or the plan names a module that the model lacks.
void validate(const Plan& plan, const std::vector<std::string>& modules);

/// The schedule the plan asks for.
/// Throws: PlanError naming the field.
std::unique_ptr<schedule::Schedule> make_schedule(const Plan& plan);

} // namespace tessera::plans
