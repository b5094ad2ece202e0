#include "tessera/base/error.h"
#include "tessera/timeline/timeline.h"

#include "tests/fuzz/fuzz.h"

namespace tessera::fuzz {

std::vector<std::string> seeds() {
  timeline::Event event;
  event.name = "layers.3";
  event.category = "forward";
  event.rank = 1;
  event.microbatch = 0;
  event.step = 2;
  event.start_us = 1.5;
  event.end_us = 4.25;
  event.bytes = 4096;
  timeline::Event other = event;
  other.category = "backward";
  other.rank = 0;
  other.start_us = 5;
  other.end_us = 9;
  return {
      timeline::to_json({}),
      timeline::to_json({2, "measured", "a run", {event}}),
      timeline::to_json({4, "simulated", "", {event, other}})};
}

} // namespace tessera::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const timeline::Timeline timeline = timeline::timeline_from_json(text);
    const std::string written = timeline::to_json(timeline);
    if (timeline::to_json(timeline::timeline_from_json(written)) != written) {
      fuzz::broken("what was accepted is written as it was read");
    }
    const double bubble = timeline::bubble_share(timeline);
    if (!(bubble >= 0 && bubble <= 1)) {
      fuzz::broken("a bubble share is from 0 to 1");
    }
    timeline::to_chrome_trace(timeline);
    fuzz::count(true);
  } catch (const Error&) {
    fuzz::count(false);
  }
  return 0;
}
