#pragma once

// Results of many cases, recorded in a file beside the test, so that none changes unseen.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace tessera {

/// Returns a number as recordings have it. Seven digits, which another order of summation does
/// not change, but a change of a formula does.
inline std::string recorded(double number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.7g", number);
  return text;
}

/// Returns whether two lines have the same words; numbers may differ by their rounding.
inline bool same_line(const std::string& found, const std::string& recorded) {
  std::istringstream one(found);
  std::istringstream other(recorded);
  std::string word;
  std::string expected;
  while (one >> word) {
    if (!(other >> expected)) {
      return false;
    }
    if (word == expected) {
      continue;
    }
    char* end_of_word = nullptr;
    char* end_of_expected = nullptr;
    const double number = std::strtod(word.c_str(), &end_of_word);
    const double limit = std::strtod(expected.c_str(), &end_of_expected);
    // A comma may follow, and sums of rounding errors are nothing.
    if (std::string_view(end_of_word) != end_of_expected ||
        !(std::abs(number - limit) <= 2e-6 * std::abs(limit) + 1e-15)) {
      return false;
    }
  }
  return !(other >> expected);
}

/// Compares lines, one a case, with the file of a recording. With TESSERA_RECORD=1 in the
/// environment it writes the file anew in place of that: whoever means to change results reads in
/// its differences which ones they changed.
inline void expect_as_recorded(const std::string& path, const std::vector<std::string>& lines) {
  if (const char* record = std::getenv("TESSERA_RECORD"); record != nullptr && *record == '1') {
    std::ofstream file(path);
    for (const std::string& line : lines) {
      file << line << '\n';
    }
    ASSERT_TRUE(file.good()) << path;
    return;
  }
  std::ifstream file(path);
  ASSERT_TRUE(file.good()) << path;
  std::vector<std::string> expected;
  for (std::string line; std::getline(file, line);) {
    expected.push_back(line);
  }
  ASSERT_EQ(lines.size(), expected.size()) << path;
  int changed = 0;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (!same_line(lines[i], expected[i]) && ++changed <= 3) {
      ADD_FAILURE() << path << ':' << i + 1 << "\nrecorded: " << expected[i]
                    << "\nis now:   " << lines[i];
    }
  }
  EXPECT_EQ(changed, 0) << "results changed; if that is meant, run this test with TESSERA_RECORD=1 "
                           "and say with the change why they did";
}

} // namespace tessera
