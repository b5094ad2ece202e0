#include "tessera/checkpoint/json.h"

#include <set>
#include <vector>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"

namespace tessera::checkpoint {

using nlohmann::json;

namespace {
constexpr int kMaxDepth = 200;
}

json parse_json(const std::string& text, const std::string& what) {
  std::vector<std::set<std::string>> open_objects;
  const auto check = [&](int depth, json::parse_event_t event, json& value) {
    // Printing and copying a value recurse into it.
    if (depth > kMaxDepth) {
      throw CheckpointError(
          str(what, " is nested deeper than ", kMaxDepth, " levels"));
    }
    switch (event) {
      case json::parse_event_t::object_start:
        open_objects.emplace_back();
        break;
      case json::parse_event_t::object_end:
        open_objects.pop_back();
        break;
      case json::parse_event_t::key:
        if (!open_objects.back().insert(value.get<std::string>()).second) {
          throw CheckpointError(
              str(what, ": the key ", brief(value), " stands twice"));
        }
        break;
      default:
        break;
    }
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::exception& error) {
    throw CheckpointError(str(what, " is no valid JSON: ", error.what()));
  }
}

std::string brief(const json& value) {
  // A value may be as large as the file: only its kind and its head are told.
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 80) {
    text.resize(77);
    text += "...";
  }
  return text;
}

} // namespace tessera::checkpoint
