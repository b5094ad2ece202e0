#include <cmath>

#include "tessera/base/error.h"
#include "tessera/base/json.h"
#include "tessera/base/json_fields.h"
#include "tessera/timeline/timeline.h"

namespace tessera::timeline {

namespace {

constexpr const char* kFormat = "tessera.timeline";
constexpr int kVersion = 1;

Event read_event(const OrderedJson& json, std::size_t index, int world_size) {
  const JsonFields fields(json, str("timeline: event ", index));
  fields.allow_only(
      {"name",
       "category",
       "rank",
       "pp_rank",
       "microbatch",
       "step",
       "lane",
       "start_us",
       "end_us",
       "bytes"});
  Event event;
  event.name = fields.text("name");
  event.category = fields.text("category");
  event.rank = fields.small_integer("rank", 0, world_size - 1);
  event.pp_rank = fields.small_integer("pp_rank", 0, world_size - 1);
  event.microbatch = fields.small_integer("microbatch", -1);
  event.step = fields.small_integer("step", -1);
  event.lane = fields.small_integer("lane", 0);
  event.start_us = fields.number("start_us");
  event.end_us = fields.number("end_us");
  event.bytes = fields.integer("bytes");
  if (event.end_us < event.start_us) {
    fields.fail(str("'end_us' ", event.end_us, " is before 'start_us' ", event.start_us));
  }
  return event;
}

} // namespace

std::string to_json(const Timeline& timeline) {
  std::string out = "{\n";
  out += str("\"format\":\"", kFormat, "\",\n\"version\":", kVersion, ",\n");
  out += str("\"world_size\":", timeline.world_size, ",\n\"origin\":");
  out += one_line(timeline.origin);
  if (!timeline.run_id.empty()) {
    out += ",\n\"run_id\":" + one_line(timeline.run_id);
  }
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
    out += one_line(
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
  const OrderedJson json = parse_json(text, "timeline");
  const JsonFields fields(json, "timeline");
  const std::string format = fields.text("format");
  if (format != kFormat) {
    fields.fail(str("'format' must be '", kFormat, "', found '", format, "'"));
  }
  const int version = fields.small_integer("version", 0);
  if (version != kVersion) {
    fields.fail(str("version ", version, " is not known; this program reads ", kVersion));
  }
  Timeline timeline;
  timeline.world_size = fields.small_integer("world_size", 1);
  timeline.origin = fields.text("origin");
  if (timeline.origin != "measured" && timeline.origin != "simulated") {
    fields.fail(str("'origin' must be 'measured' or 'simulated', found '", timeline.origin, "'"));
  }
  if (fields.has("run_id")) {
    timeline.run_id = fields.text("run_id");
  }
  const OrderedJson& events = fields.at("events");
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
