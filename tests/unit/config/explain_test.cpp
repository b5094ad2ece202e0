#include "tessera/config/explain.h"

#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/config/couplings.h"
#include "tessera/config/keys.h"

namespace tessera::config::test {

namespace {

using ::testing::HasSubstr;

// Line breaks and columns as single spaces.
std::string words_of(const std::string& text) {
  std::istringstream words(text);
  std::string out;
  for (std::string word; words >> word;) {
    out += word + " ";
  }
  return out;
}

// Where two texts part, for people; empty for equal texts.
std::string first_difference(const std::string& found, const std::string& expected) {
  std::istringstream found_lines(found);
  std::istringstream expected_lines(expected);
  for (int number = 1;; ++number) {
    std::string here;
    std::string there;
    const bool more = static_cast<bool>(std::getline(found_lines, here));
    const bool more_expected = static_cast<bool>(std::getline(expected_lines, there));
    if (!more && !more_expected) {
      return found == expected ? "" : "one ends without a line break";
    }
    if (!more || !more_expected || here != there) {
      return "line " + std::to_string(number) + ":\n  found:    " + (more ? here : "(the end)") +
             "\n  expected: " + (more_expected ? there : "(the end)");
    }
  }
}

TEST(Explain, TheTextHasEveryKeyAndRule) {
  const std::string text = explain_text(100);
  const std::string words = words_of(text);
  for (const Key& key : keys()) {
    EXPECT_NE(text.find("\n  " + key.name + " "), std::string::npos) << key.name;
    EXPECT_NE(words.find(words_of(key.description)), std::string::npos) << key.name;
    for (const std::string& alias : key.aliases) {
      EXPECT_NE(words.find("Alias: " + alias + ". "), std::string::npos) << alias;
    }
  }
  for (const Coupling& coupling : couplings()) {
    EXPECT_NE(words.find(words_of(coupling.rule)), std::string::npos) << coupling.name;
  }
}

TEST(Explain, NoLineIsWiderThanTheTerminal) {
  for (const int columns : {80, 100}) {
    std::istringstream lines(explain_text(columns));
    for (std::string line; std::getline(lines, line);) {
      EXPECT_LE(line.size(), static_cast<std::size_t>(columns)) << line;
    }
  }
}

TEST(Explain, TheJsonHasEveryKey) {
  const auto list = nlohmann::json::parse(explain_json());
  ASSERT_EQ(list.size(), keys().size());
  for (std::size_t i = 0; i < keys().size(); ++i) {
    EXPECT_EQ(list[i].at("name"), keys()[i].name);
    EXPECT_EQ(list[i].at("description"), keys()[i].description);
    EXPECT_EQ(list[i].at("allowed"), allowed(keys()[i]));
  }
  EXPECT_EQ(list[0].at("type"), "integer");
  EXPECT_EQ(list[0].at("status"), "available");
}

TEST(Explain, TheCommittedPageIsTheTable) {
  std::ifstream page(std::string(TESSERA_SOURCE_DIR) + "/docs/configuration.md");
  std::ostringstream text;
  text << page.rdbuf();
  EXPECT_EQ(first_difference(text.str(), explain_markdown()), "")
      << "run: tessera config --markdown > docs/configuration.md";
  for (const Coupling& coupling : couplings()) {
    EXPECT_NE(text.str().find(coupling.rule), std::string::npos) << coupling.name;
  }
}

TEST(Explain, TheFirstDifferenceIsNamed) {
  EXPECT_EQ(first_difference("a\nb\n", "a\nb\n"), "");
  EXPECT_THAT(first_difference("a\nb\nc\n", "a\nx\nc\n"), HasSubstr("line 2:"));
  EXPECT_THAT(first_difference("a\n", "a\nb\n"), HasSubstr("(the end)"));
  EXPECT_NE(first_difference("a", "a\n"), "");
}

} // namespace

} // namespace tessera::config::test
