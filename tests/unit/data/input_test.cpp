#include <cstring>

#include <gmock/gmock.h>

#include "models/data/input/documents.h"
#include "models/data/input/input_files.h"
#include "models/data/input/token_source.h"
#include "tests/unit/data/folder.h"

namespace tessera::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class Input : public FolderTest {
 protected:
  // Documents of files, their sections joined.
  static std::vector<std::string> read(
      const std::vector<std::string>& files,
      const std::string& field = "text") {
    std::vector<std::string> documents;
    const auto source = documents_in(files, field);
    bool open = false;
    for (Section section; source->next(section);) {
      EXPECT_EQ(section.begins, !open);
      EXPECT_FALSE(section.text.empty());
      if (section.begins) {
        documents.emplace_back();
      }
      documents.back() += section.text;
      open = !section.ends;
    }
    EXPECT_FALSE(open);
    return documents;
  }
  static std::string error_of(const std::string& file, const std::string& field = "text") {
    return message_of([&] { read({file}, field); });
  }
};

TEST_F(Input, FoldersGiveTheirFilesSorted) {
  made("in/b.txt", "b");
  made("in/a/z.txt", "z");
  made("in/B.txt", "B");
  made("in/.hidden", "x");
  made("in/.git/config", "x");
  made("c.txt", "c");
  EXPECT_THAT(
      input_files({path("c.txt"), path("in")}),
      ElementsAre(path("c.txt"), path("in/B.txt"), path("in/a/z.txt"), path("in/b.txt")));
  EXPECT_THAT(
      message_of([&] {
        input_files({path("in"), path("in/b.txt")});
      }),
      HasSubstr("named twice"));
  EXPECT_THAT(message_of([&] { input_files({path("none")}); }), HasSubstr(path("none")));
  std::filesystem::create_directory(path("empty"));
  EXPECT_THAT(message_of([&] { input_files({path("empty")}); }), HasSubstr("has no file"));
}

TEST_F(Input, PlainTextIsADocument) {
  made("a.txt", "one\r\ntwo");
  made_gz("b.txt.gz", "three\n");
  EXPECT_THAT(read({path("a.txt"), path("b.txt.gz")}), ElementsAre("one\ntwo\n", "three\n"));
}

TEST_F(Input, LongTextsAreCutAtLines) {
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    text += "line " + std::to_string(i) + "\n";
  }
  made("a.txt", text);
  const auto source = documents_in({path("a.txt")}, "text");
  std::vector<std::string> sections;
  for (Section section; source->next(section);) {
    sections.push_back(section.text);
  }
  std::vector<std::string> expected;
  for (const auto part : split_sections(text)) {
    expected.emplace_back(part);
  }
  EXPECT_EQ(sections, expected);
  EXPECT_GT(sections.size(), 5u);
  // A text without line ends, longer than what is read at once and than a piece.
  std::string endless;
  while (endless.size() < 3'000'000) {
    endless += "a\xC3\xA4\xE2\x82\xAC";
  }
  made("b.txt", endless);
  EXPECT_THAT(read({path("b.txt")}), ElementsAre(endless + "\n"));
}

TEST_F(Input, JsonLinesAreDocuments) {
  const std::string lines =
      "{\"text\": \"one\\ntwo\", \"id\": 1}\n\n{\"id\": 2, \"text\": \"\"}\n"
      "{\"text\": \"drei \\u00e4\\r\"}";
  made("a.jsonl", lines);
  made_gz("a.ndjson.gz", lines);
  const auto expected = ElementsAre("one\ntwo", "drei \xC3\xA4\r");
  EXPECT_THAT(read({path("a.jsonl")}), expected);
  EXPECT_THAT(read({path("a.ndjson.gz")}), expected);
  const auto source = documents_in({path("a.jsonl")}, "text");
  for (Section section; source->next(section);) {
  }
  EXPECT_EQ(source->empty_documents(), 1u);
  made("b.jsonl", R"({"content": "x"})");
  EXPECT_THAT(read({path("b.jsonl")}, "content"), ElementsAre("x"));
}

TEST_F(Input, WrongTextsAreNamedWithTheirLine) {
  EXPECT_THAT(error_of(made("a", "")), AllOf(HasSubstr(path("a")), HasSubstr("is empty")));
  EXPECT_THAT(
      error_of(made("b", "one\ntwo\n\xC3(\n")),
      AllOf(HasSubstr(path("b") + ", line 3"), HasSubstr("not UTF-8 (byte 1)")));
  EXPECT_THAT(error_of(made("c", "one\n\xED\xA0\x80")), HasSubstr("line 2 is not UTF-8"));
  EXPECT_THAT(error_of(made("d", std::string("one\na\0b", 7))), HasSubstr("line 2 has a NUL byte"));
  EXPECT_THAT(error_of(made("e.gz", "plain")), HasSubstr("is no gzip file"));
  EXPECT_THAT(error_of(made("f.json", "{}")), HasSubstr(".jsonl"));
  EXPECT_THAT(error_of(path("g")), HasSubstr(path("g")));
  EXPECT_THAT(error_of(folder_.path()), HasSubstr("cannot read"));
}

TEST_F(Input, DamagedGzipIsNamed) {
  std::string text;
  for (int i = 0; i < 20000; ++i) {
    text += std::to_string(i * 7919 % 10007) + "\n";
  }
  made_gz("a.gz", text);
  std::string bytes(std::filesystem::file_size(path("a.gz")), '\0');
  FILE* file = fopen(path("a.gz").c_str(), "rb");
  ASSERT_EQ(fread(bytes.data(), 1, bytes.size(), file), bytes.size());
  fclose(file);
  EXPECT_THAT(
      error_of(made("b.gz", bytes.substr(0, bytes.size() / 2))),
      AllOf(HasSubstr(path("b.gz")), HasSubstr("truncated")));
  EXPECT_THAT(error_of(made("c.gz", bytes.substr(0, bytes.size() - 3))), HasSubstr("truncated"));
  std::string changed = bytes;
  changed[bytes.size() - 6] ^= 1; // of the sum
  EXPECT_THAT(error_of(made("d.gz", changed)), HasSubstr("damaged"));
  // Two members one after the other are one text.
  EXPECT_THAT(read({made("e.gz", bytes + bytes)}), ElementsAre(text + text));
}

TEST_F(Input, WrongJsonLinesAreNamedWithTheirLine) {
  const auto second = [&](const std::string& line, const std::string& field = "text") {
    return error_of(made("a.jsonl", "{\"text\": \"fine\"}\n" + line + "\n"), field);
  };
  EXPECT_THAT(
      second("{\"content\": 1}"),
      AllOf(
          HasSubstr(path("a.jsonl") + ", line 2"),
          HasSubstr("no field \"text\""),
          HasSubstr("\"content\""),
          HasSubstr("--field")));
  EXPECT_THAT(second("{\"text\": 7}"), AllOf(HasSubstr("line 2"), HasSubstr("is 7,")));
  EXPECT_THAT(second("[1]"), AllOf(HasSubstr("line 2"), HasSubstr("expected an object")));
  EXPECT_THAT(second("{\"text\": "), AllOf(HasSubstr("line 2"), HasSubstr("not valid JSON")));
  EXPECT_THAT(second("{\"text\": \"a\\u0000\"}"), AllOf(HasSubstr("line 2"), HasSubstr("NUL")));
  EXPECT_THAT(
      second("{\"text\": \"a\", \"text\": \"b\"}"), AllOf(HasSubstr("line 2"), HasSubstr("twice")));
  EXPECT_THAT(second("{\"text\": \"\xFF\"}"), AllOf(HasSubstr("line 2"), HasSubstr("not UTF-8")));
  EXPECT_THAT(error_of(made("b.jsonl", " \n")), HasSubstr("no line with a document"));
}

// The header of NumPy's format 1.0, padded to 64 bytes as NumPy does.
std::string npy(const std::string& type, const std::string& shape, const std::string& data) {
  std::string text = "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }";
  text.resize((10 + text.size() + 1 + 63) / 64 * 64 - 10 - 1, ' ');
  text += '\n';
  std::string header = "\x93NUMPY";
  header += '\1';
  header += '\0';
  header += static_cast<char>(text.size() & 255);
  header += static_cast<char>(text.size() >> 8);
  return header + text + data;
}

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

class TokenFiles : public Input {
 protected:
  static std::vector<std::int32_t>
  tokens_of(const std::string& file, int raw = 0, std::int64_t vocab = 1000) {
    TokenSource source(file, raw, vocab);
    std::vector<std::int32_t> all;
    for (auto part = source.next(2); !part.empty(); part = source.next(2)) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
  static std::string error_of(const std::string& file, int raw = 0, std::int64_t vocab = 1000) {
    return message_of([&] { tokens_of(file, raw, vocab); });
  }
};

TEST_F(TokenFiles, EveryWholeNumberIsRead) {
  const auto expected = ElementsAre(3, 258, 999);
  const auto check = [&](const std::string& type, const std::string& data) {
    EXPECT_THAT(tokens_of(made("a.npy", npy(type, "(3,)", data))), expected) << type;
  };
  check("<u2", bytes_of<std::uint16_t>({3, 258, 999}));
  check("<i2", bytes_of<std::int16_t>({3, 258, 999}));
  check("<u4", bytes_of<std::uint32_t>({3, 258, 999}));
  check("<i4", bytes_of<std::int32_t>({3, 258, 999}));
  check("<i8", bytes_of<std::int64_t>({3, 258, 999}));
  check("<u8", bytes_of<std::uint64_t>({3, 258, 999}));
  check(">u2", std::string("\0\3\1\2\3\xE7", 6));
  EXPECT_THAT(tokens_of(made("b.npy", npy("|u1", "(2,)", "\x03\xFF"))), ElementsAre(3, 255));
  EXPECT_THAT(tokens_of(made("a.bin", bytes_of<std::uint16_t>({3, 258, 999})), 2), expected);
  EXPECT_THAT(tokens_of(made("b.bin", bytes_of<std::uint32_t>({3, 258, 999})), 4), expected);
}

TEST_F(TokenFiles, WrongOnesAreNamed) {
  const std::string data = bytes_of<std::uint16_t>({3, 258, 999});
  const auto check = [&](const std::string& type, const std::string& shape, const char* said) {
    EXPECT_THAT(
        error_of(made("a.npy", npy(type, shape, data))),
        AllOf(HasSubstr(path("a.npy")), HasSubstr(said)));
  };
  check("<f4", "(3,)", "<f4");
  check("<u2", "(3, 1)", "(3, 1)");
  check("<u2", "()", "one dimension");
  check("<u2", "(4,)", "truncated");
  check("<u2", "(2,)", "too long");
  check("<u2", "(0,)", "too long");
  EXPECT_THAT(error_of(made("b.npy", "nothing of the kind")), HasSubstr("no NumPy file"));
  EXPECT_THAT(
      error_of(made("c.npy", npy("<u2", "(3,)", data).substr(0, 40))), HasSubstr("truncated"));
  EXPECT_THAT(error_of(made("d.npy", npy("<u2", "(0,)", ""))), HasSubstr("no token"));
  EXPECT_THAT(
      error_of(made("e.npy", npy("<u2", "(3,)", data)), 0, 999),
      AllOf(HasSubstr("token 2 (from 0) is 999"), HasSubstr("0 to 998")));
  EXPECT_THAT(
      error_of(made("f.npy", npy("<i4", "(1,)", bytes_of<std::int32_t>({-7})))),
      HasSubstr("token 0 (from 0) is -7"));
  EXPECT_THAT(error_of(made("a.bin", data)), HasSubstr("--token-type"));
  EXPECT_THAT(error_of(made("a.bin", data), 4), HasSubstr("6 bytes, no multiple"));
  EXPECT_THAT(error_of(path("none.npy")), HasSubstr(path("none.npy")));
}

} // namespace
} // namespace tessera::data
