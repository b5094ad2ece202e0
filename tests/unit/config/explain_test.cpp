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

TEST(Explain, TheTextHasEveryKeyAndRule) {
  const std::string text = explain_text(100);
  const std::string words = words_of(text);
  for (const Key& key : keys()) {
    EXPECT_NE(text.find("\n  " + key.name + " "), std::string::npos)
        << key.name;
    EXPECT_NE(words.find(words_of(key.description)), std::string::npos)
        << key.name;
    for (const std::string& alias : key.aliases) {
      EXPECT_NE(words.find("Alias: " + alias + ". "), std::string::npos)
          << alias;
    }
  }
  for (const Coupling& coupling : couplings()) {
    EXPECT_NE(words.find(words_of(coupling.rule)), std::string::npos)
        << coupling.name;
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
  std::ifstream page(
      std::string(TESSERA_SOURCE_DIR) + "/docs/configuration.md");
  std::ostringstream text;
  text << page.rdbuf();
  EXPECT_EQ(text.str(), explain_markdown())
      << "run: tessera config --markdown > docs/configuration.md";
  for (const Coupling& coupling : couplings()) {
    EXPECT_THAT(text.str(), HasSubstr(coupling.rule));
  }
}

} // namespace

} // namespace tessera::config::test
