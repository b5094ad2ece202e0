#include <functional>

#include "tessera/base/json/parse.h"

#include "tests/fuzz/fuzz.h"

namespace tessera::fuzz {

std::vector<std::string> seeds() {
  return {
      R"({"a": [1, 2.5, -3e4, "x\u00e9\n"], "b": {"a": null, "c": true}, "d": [[], {}]})",
      "{ // one\n \"a\": 1, /* two\n */ \"b\": [1, 2,],\n}",
      "[[[[[[[[[[1]]]]]]]]]]",
      R"({"k1": 1, "k2": 2, "k3": 3, "k4": 4, "k5": 5, "k6": 6, "k7": 7, "k8": 8, "k9": 9, "k10": 1,
          "k11": 2, "k12": 3, "k13": 4, "k14": 5, "k15": 6, "k16": 7, "k17": 8, "k18": 9})"};
}

} // namespace tessera::fuzz

// The input with and without its comments. What is accepted has every key once,
// a bounded depth, and is the same value when it is written and read again.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  const std::string text(reinterpret_cast<const char*>(data), size);
  constexpr JsonRules kRules = {.most_levels = 12, .most_bytes = 1 << 16};
  try {
    const std::string plain = without_comments(text);
    if (plain.size() != text.size() || without_comments(plain) != plain) {
      fuzz::broken("comments become blanks, once and for all");
    }
    const auto value = parse_json(plain, "fuzz", kRules);
    const auto written = value.dump();
    if (parse_json(written, "again", kRules) != value) {
      fuzz::broken("what was accepted is written as it was read");
    }
    // The parser that is trusted here finds as many keys as the guard allows.
    std::size_t keys = 0;
    const auto count_keys = [&](int depth, nlohmann::json::parse_event_t event, auto&) {
      if (depth > kRules.most_levels) {
        fuzz::broken("depth is bounded");
      }
      keys += event == nlohmann::json::parse_event_t::key ? 1 : 0;
      return true;
    };
    [[maybe_unused]] const auto again = nlohmann::json::parse(plain, count_keys);
    std::size_t kept = 0;
    const std::function<void(const nlohmann::ordered_json&)> visit = [&](const auto& at) {
      kept += at.is_object() ? at.size() : 0;
      for (const auto& inner : at) {
        if (inner.is_structured()) {
          visit(inner);
        }
      }
    };
    if (value.is_structured()) {
      visit(value);
    }
    if (kept != keys) {
      fuzz::broken("no key stands twice");
    }
    fuzz::count(true);
  } catch (const JsonError&) {
    fuzz::count(false);
  }
  return 0;
}
