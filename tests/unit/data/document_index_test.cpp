#include "models/data/document_index.h"

#include <gmock/gmock.h>

#include "tessera/base/files.h"

#include "models/data/split_writer.h"
#include "tests/unit/data/folder.h"

namespace tessera::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using Ids = std::vector<std::int64_t>;

class Index : public FolderTest {
 protected:
  Ids tokens_of(const char* name) const {
    const TokenDataset dataset(path(name));
    Ids ids(dataset.size());
    dataset.copy(0, dataset.size(), ids.data());
    return ids;
  }
  Ids begins_of(const char* name) const {
    const DocumentIndex index(path(name));
    Ids begins;
    for (std::uint64_t i = 0; i < index.documents(); ++i) {
      begins.push_back(static_cast<std::int64_t>(index.begin_of(i)));
    }
    return begins;
  }
};

TEST_F(Index, ComesBackAsItWasWritten) {
  {
    DocumentIndexWriter writer(path("a"));
    writer.begin_at(0);
    writer.begin_at(7);
    writer.begin_at(7); // the one before has no token
    writer.begin_at(20);
    EXPECT_EQ(writer.documents(20), 2u);
    writer.finish(20); // and so has the last one
  }
  EXPECT_EQ(begins_of("a"), (Ids{0, 7}));
  EXPECT_EQ(DocumentIndex(path("a")).tokens(), 20u);
  EXPECT_THROW(DocumentIndex(path("a")).begin_of(2), InternalError);
  EXPECT_FALSE(std::filesystem::exists(path("a.unfinished")));
}

TEST_F(Index, DamageIsNamed) {
  const auto error = [&] { return message_of([&] { DocumentIndex index(path("a")); }); };
  EXPECT_THAT(error(), AllOf(HasSubstr(path("a")), HasSubstr("No such file")));
  DocumentIndexWriter writer(path("a"));
  writer.begin_at(0);
  writer.begin_at(5);
  writer.finish(9);
  const std::string whole = read_file(path("a"));
  ASSERT_EQ(error(), "no error");
  const auto changed = [&](std::size_t at, char to) {
    std::string bytes = whole;
    bytes[at] = to;
    write_file(path("a"), bytes);
    return error();
  };
  EXPECT_THAT(changed(0, 'x'), HasSubstr("does not begin with TSRDOCUM"));
  EXPECT_THAT(changed(8, 2), HasSubstr("version 2"));
  EXPECT_THAT(changed(16, 3), HasSubstr("truncated"));
  EXPECT_THAT(changed(64 + 8, 6), HasSubstr("checksum"));
  EXPECT_THAT(changed(24, 5), HasSubstr("document 1 begins at token 5 of 5"));
}

TEST_F(Index, TwoWritersOfOneFileDoNotMix) {
  FileWriter first(path("a"));
  EXPECT_THAT(message_of([&] { FileWriter second(path("a")); }), HasSubstr("another process"));
}

// Every section is one token with its own number, the end of a document is 99.
TEST_F(Index, TheEndOfADocumentStandsWhereItsTextIs) {
  SplitWriter writer(folder_.path(), 100, 99);
  // Sections 0 to 8 are documents; 9, 10 (held back), 11 one; 12 to 29 are documents; 30 is held
  // back and a document as a whole, 31 is the last.
  for (std::int32_t section = 0; section < 32; ++section) {
    const bool inside = section == 10 || section == 11;
    const bool goes_on = section == 9 || section == 10;
    writer.add_section({section}, !inside, !goes_on);
  }
  writer.finish();
  Ids train;
  for (std::int32_t section = 0; section < 32; ++section) {
    if (section == 10 || section == 30) {
      continue;
    }
    train.push_back(section);
    if (section != 9) {
      train.push_back(99);
    }
  }
  EXPECT_EQ(tokens_of("train.tokens"), train);
  EXPECT_EQ(tokens_of("validation.tokens"), (Ids{10, 30, 99}));
  EXPECT_EQ(begins_of("validation.documents"), (Ids{0, 1}));
  const Ids begins = begins_of("train.documents");
  ASSERT_EQ(begins.size(), 29u); // 32 sections, of which 10, 11 and 30 begin none in training
  for (const auto begin : begins) {
    EXPECT_TRUE(begin == 0 || train[static_cast<std::size_t>(begin - 1)] == 99) << begin;
  }
  EXPECT_EQ(begins[9], 18); // the document of three sections
  EXPECT_EQ(begins[10], 21);
}

TEST_F(Index, TokenFilesAreDividedAtTheirEnds) {
  SplitWriter writer(folder_.path(), 100, 99);
  for (std::int32_t block = 0; block < 12; ++block) {
    // A document ends inside the held-back block, the next one goes on in training.
    writer.add_tokens(
        block == 10 ? std::vector<std::int32_t>{50, 99, 51} : std::vector{block, block},
        block == 0);
  }
  EXPECT_EQ(writer.documents(), 2u);
  writer.add_tokens({60}, true);
  EXPECT_EQ(writer.documents(), 3u);
  writer.finish();
  EXPECT_EQ(tokens_of("validation.tokens"), (Ids{50, 99, 51}));
  EXPECT_EQ(begins_of("validation.documents"), (Ids{0, 2}));
  EXPECT_EQ(begins_of("train.documents"), (Ids{0, 20, 22}));
}

} // namespace
} // namespace tessera::data
