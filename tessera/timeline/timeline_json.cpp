#include <array>
#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/timeline/timeline.h"

namespace tessera::timeline {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "tessera.timeline";
constexpr int kVersion = 1;
constexpr std::array kEventFields = {
    "name",
    "category",
    "rank",
    "pp_rank",
    "microbatch",
    "step",
    "lane",
    "start_us",
    "end_us",
    "bytes"};

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// Reads the fields of one object; `place` begins every message.
class Fields {
 public:
  Fields(const Json& object, std::string place)
      : object_(object), place_(std::move(place)) {
    if (!object.is_object()) {
      fail(str("expected an object, found ", dump(object)));
    }
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(str("timeline: ", place_, ": ", what));
  }

  const Json& at(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) {
      fail(str("field '", key, "' is missing"));
    }
    return *found;
  }

  std::string text(const char* key) const {
    const Json& value = at(key);
    if (!value.is_string()) {
      fail(str("'", key, "' must be a string, found ", dump(value)));
    }
    return value.get<std::string>();
  }

  std::int64_t integer(const char* key, std::int64_t least, std::int64_t most)
      const {
    const Json& value = at(key);
    const bool fits = value.is_number_integer() &&
                      !(value.is_number_unsigned() &&
                        value.get<std::uint64_t>() >
                            static_cast<std::uint64_t>(
                                std::numeric_limits<std::int64_t>::max()));
    if (!fits || value.get<std::int64_t>() < least ||
        value.get<std::int64_t>() > most) {
      fail(
          str("'",
              key,
              "' must be an integer from ",
              least,
              " to ",
              most,
              ", found ",
              dump(value)));
    }
    return value.get<std::int64_t>();
  }

  int small(const char* key, int least, int most) const {
    return static_cast<int>(integer(key, least, most));
  }

  double number(const char* key) const {
    const Json& value = at(key);
    if (!value.is_number()) {
      fail(str("'", key, "' must be a number, found ", dump(value)));
    }
    return value.get<double>();
  }

 private:
  const Json& object_;
  std::string place_;
};

constexpr int kMaxInt = std::numeric_limits<int>::max();

Event read_event(const Json& json, std::size_t index, int world_size) {
  const Fields fields(json, str("event ", index));
  for (const auto& item : json.items()) {
    bool known = false;
    for (const char* field : kEventFields) {
      known = known || item.key() == field;
    }
    if (!known) {
      fields.fail(str("unknown field '", item.key(), "'"));
    }
  }
  Event event;
  event.name = fields.text("name");
  event.category = fields.text("category");
  event.rank = fields.small("rank", 0, world_size - 1);
  event.pp_rank = fields.small("pp_rank", 0, world_size - 1);
  event.microbatch = fields.small("microbatch", -1, kMaxInt);
  event.step = fields.small("step", -1, kMaxInt);
  event.lane = fields.small("lane", 0, kMaxInt);
  event.start_us = fields.number("start_us");
  event.end_us = fields.number("end_us");
  event.bytes =
      fields.integer("bytes", 0, std::numeric_limits<std::int64_t>::max());
  if (event.end_us < event.start_us) {
    fields.fail(str(
        "'end_us' ", event.end_us, " is before 'start_us' ", event.start_us));
  }
  return event;
}

} // namespace

std::string to_json(const Timeline& timeline) {
  std::string out = "{\n";
  out += str("\"format\":\"", kFormat, "\",\n\"version\":", kVersion, ",\n");
  out += str("\"world_size\":", timeline.world_size, ",\n\"origin\":");
  out += dump(timeline.origin);
  out += ",\n\"events\":[";
  const char* separator = "\n";
  for (const Event& event : timeline.events) {
    // JSON has no infinity: it would come back as null.
    if (!std::isfinite(event.start_us) || !std::isfinite(event.end_us)) {
      throw Error(
          str("timeline: event '",
              event.name,
              "' of rank ",
              event.rank,
              " has a time that is not finite"));
    }
    out += separator;
    out += dump(
        {{"name", event.name},
         {"category", event.category},
         {"rank", event.rank},
         {"pp_rank", event.pp_rank},
         {"microbatch", event.microbatch},
         {"step", event.step},
         {"lane", event.lane},
         {"start_us", event.start_us},
         {"end_us", event.end_us},
         {"bytes", event.bytes}});
    separator = ",\n";
  }
  out += "\n]\n}\n";
  return out;
}

Timeline timeline_from_json(const std::string& text) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::parse_error& error) {
    throw Error(str("timeline: not JSON: ", error.what()));
  }
  const Fields fields(json, "file");
  const std::string format = fields.text("format");
  if (format != kFormat) {
    fields.fail(str("'format' must be '", kFormat, "', found '", format, "'"));
  }
  const int version = fields.small("version", 0, kMaxInt);
  if (version != kVersion) {
    fields.fail(str(
        "version ", version, " is not known; this program reads ", kVersion));
  }
  Timeline timeline;
  timeline.world_size = fields.small("world_size", 1, kMaxInt);
  timeline.origin = fields.text("origin");
  if (timeline.origin != "measured" && timeline.origin != "simulated") {
    fields.fail(
        str("'origin' must be 'measured' or 'simulated', found '",
            timeline.origin,
            "'"));
  }
  const Json& events = fields.at("events");
  if (!events.is_array()) {
    fields.fail("'events' must be a list");
  }
  timeline.events.reserve(events.size());
  for (std::size_t i = 0; i < events.size(); ++i) {
    timeline.events.push_back(read_event(events[i], i, timeline.world_size));
  }
  return timeline;
}

} // namespace tessera::timeline
