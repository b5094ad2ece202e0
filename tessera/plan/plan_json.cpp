#include <filesystem>
#include <fstream>

#include <unistd.h>

#include "tessera/base/files.h"
#include "tessera/base/json/read.h"
#include "tessera/base/json/write.h"
#include "tessera/plan/plan.h"
#include "tessera/topology/degrees_json.h"

namespace tessera::plans {

template <typename Visit>
void describe(Visit& visit, Plan& plan) {
  using enum form::Presence;
  visit.head(nullptr, Plan{}.version);
  visit({.name = "model", .presence = kOptional}, plan.model);
  visit({.name = "degrees"}, plan.degrees);
  visit({.name = "placement"}, plan.placement);
  visit({.name = "schedule"}, plan.schedule);
  visit({.name = "custom_schedule", .presence = kIfSaid}, plan.custom_schedule);
  visit({.name = "microbatches", .bounds = form::at_least(0)}, plan.microbatches);
  visit(
      {.name = "active_microbatches", .bounds = form::at_least(0), .presence = kOptional},
      plan.active_microbatches);
  visit({.name = "partition"}, plan.partition);
}

std::string to_json(const Plan& plan) {
  return indented(form::write(plan), 2) + "\n";
}

Plan plan_from_json(const std::string& text) {
  const Plan plan = form::read_text<Plan, PlanError>(text, "plan", form::Wording::kWrite);
  validate(plan);
  return plan;
}

void save_plan(const Plan& plan, const std::string& path) {
  const std::string half = str(path, ".", getpid(), ".tmp");
  std::ofstream out(half, std::ios::binary);
  out << to_json(plan);
  out.close();
  std::error_code failure;
  if (out) {
    std::filesystem::rename(half, path, failure);
  }
  if (!out || failure) {
    std::error_code ignored;
    std::filesystem::remove(half, ignored);
    throw PlanError(
        str("plan file ",
            path,
            ": cannot be written",
            failure ? " (" + failure.message() + ")" : "",
            "; does its folder exist, and is there room?"));
  }
}

Plan load_plan(const std::string& path) {
  const FileContent content = try_read_file(path);
  if (!content.bytes) {
    throw PlanError(str("plan file ", path, ": cannot be read (", content.failure, ")"));
  }
  try {
    return plan_from_json(*content.bytes);
  } catch (const PlanError& error) {
    throw PlanError(str("plan file ", path, ": ", error.what()));
  }
}

} // namespace tessera::plans
