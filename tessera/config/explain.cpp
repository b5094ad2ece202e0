#include "tessera/config/explain.h"

#include <algorithm>
#include <sstream>

#include <nlohmann/json.hpp>

#include "tessera/config/couplings.h"
#include "tessera/config/keys.h"

namespace tessera::config {

namespace {

constexpr std::size_t kIndent = 4;

std::string_view name_of(Status status) {
  switch (status) {
    case Status::kAvailable:
      return "available";
    case Status::kNotYet:
      return "not in this version";
    case Status::kRefused:
      return "refused";
  }
  return "?";
}

std::string aliases_of(const Key& key) {
  std::string text;
  for (const std::string& alias : key.aliases) {
    text += text.empty() ? "" : ", ";
    text += alias;
  }
  return text;
}

// Breaks at spaces; every line begins with the indent.
std::string wrapped(const std::string& text, std::size_t columns) {
  std::istringstream words(text);
  std::string out;
  std::string line;
  for (std::string word; words >> word;) {
    if (!line.empty() && kIndent + line.size() + 1 + word.size() > columns) {
      out += std::string(kIndent, ' ') + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return out + std::string(kIndent, ' ') + line + "\n";
}

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

// What a description leaves unsaid: aliases and availability.
std::string remarks(const Key& key) {
  std::string text;
  if (!key.aliases.empty()) {
    text += " Alias: " + aliases_of(key) + ".";
  }
  if (key.status == Status::kNotYet) {
    text += " Not available in this version";
    text += key.reason.empty() ? "." : ": " + key.reason + ".";
  } else if (key.status == Status::kRefused) {
    text += " Refused: " + key.reason + ".";
  }
  return text;
}

std::string markdown_cell(std::string text) {
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) {
    text.replace(at, 1, "\\|");
  }
  return text;
}

std::string markdown_head() {
  return "<!-- Written by `tessera config --markdown`; a test compares. Change "
         "the table in tessera/config/keys.cpp. -->\n"
         "# Configuration\n"
         "\n"
         "One JSON object says how a run is laid out. Either the keys alone\n"
         "\n"
         "```json\n"
         "{\"pipeline_parallel_degree\": 2, \"microbatches\": 4, \"ddp\": "
         "true}\n"
         "```\n"
         "\n"
         "or the outer form of a job, whose `parameters` may also be the name "
         "of a JSON file:\n"
         "\n"
         "```json\n"
         "{\"smdistributed\": {\"modelparallel\": {\"enabled\": true, "
         "\"parameters\": {\"pipeline_parallel_degree\": 2}}},\n"
         " \"mpi\": {\"enabled\": true, \"processes_per_host\": 2}}\n"
         "```\n"
         "\n"
         "`enabled` may be left out and must be true where it stands. "
         "`processes_per_host` and `custom_mpi_options` stand in `mpi` or "
         "among the keys.\n"
         "\n"
         "`tessera config --check FILE` checks a file, `tessera config "
         "--explain` prints these tables. All errors of a file are reported "
         "together. An unknown key is an error that names the nearest known "
         "one where there is one, a key given twice (also once under an alias) is an error, and "
         "a key whose function this version does not have is accepted with "
         "its default only. Integers may be written as `5e8`. The "
         "file is plain JSON, without comments; in a job of `tessera train` "
         "these keys are its section `parallel`, and comments may stand in "
         "it.\n"
         "\n"
         "In the column Source, \"documentation\" is the parameter reference "
         "of "
         "SageMaker's model parallel library and \"paper\" is Karakus et al. "
         "2021, which describes it.\n";
}

std::string markdown_rules() {
  std::string out = "\n## Rules between keys\n\n";
  for (const Coupling& coupling : couplings()) {
    out += "- " + coupling.rule + "\n";
  }
  out +=
      "\nWith the number of processes (world size):\n\n"
      "- world size = pipeline_parallel_degree x tensor_parallel_degree x "
      "replicas.\n"
      "- More than one replica needs ddp.\n"
      "- sharded_data_parallel_degree divides the number of replicas.\n"
      "- replica_samples has one number a replica.\n"
      "\nThe batch of a step must be divisible by microbatches.\n"
      "\nWhere the documentation lets `trace_execution_times` run on the GPU "
      "only, Tessera also measures on the CPU: there the CPU is the device "
      "that trains.\n";
  return out;
}

} // namespace

std::string explain_text(int columns) {
  const std::size_t width = static_cast<std::size_t>(std::max(columns, 40));
  std::size_t name_width = 0;
  std::size_t type_width = 0;
  for (const Key& key : keys()) {
    name_width = std::max(name_width, key.name.size());
    type_width = std::max(type_width, name_of(type_of(key)).size());
  }
  const auto row = [&](const std::string& name, std::string_view type, const std::string& value) {
    return "  " + padded(name, name_width) + "  " + padded(std::string(type), type_width) + "  " +
           value + "\n";
  };
  std::string out = row("KEY", "TYPE", "DEFAULT");
  std::string section;
  for (const Key& key : keys()) {
    if (key.section != section) {
      section = key.section;
      out += "\n" + section + "\n";
    }
    const bool bounded = key.status != Status::kRefused && type_of(key) != Type::kBool;
    out += row(key.name, name_of(type_of(key)), default_of(key)) +
           wrapped(
               key.description + (bounded ? " Allowed: " + allowed(key) + "." : "") + remarks(key),
               width);
  }
  out += "\nRules between keys\n";
  for (const Coupling& coupling : couplings()) {
    out += wrapped(coupling.rule, width);
  }
  return out;
}

std::string explain_json() {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Key& key : keys()) {
    list.push_back(
        {{"name", key.name},
         {"aliases", key.aliases},
         {"section", key.section},
         {"type", name_of(type_of(key))},
         {"default", default_of(key)},
         {"allowed", allowed(key)},
         {"status", name_of(key.status)},
         {"source", key.source},
         {"description", key.description},
         {"reason", key.reason}});
  }
  return list.dump(2) + "\n";
}

std::string explain_markdown() {
  std::string out = markdown_head();
  std::string section;
  for (const Key& key : keys()) {
    const bool refused = key.status == Status::kRefused;
    if (key.section != section) {
      section = key.section;
      out += "\n## " + section + "\n\n";
      out += refused ? "| Name | Meaning elsewhere | Instead |\n"
                       "| --- | --- | --- |\n"
                     : "| Key | Allowed | Default | Meaning | Source |\n"
                       "| --- | --- | --- | --- | --- |\n";
    }
    if (refused) {
      out += "| `" + key.name + "` | " + key.description + " (" + key.source + ") | " + key.reason +
             " |\n";
    } else {
      out += "| `" + key.name + "` | " + markdown_cell(allowed(key)) + " | " +
             markdown_cell(default_of(key)) + " | " +
             markdown_cell(key.description + remarks(key)) + " | " + key.source + " |\n";
    }
  }
  return out + markdown_rules();
}

} // namespace tessera::config
