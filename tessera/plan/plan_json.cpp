#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/json.h"
#include "tessera/base/text.h"
#include "tessera/config/strict_json.h"
#include "tessera/plan/plan.h"

namespace tessera::plans {

namespace {

using config::describe;
using config::quoted;
using nlohmann::json;

using Names = std::vector<std::string>;

[[noreturn]] void fail(const std::string& field, const json& found, const std::string& write) {
  throw PlanError(str("plan: ", field, ": found ", describe(found), "; write ", write));
}

void require(const json& object, const std::string& place, const Names& names) {
  for (const std::string& name : names) {
    if (!object.contains(name)) {
      throw PlanError(str("plan: ", place, name, ": missing"));
    }
  }
}

void refuse_others(const json& object, const std::string& place, const Names& known) {
  for (const auto& [name, value] : object.items()) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      throw PlanError(
          str("plan: ",
              place,
              quoted(name),
              ": unknown field; the nearest known field is \"",
              nearest(name, known),
              "\""));
    }
  }
}

int read_int(const json& object, const std::string& name, const std::string& place = "") {
  std::int64_t number = 0;
  const json& value = object.at(name);
  if (!config::to_integer(value, number) || number < 0 ||
      number > std::numeric_limits<int>::max()) {
    fail(place + name, value, "an integer that is not negative");
  }
  return static_cast<int>(number);
}

std::string read_text(const json& object, const std::string& name) {
  const json& value = object.at(name);
  if (!value.is_string()) {
    fail(name, value, "a text");
  }
  return value.get<std::string>();
}

topology::Degrees read_degrees(const json& value) {
  const Names names = {"pipeline", "tensor", "reduced_data"};
  if (!value.is_object()) {
    fail("degrees", value, "an object of pipeline, tensor and reduced_data");
  }
  refuse_others(value, "degrees.", names);
  require(value, "degrees.", names);
  return {
      .pipeline = read_int(value, "pipeline", "degrees."),
      .tensor = read_int(value, "tensor", "degrees."),
      .reduced_data = read_int(value, "reduced_data", "degrees.")};
}

std::map<std::string, int> read_partition(const json& value) {
  std::map<std::string, int> partition;
  if (!config::to_integer_map(value, partition)) {
    fail("partition", value, "an object of module path to pp rank");
  }
  return partition;
}

void check_version(const json& root) {
  require(root, "", {"version"});
  const int version = read_int(root, "version");
  if (version != Plan{}.version) {
    throw PlanError(
        str("plan: version: found ", version, "; this program reads version ", Plan{}.version));
  }
}

Plan read(const json& root) {
  if (!root.is_object()) {
    throw PlanError(str("plan: found ", describe(root), "; write an object"));
  }
  // The version first: another one may have other fields.
  check_version(root);
  const Names required = {
      "version", "degrees", "placement", "schedule", "microbatches", "partition"};
  Names known = required;
  known.insert(known.end(), {"model", "active_microbatches", "custom_schedule"});
  refuse_others(root, "", known);
  require(root, "", required);
  Plan plan;
  plan.degrees = read_degrees(root.at("degrees"));
  plan.placement = read_text(root, "placement");
  plan.schedule = read_text(root, "schedule");
  plan.microbatches = read_int(root, "microbatches");
  plan.partition = read_partition(root.at("partition"));
  if (root.contains("model")) {
    plan.model = read_text(root, "model");
  }
  if (root.contains("active_microbatches")) {
    plan.active_microbatches = read_int(root, "active_microbatches");
  }
  if (root.contains("custom_schedule")) {
    plan.custom_schedule = read_text(root, "custom_schedule");
  }
  validate(plan);
  return plan;
}

} // namespace

std::string to_json(const Plan& plan) {
  nlohmann::ordered_json object;
  object["version"] = plan.version;
  object["model"] = plan.model;
  object["degrees"] = {
      {"pipeline", plan.degrees.pipeline},
      {"tensor", plan.degrees.tensor},
      {"reduced_data", plan.degrees.reduced_data}};
  object["placement"] = plan.placement;
  object["schedule"] = plan.schedule;
  if (!plan.custom_schedule.empty()) {
    object["custom_schedule"] = plan.custom_schedule;
  }
  object["microbatches"] = plan.microbatches;
  object["active_microbatches"] = plan.active_microbatches;
  object["partition"] = plan.partition;
  return object.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

Plan plan_from_json(const std::string& text) {
  try {
    return read(parse_json<json>(text, "plan"));
  } catch (const JsonError& error) {
    throw PlanError(error.what());
  }
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
  std::error_code failure;
  const bool regular = std::filesystem::is_regular_file(path, failure);
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (regular) {
    text << in.rdbuf();
  }
  if (!regular || !in) {
    throw PlanError(str("plan file ", path, ": cannot be read"));
  }
  try {
    return plan_from_json(text.str());
  } catch (const PlanError& error) {
    throw PlanError(str("plan file ", path, ": ", error.what()));
  }
}

} // namespace tessera::plans
