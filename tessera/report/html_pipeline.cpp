#include <map>

#include "tessera/base/error.h"
#include "tessera/report/format.h"
#include "tessera/report/html_sections.h"
#include "tessera/report/markup.h"
#include "tessera/report/timeline_picture.h"

namespace tessera::report {

namespace {

constexpr std::size_t kMostSteps = 6;

/// Returns the last step and others, spread evenly over the recorded ones.
std::vector<int> shown_steps(const std::vector<int>& all) {
  if (all.size() <= kMostSteps) {
    return all;
  }
  std::vector<int> shown;
  for (std::size_t i = 0; i < kMostSteps; ++i) {
    shown.push_back(all[i * (all.size() - 1) / (kMostSteps - 1)]);
  }
  return shown;
}

std::string legend(const timeline::Timeline& timeline) {
  const std::map<std::string, std::string> meaning = {
      {"forward", "forward"},
      {"backward", "backward (the number is the microbatch)"},
      {"optimizer", "optimizer"},
      {"comm", "communication outside of both"}};
  std::string out;
  for (const std::string& category : drawn_categories(timeline)) {
    out += fill("<span><i class=\"{}\"></i>{}</span>\n", {category, meaning.at(category)});
  }
  return out + "<span><i class=\"row\"></i>waiting</span>\n";
}

std::string choice(const char* group, const std::string& id, const std::string& text, bool on) {
  return fill(
      "<input type=\"radio\" name=\"{}\" class=\"{}\" id=\"{}\"{}><label for=\"{}\">{}</label>",
      {group, id, id, on ? " checked" : "", id, text});
}

/// Returns the steps with events that can be drawn; a timeline may hold others.
std::vector<int> drawable_steps(const timeline::Timeline& timeline) {
  timeline::Timeline drawn;
  for (const timeline::Event& event : timeline.events) {
    for (const char* category : {"forward", "backward", "optimizer", "comm"}) {
      if (event.category == category) {
        drawn.events.push_back(event);
      }
    }
  }
  return timeline::steps(drawn);
}

} // namespace

void check_simulation(const timeline::Timeline& timeline, const timeline::Timeline& simulated) {
  if (simulated.origin != "simulated") {
    throw Error(
        str("it was ", simulated.origin, "; name a timeline of tessera simulate --timeline"));
  }
  const auto steps = drawable_steps(timeline);
  if (steps.empty()) {
    throw Error("the run's timeline has no step beside which it could be drawn");
  }
  static_cast<void>(timeline_picture(timeline, steps.back(), simulated));
}

std::string pipeline_section(
    const timeline::Timeline& timeline,
    const timeline::Timeline& simulated) {
  std::string out = "<h2>Pipeline</h2>\n";
  const auto all = drawable_steps(timeline);
  if (all.empty()) {
    return out + remark("No timeline was recorded, or this page was made without it.");
  }
  const auto shown = shown_steps(all);
  out += fill(
      "<p class=\"key\">{}</p>\n<p class=\"under\">{} steps {} to {}. Point at a box to read "
      "it.</p>\n<div class=\"choice\">\n<span class=\"said\">step</span>",
      {legend(timeline),
       timeline.origin == "simulated" ? "Simulated:" : "Recorded:",
       str(all.front()),
       str(all.back())});
  std::string style;
  for (const int step : shown) {
    out += choice("step", str("s", step), str(step), step == shown.back());
    style += fill("#s{}:checked ~ #p{}", {str(step), str(step)}) + "{display:block}";
  }
  out += "<span class=\"said zoom\">zoom</span>";
  for (const int zoom : {1, 2, 4, 8}) {
    out += choice("zoom", str("z", zoom), str(zoom, "x"), zoom == 1);
  }
  out += "<style>" + style + "</style>\n";
  const bool both = !simulated.events.empty();
  for (const int step : shown) {
    std::string note = str("Bubble of step ", step, ": ");
    note += format_share(timeline::bubble_share(timeline, step)) + ".";
    if (both) {
      note += fill(
          " Its events span {}; simulated they span {}, with a bubble of {}.",
          {format_seconds(drawn_us(timeline, step) * 1e-6),
           format_seconds(drawn_us(simulated, timeline::steps(simulated).front()) * 1e-6),
           format_share(timeline::bubble_share(simulated))});
    }
    out += fill(
        "<div class=\"panel\" id=\"p{}\">\n{}<p class=\"note\">{}</p></div>\n",
        {str(step),
         both ? timeline_picture(timeline, step, simulated) : timeline_picture(timeline, step),
         note});
  }
  out += "</div>\n";
  if (shown.size() < all.size()) {
    out += remark(str(shown.size(), " of ", all.size(), " recorded steps are shown."));
  }
  return out;
}

} // namespace tessera::report
