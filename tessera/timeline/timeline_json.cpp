#include <cmath>

#include "tessera/base/json/read.h"
#include "tessera/base/json/write.h"
#include "tessera/timeline/timeline.h"

namespace tessera::timeline {

template <typename Visit>
void describe(Visit& visit, Event& event, int world_size = std::numeric_limits<int>::max()) {
  visit({.name = "name"}, event.name);
  visit({.name = "category"}, event.category);
  visit({.name = "rank", .bounds = form::between(0, world_size - 1)}, event.rank);
  visit({.name = "pp_rank", .bounds = form::between(0, world_size - 1)}, event.pp_rank);
  visit({.name = "microbatch", .bounds = form::at_least(-1)}, event.microbatch);
  visit({.name = "step", .bounds = form::at_least(-1)}, event.step);
  visit({.name = "lane", .bounds = form::at_least(0)}, event.lane);
  visit({.name = "start_us"}, event.start_us);
  visit({.name = "end_us"}, event.end_us);
  visit({.name = "bytes", .bounds = form::at_least(0)}, event.bytes);
  visit.check([&] {
    return event.end_us < event.start_us
               ? str("'end_us' ", event.end_us, " is before 'start_us' ", event.start_us)
               : "";
  });
}

template <typename Visit>
void describe(Visit& visit, Timeline& timeline) {
  visit.head("tessera.timeline", 1);
  visit({.name = "world_size", .bounds = form::at_least(1)}, timeline.world_size);
  visit({.name = "origin", .choices = {"measured", "simulated"}}, timeline.origin);
  visit({.name = "run_id", .presence = form::Presence::kIfSaid}, timeline.run_id);
  visit({.name = "events"}, timeline.events, timeline.world_size);
}

std::string to_json(const Timeline& timeline) {
  // There can be many events, so only one at a time is a JSON value; each makes one line.
  const Timeline head{timeline.world_size, timeline.origin, timeline.run_id, {}};
  const OrderedJson fields = form::write(head);
  std::string out;
  for (const auto& item : fields.items()) {
    if (item.key() != "events") {
      out += str(out.empty() ? "{\n" : ",\n", "\"", item.key(), "\":", one_line(item.value()));
    }
  }
  out += ",\n\"events\":[";
  const char* separator = "\n";
  for (const Event& event : timeline.events) {
    // JSON has no infinity and no NaN; they would be written as null.
    if (!std::isfinite(event.start_us) || !std::isfinite(event.end_us)) {
      throw Error(
          str("timeline: event '",
              event.name,
              "' of rank ",
              event.rank,
              " has a time that is not finite"));
    }
    out += separator + one_line(form::write(event));
    separator = ",\n";
  }
  return out + "\n]\n}\n";
}

Timeline timeline_from_json(const std::string& text) {
  return form::read_text<Timeline, Error>(text, "timeline");
}

} // namespace tessera::timeline
