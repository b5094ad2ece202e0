#include <algorithm>
#include <charconv>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/schedule/schedule.h"

namespace tessera::schedule {

namespace {

constexpr std::size_t kLongestQuote = 24;
constexpr std::string_view kSpace = " \t\r\n";

std::string text_of(const Action& action) {
  return str(action.microbatch, action.phase == Phase::kForward ? "F" : "B");
}

// Returns a token for people: short, and with bytes that are no text made visible.
std::string quoted(std::string_view token) {
  std::string out = "\"";
  for (const char letter : token.substr(0, kLongestQuote)) {
    const bool printable = letter >= ' ' && letter <= '~';
    out += printable ? letter : '?';
  }
  return out + (token.size() > kLongestQuote ? "...\"" : "\"");
}

Action parse_action(std::string_view token, std::size_t place) {
  Action action;
  const char* const end = token.data() + token.size();
  const auto [stop, failure] = std::from_chars(token.data(), end, action.microbatch);
  const bool number = failure == std::errc{} && stop + 1 == end && action.microbatch >= 0;
  const char letter = token.back();
  if (!number || (letter != 'F' && letter != 'B')) {
    throw ConfigError(
        str("custom_schedule: entry ",
            place,
            " is ",
            quoted(token),
            "; write a microbatch number followed by F or B, as in \"0F 1F 0B "
            "1B\""));
  }
  action.phase = letter == 'F' ? Phase::kForward : Phase::kBackward;
  return action;
}

struct Started {
  bool forward = false;
  bool backward = false;
};

// Throws unless `action` may follow what was started before it.
void check_action(const Action& action, const std::vector<Started>& started, int microbatches) {
  if (action.microbatch < 0 || action.microbatch >= microbatches) {
    throw ConfigError(
        str("custom_schedule: ",
            text_of(action),
            " names microbatch ",
            action.microbatch,
            " but microbatches is ",
            microbatches,
            "; write 0 to ",
            microbatches - 1));
  }
  const Started& own = started[static_cast<std::size_t>(action.microbatch)];
  const bool forward = action.phase == Phase::kForward;
  if (forward ? own.forward : own.backward) {
    throw ConfigError(str("custom_schedule: ", text_of(action), " stands twice; keep one"));
  }
  if (!forward && !own.forward) {
    throw ConfigError(
        str("custom_schedule: ",
            text_of(action),
            " stands before ",
            action.microbatch,
            "F; a backward follows its forward"));
  }
}

} // namespace

std::vector<Action> parse_order(const std::string& text) {
  std::vector<Action> order;
  const std::string_view view = text;
  std::size_t at = view.find_first_not_of(kSpace);
  while (at != std::string_view::npos) {
    const std::size_t end = std::min(view.find_first_of(kSpace, at), view.size());
    order.push_back(parse_action(view.substr(at, end - at), order.size() + 1));
    at = view.find_first_not_of(kSpace, end);
  }
  return order;
}

std::string to_text(const std::vector<Action>& order) {
  std::string text;
  for (const Action& action : order) {
    text += (text.empty() ? "" : " ") + text_of(action);
  }
  return text;
}

void validate_order(const std::vector<Action>& order, int microbatches, int active) {
  if (microbatches < 1 || active < 1) {
    throw ConfigError(
        str("microbatches and active_microbatches must be at least 1; found ",
            microbatches,
            " and ",
            active));
  }
  std::vector<Started> started(static_cast<std::size_t>(microbatches));
  // Started microbatches whose backward has not come yet: none of them can be
  // done at this place of the order, however long one waits.
  int open = 0;
  for (const Action& action : order) {
    check_action(action, started, microbatches);
    Started& own = started[static_cast<std::size_t>(action.microbatch)];
    if (action.phase == Phase::kBackward) {
      own.backward = true;
      --open;
      continue;
    }
    if (open >= active) {
      throw ConfigError(
          str("custom_schedule: ",
              text_of(action),
              " would be microbatch ",
              open + 1,
              " in flight but active_microbatches is ",
              active,
              ", so it would wait for ever; start a backward before it or "
              "write \"active_microbatches\": ",
              open + 1,
              " or more"));
    }
    own.forward = true;
    ++open;
  }
  for (int i = 0; i < microbatches; ++i) {
    const Started& own = started[static_cast<std::size_t>(i)];
    if (!own.forward || !own.backward) {
      throw ConfigError(
          str("custom_schedule: ",
              i,
              own.forward ? "B" : "F",
              " is missing; microbatches is ",
              microbatches,
              " and each needs its F and its B"));
    }
  }
}

} // namespace tessera::schedule
