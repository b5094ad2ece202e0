#include <map>
#include <set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/json/parse.h"
#include "tessera/timeline/timeline.h"

namespace tessera::timeline {

namespace {

using Json = OrderedJson;

Json metadata(const char* kind, int rank, int lane, const Json& value) {
  return {{"ph", "M"}, {"name", kind}, {"pid", rank}, {"tid", lane}, {"args", value}};
}

} // namespace

std::string to_chrome_trace(const Timeline& timeline) {
  std::map<int, int> pp_rank_of; // rank -> pp rank
  std::set<std::pair<int, int>> lanes; // (rank, lane)
  for (const Event& event : timeline.events) {
    pp_rank_of[event.rank] = event.pp_rank;
    lanes.insert({event.rank, event.lane});
  }
  std::string out = "{\"displayTimeUnit\":\"ms\",\"otherData\":";
  out += one_line({{"origin", timeline.origin}});
  out += ",\"traceEvents\":[";
  const char* separator = "\n";
  const auto put = [&](const Json& json) {
    out += separator;
    out += one_line(json);
    separator = ",\n";
  };
  for (const auto& entry : pp_rank_of) {
    const int rank = entry.first;
    put(metadata(
        "process_name", rank, 0, {{"name", str("rank ", rank, " (pp ", entry.second, ")")}}));
    put(metadata("process_sort_index", rank, 0, {{"sort_index", rank}}));
  }
  for (const auto& entry : lanes) {
    put(metadata("thread_name", entry.first, entry.second, {{"name", str("lane ", entry.second)}}));
  }
  for (const Event& event : timeline.events) {
    Json arguments = Json::object();
    if (event.microbatch >= 0) {
      arguments["microbatch"] = event.microbatch;
    }
    if (event.step >= 0) {
      arguments["step"] = event.step;
    }
    if (event.bytes != 0) {
      arguments["bytes"] = event.bytes;
    }
    put(
        {{"ph", "X"},
         {"name", event.name},
         {"cat", event.category},
         {"pid", event.rank},
         {"tid", event.lane},
         {"ts", event.start_us},
         {"dur", event.end_us - event.start_us},
         {"args", arguments}});
  }
  out += "\n]}\n";
  return out;
}

} // namespace tessera::timeline
