// Where documents begin in a sample, beside a search written out, and folders that do not say it.
#include "models/data/document_begins.h"

#include <random>

#include <gmock/gmock.h>

#include "models/data/data_folder.h"
#include "tests/unit/data/folder.h"

namespace tessera::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using Begins = std::vector<std::int64_t>;

class DocumentBegins : public FolderTest {
 protected:
  DocumentIndex index_with(
      const std::vector<std::uint64_t>& begins,
      std::uint64_t tokens,
      const std::string& name = "index") const {
    DocumentIndexWriter writer(path(name));
    for (const std::uint64_t begin : begins) {
      writer.begin_at(begin);
    }
    writer.finish(tokens);
    return DocumentIndex(path(name));
  }
  std::string folder_with(const std::string& name, int tokens) const {
    std::filesystem::create_directories(path(name));
    write_token_file(
        path(name + "/" + kTrainFile),
        std::vector<std::int32_t>(static_cast<std::size_t>(tokens)),
        9);
    return path(name);
  }
};

Begins found(const DocumentIndex& index, std::uint64_t begin, std::uint64_t count) {
  Begins out(count, -1);
  document_begins(index, begin, count, out.data());
  return out;
}

TEST_F(DocumentBegins, CountFromTheSamplesFirstToken) {
  const DocumentIndex index = index_with({0, 3, 4, 9}, 12);
  EXPECT_EQ(found(index, 0, 6), (Begins{0, 0, 0, 3, 4, 4}));
  EXPECT_EQ(found(index, 3, 3), (Begins{0, 1, 1})); // its first token begins a document
  EXPECT_EQ(found(index, 5, 4), (Begins{0, 0, 0, 0})); // in the middle of one
  EXPECT_EQ(found(index, 8, 4), (Begins{0, 1, 1, 1})); // the last token of one, and all of the next
  EXPECT_EQ(found(index, 9, 0), Begins());
}

TEST_F(DocumentBegins, TokensBeforeTheFirstDocumentAreOneOfTheirOwn) {
  EXPECT_EQ(found(index_with({2, 4}, 6), 0, 6), (Begins{0, 0, 2, 2, 4, 4}));
  EXPECT_EQ(found(index_with({}, 6, "none"), 1, 3), (Begins{0, 0, 0}));
}

TEST_F(DocumentBegins, EqualASearchForEveryToken) {
  std::mt19937 random(5);
  constexpr std::uint64_t kTokens = 300;
  std::vector<std::uint64_t> begins{0};
  while (begins.back() + 12 < kTokens) {
    begins.push_back(begins.back() + 1 + random() % 11);
  }
  const DocumentIndex index = index_with(begins, kTokens);
  for (std::uint64_t begin = 0; begin + 40 <= kTokens; ++begin) {
    Begins expected;
    for (std::uint64_t token = begin; token < begin + 40; ++token) {
      std::uint64_t own = 0;
      for (const std::uint64_t candidate : begins) {
        own = candidate <= token ? candidate : own;
      }
      expected.push_back(own < begin ? 0 : static_cast<std::int64_t>(own - begin));
    }
    ASSERT_EQ(found(index, begin, 40), expected) << begin;
  }
}

TEST_F(DocumentBegins, AFolderWithoutThemIsNamed) {
  const std::vector<MixturePart> parts{{folder_with("new", 7), 1}, {folder_with("old", 8), 1}};
  std::vector<TokenDataset> tokens;
  for (const MixturePart& part : parts) {
    tokens.emplace_back(part.directory + "/" + kTrainFile);
  }
  const auto open = [&] { open_indexes(parts, tokens, kTrainDocumentsFile, "'data.key'"); };
  index_with({0, 3}, 7, "new/train.documents");
  EXPECT_THAT(
      message_of(open),
      AllOf(
          HasSubstr("'" + parts[1].directory + "' has no train.documents"),
          HasSubstr("'data.key' needs"),
          HasSubstr("tessera data prepare --force --output " + parts[1].directory)));
  index_with({0, 3}, 9, "old/train.documents");
  EXPECT_THAT(message_of(open), AllOf(HasSubstr("9 tokens"), HasSubstr("has 8")));
  index_with({0, 3}, 8, "old/train.documents");
  EXPECT_EQ(message_of(open), "no error");
}

} // namespace
} // namespace tessera::data
