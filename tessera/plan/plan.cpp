#include "tessera/plan/plan.h"

#include <algorithm>
#include <limits>
#include <set>

#include "tessera/base/error.h"

namespace tessera::plans {

namespace {

constexpr int kVersion = 1;
constexpr int kMostMicrobatches = 1'000'000; // as the configuration's
constexpr int kActiveBeyondDegree = 2; // documented default
constexpr std::size_t kMostNames = 5; // of a list in a message

void check_at_least(const char* field, int value, int least) {
  if (value < least) {
    throw PlanError(str("plan: ", field, " is ", value, "; it must be at least ", least));
  }
}

// A damaged number must not make the check of an order allocate gigabytes.
void check_microbatches(int value) {
  check_at_least("microbatches", value, 1);
  if (value > kMostMicrobatches) {
    throw PlanError(
        str("plan: microbatches is ", value, "; it must be at most ", kMostMicrobatches));
  }
}

void check_positive_degrees(const topology::Degrees& degrees) {
  check_at_least("degrees.pipeline", degrees.pipeline, 1);
  check_at_least("degrees.tensor", degrees.tensor, 1);
  check_at_least("degrees.reduced_data", degrees.reduced_data, 1);
}

std::string name_of(const Plan& plan) {
  return plan.model.empty() ? "plan" : "plan of " + plan.model;
}

// "a", "b" and 3 more
std::string list_of(const std::vector<std::string>& paths) {
  std::string text;
  for (std::size_t i = 0; i < paths.size() && i < kMostNames; ++i) {
    text += (i == 0 ? "\"" : ", \"") + paths[i] + "\"";
  }
  return paths.size() > kMostNames ? str(text, " and ", paths.size() - kMostNames, " more") : text;
}

} // namespace

int Plan::effective_active_microbatches() const {
  if (active_microbatches > 0) {
    return active_microbatches;
  }
  constexpr int kMost = std::numeric_limits<int>::max() - kActiveBeyondDegree;
  return std::min(degrees.pipeline, kMost) + kActiveBeyondDegree;
}

bool runs_one_at_a_time(const Plan& plan) {
  return plan.schedule == "interleaved" && plan.effective_active_microbatches() == 1;
}

void run_one_at_a_time(Plan& plan) {
  plan.schedule = "interleaved";
  plan.active_microbatches = 1;
  plan.custom_schedule.clear();
}

void validate(const Plan& plan) {
  if (plan.version != kVersion) {
    throw PlanError(str(
        name_of(plan), ": version is ", plan.version, "; this program reads version ", kVersion));
  }
  check_positive_degrees(plan.degrees);
  check_microbatches(plan.microbatches);
  check_at_least("active_microbatches", plan.active_microbatches, 0);
  try {
    topology::PlacementStrategy{plan.placement};
  } catch (const ConfigError& error) {
    throw PlanError(str(name_of(plan), ": placement: ", error.what()));
  }
  make_schedule(plan);
  for (const auto& [path, rank] : plan.partition) {
    if (rank < 0 || rank >= plan.degrees.pipeline) {
      throw PlanError(
          str(name_of(plan),
              ": partition of \"",
              path,
              "\" is ",
              rank,
              "; pp ranks are 0 to ",
              plan.degrees.pipeline - 1));
    }
  }
}

void validate(const Plan& plan, const std::vector<std::string>& modules) {
  validate(plan);
  const std::set<std::string> known(modules.begin(), modules.end());
  std::vector<std::string> missing;
  for (const std::string& path : known) {
    if (plan.partition.count(path) == 0) {
      missing.push_back(path);
    }
  }
  if (!missing.empty()) {
    throw PlanError(
        str(name_of(plan),
            ": partition has no entry for ",
            list_of(missing),
            "; the model has ",
            known.size(),
            " modules and each needs its pp rank"));
  }
  std::vector<std::string> strange;
  for (const auto& [path, rank] : plan.partition) {
    if (known.count(path) == 0) {
      strange.push_back(path);
    }
  }
  if (!strange.empty()) {
    throw PlanError(
        str(name_of(plan),
            ": partition names ",
            list_of(strange),
            ", which the model does not have; was the plan made for another "
            "model?"));
  }
}

std::unique_ptr<schedule::Schedule> make_schedule(const Plan& plan) {
  try {
    return schedule::make_schedule(
        plan.schedule,
        plan.microbatches,
        plan.effective_active_microbatches(),
        schedule::parse_order(plan.custom_schedule));
  } catch (const ConfigError& error) {
    throw PlanError(str(name_of(plan), ": schedule: ", error.what()));
  }
}

} // namespace tessera::plans
