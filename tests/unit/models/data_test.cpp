#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

#include "models/data/batch.h"
#include "models/data/corpus.h"
#include "models/data/data_hashes.h"
#include "models/data/files.h"
#include "models/data/prepare.h"
#include "models/data/sampler.h"
#include "models/data/sentencepiece_model.h"
#include "models/data/tokenizer.h"
#include "tests/support/test_folder.h"

namespace tessera::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using tests::message_of;

// A test with a folder of its own.
class Data : public testing::Test {
 protected:
  std::string path(const std::string& name) const {
    return folder_ / name;
  }

  tests::TestFolder folder_;
};

// Sentences of a small grammar: enough variety for a few hundred pieces.
std::string some_text(int sentences) {
  const std::vector<std::string> who{
      "The shepherd", "A king", "My brother", "The old woman", "Every child"};
  const std::vector<std::string> does{"counted", "remembered", "followed", "answered", "carried"};
  const std::vector<std::string> what{
      "the sheep", "a long road", "her words", "the morning star", "bread"};
  std::string text;
  for (int i = 0; i < sentences; ++i) {
    text += who[i % 5] + " " + does[i / 5 % 5] + " " + what[i / 25 % 5] + " on day " +
            std::to_string(i) + ".\n";
  }
  return text;
}

TEST_F(Data, TokensGoThroughAFileOfEitherWidth) {
  const std::vector<std::int32_t> tokens{0, 5, 299, 7, 1};
  for (const std::int64_t vocabulary : {300, 65536, 65537, 1000000}) {
    write_token_file(path("a"), tokens, vocabulary);
    EXPECT_EQ(
        std::filesystem::file_size(path("a")), 64 + tokens.size() * (vocabulary <= 65536 ? 2 : 4));
    const TokenDataset dataset(path("a"));
    EXPECT_EQ(dataset.size(), 5);
    EXPECT_EQ(dataset.vocab_size(), vocabulary);
    std::vector<std::int64_t> read(3);
    dataset.copy(1, 3, read.data());
    EXPECT_EQ(read, (std::vector<std::int64_t>{5, 299, 7}));
    EXPECT_THROW(dataset.copy(3, 3, read.data()), InternalError);
    EXPECT_THROW(dataset.copy(6, 0, read.data()), InternalError);
  }
  EXPECT_THAT(
      message_of<ConfigError>([&] { write_token_file(path("b"), tokens, 299); }),
      AllOf(HasSubstr("token 299"), HasSubstr("vocabulary of 299")));
}

TEST_F(Data, DamagedTokenFilesAreNamed) {
  const auto open_error = [&](bool verify = true) {
    return message_of<ConfigError>([&] { const TokenDataset dataset(path("a"), verify); });
  };
  EXPECT_THAT(open_error(), AllOf(HasSubstr(path("a")), HasSubstr("No such file")));
  write_file(path("a"), "short");
  EXPECT_THAT(open_error(), HasSubstr("5 bytes"));
  write_file(path("a"), std::string(100, 'x'));
  EXPECT_THAT(open_error(), HasSubstr("does not begin with TSRTOKEN"));

  write_token_file(path("a"), {1, 2, 3, 4}, 10);
  const std::string whole = read_file(path("a"));
  write_file(path("a"), whole.substr(0, whole.size() - 2));
  EXPECT_THAT(open_error(), AllOf(HasSubstr("truncated"), HasSubstr("4 tokens, there are 3")));
  std::string changed = whole;
  changed[66] ^= 1;
  write_file(path("a"), changed);
  EXPECT_THAT(open_error(), HasSubstr("checksum differs"));
  EXPECT_EQ(open_error(/*verify=*/false), "no error");
  changed = whole;
  changed[8] = 9;
  write_file(path("a"), changed);
  EXPECT_THAT(open_error(), HasSubstr("version 9"));
}

TEST_F(Data, WritingLeavesNoHalfFile) {
  EXPECT_THAT(
      message_of<ConfigError>([&] { write_file(path("no/such/folder"), "x"); }),
      HasSubstr("No such file"));
  write_file(path("a"), "old");
  write_file(path("a"), "new");
  EXPECT_EQ(read_file(path("a")), "new");
  EXPECT_EQ(
      std::distance(
          std::filesystem::directory_iterator(folder_.path()),
          std::filesystem::directory_iterator()),
      1);
}

TEST_F(Data, TheTokenizerLosesNothing) {
  const std::string model = train_tokenizer(some_text(500), 400);
  EXPECT_EQ(model, train_tokenizer(some_text(500), 400));
  const Tokenizer tokenizer = Tokenizer::from_bytes(model, "test");
  EXPECT_EQ(tokenizer.vocab_size(), 400);
  for (const std::string text :
       {"The shepherd carried bread.\n",
        "  two  spaces, a tab\t and \n\n two line ends",
        "never seen: \xC3\xA4\xE2\x82\xAC\xF0\x9F\x8C\x8D",
        "",
        "\n"}) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
  // Words of the text are few pieces.
  EXPECT_LE(tokenizer.encode("The shepherd carried bread.\n").size(), 8);
  EXPECT_THAT(
      message_of<ConfigError>([&] {
        tokenizer.decode({3, 400});
      }),
      HasSubstr("token id 400"));
}

TEST_F(Data, TokenizerErrorsSayWhatToChange) {
  EXPECT_THAT(
      message_of<ConfigError>([] { train_tokenizer(some_text(50), 8000); }),
      AllOf(HasSubstr("8000"), HasSubstr("else a smaller one, or give more text")));
  EXPECT_THAT(
      message_of<ConfigError>([] { train_tokenizer(some_text(50), 100); }),
      HasSubstr("261 or more"));
  EXPECT_THAT(
      message_of<ConfigError>([] { Tokenizer::from_bytes("nonsense", "file.model"); }),
      HasSubstr("file.model is not a SentencePiece model"));
  EXPECT_THAT(
      message_of<ConfigError>([&] { const Tokenizer t(path("none")); }), HasSubstr(path("none")));
}

// SentencePiece would leave out a line of more than 4 KiB.
TEST_F(Data, LongLinesTakePartInTraining) {
  std::string line;
  for (int i = 0; i < 2000; ++i) {
    line += "zyxwvuts ";
  }
  const Tokenizer tokenizer = Tokenizer::from_bytes(train_tokenizer(line, 278), "test");
  EXPECT_EQ(tokenizer.encode(" zyxwvuts").size(), 1);
}

TEST_F(Data, PreparingTwiceDoesNothingAndChangesAreSeen) {
  write_file(path("text"), some_text(3000));
  PrepareOptions options;
  options.output = path("out");
  options.texts = {path("text")};
  options.vocab_size = 400;
  const auto first = prepare_corpus(options);
  EXPECT_FALSE(first.skipped);
  const auto stamp = std::filesystem::last_write_time(path("out/train.tokens"));
  const auto second = prepare_corpus(options);
  EXPECT_TRUE(second.skipped);
  EXPECT_EQ(second.train_tokens, first.train_tokens);
  EXPECT_EQ(std::filesystem::last_write_time(path("out/train.tokens")), stamp);

  const std::string train = read_file(path("out/train.tokens"));
  options.force = true;
  EXPECT_FALSE(prepare_corpus(options).skipped);
  EXPECT_EQ(read_file(path("out/train.tokens")), train);
  options.force = false;
  write_file(path("out/train.tokens"), train.substr(0, 100));
  EXPECT_FALSE(prepare_corpus(options).skipped);
  EXPECT_EQ(read_file(path("out/train.tokens")), train);
}

TEST_F(Data, OtherDataAreNotOverwrittenUnasked) {
  write_file(path("text"), some_text(3000));
  PrepareOptions options{path("out"), {path("text")}, 400, false};
  prepare_corpus(options);
  const std::string train = read_file(path("out/train.tokens"));
  const auto refusal = [&] { return message_of<ConfigError>([&] { prepare_corpus(options); }); };
  options.vocab_size = 420;
  EXPECT_THAT(refusal(), AllOf(HasSubstr("holds other data"), HasSubstr("--force")));
  options.vocab_size = 400;
  write_file(path("text"), some_text(3001));
  EXPECT_THAT(refusal(), HasSubstr("holds other data"));
  EXPECT_EQ(read_file(path("out/train.tokens")), train);
  write_file(path("out/data.json"), "{");
  EXPECT_THAT(refusal(), HasSubstr("is damaged"));
  std::filesystem::remove(path("out/data.json"));
  EXPECT_THAT(refusal(), HasSubstr("without a data.json"));
  EXPECT_EQ(read_file(path("out/train.tokens")), train);
  // What an interrupted preparation left is nobody's data.
  write_file(path("out/data.json.unfinished"), "");
  EXPECT_EQ(refusal(), "no error");
  EXPECT_FALSE(std::filesystem::exists(path("out/data.json.unfinished")));
  EXPECT_NE(read_file(path("out/train.tokens")), train);
  options.force = true;
  options.vocab_size = 420;
  EXPECT_EQ(refusal(), "no error");
}

TEST_F(Data, TheDescriptionHoldsTheHashesOfTheFiles) {
  write_file(path("text"), some_text(3000));
  const PrepareOptions options{path("out"), {path("text")}, 400, false};
  prepare_corpus(options);
  const auto hashes = [&] {
    return hashes_of(
        TokenDataset(path("out/train.tokens"), false),
        TokenDataset(path("out/validation.tokens"), false),
        path("out"));
  };
  const DataHashes before = hashes();
  const auto manifest = nlohmann::json::parse(read_file(path("out/data.json")));
  EXPECT_EQ(data_hashes_from_json(manifest.at("hashes").dump(), "data.json"), before);
  EXPECT_EQ(differences(before, "a", before, "b"), "");
  // A tokenizer that was exchanged is noticed, and made anew from the same text.
  const std::string tokenizer = read_file(path("out/tokenizer.model"));
  prepare_corpus({path("other"), {path("text")}, 420, false});
  std::filesystem::copy_file(
      path("other/tokenizer.model"),
      path("out/tokenizer.model"),
      std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(
      differences(before, "a", hashes(), "b"),
      "  tokenizer.model: a has " + before.tokenizer + ", b has " + hashes().tokenizer);
  EXPECT_FALSE(prepare_corpus(options).skipped);
  EXPECT_EQ(read_file(path("out/tokenizer.model")), tokenizer);
}

TEST_F(Data, TheSplitKeepsEveryLineOnce) {
  const std::string text = some_text(3000);
  write_file(path("text"), text);
  const auto result = prepare_corpus({path("out"), {path("text")}, 400, false});
  const Tokenizer tokenizer(path("out/tokenizer.model"));
  const auto text_of = [&](const char* name) {
    const TokenDataset dataset(path(name));
    std::vector<std::int64_t> tokens(dataset.size());
    dataset.copy(0, dataset.size(), tokens.data());
    std::vector<std::int32_t> ids(tokens.begin(), tokens.end());
    std::erase(ids, tokenizer.end_of_document());
    return tokenizer.decode(ids);
  };
  std::multiset<std::string> found;
  std::multiset<std::string> expected;
  const auto add_lines = [](const std::string& from, auto& to) {
    std::istringstream lines(from);
    for (std::string line; std::getline(lines, line);) {
      to.insert(line);
    }
  };
  add_lines(text_of("out/train.tokens"), found);
  add_lines(text_of("out/validation.tokens"), found);
  add_lines(text, expected);
  EXPECT_EQ(found, expected);
  const double share =
      static_cast<double>(result.validation_tokens) / static_cast<double>(result.train_tokens);
  EXPECT_GT(share, 0.02);
  EXPECT_LT(share, 0.10);
}

TEST_F(Data, WrongTextsAreNamed) {
  const auto prepare_error = [&] {
    return message_of<ConfigError>([&] {
      prepare_corpus({path("out"), {path("text")}, 300, false});
    });
  };
  EXPECT_THAT(prepare_error(), HasSubstr(path("text")));
  write_file(path("text"), "");
  EXPECT_THAT(prepare_error(), HasSubstr("is empty"));
  write_file(path("text"), std::string("a\0b", 3));
  EXPECT_THAT(prepare_error(), HasSubstr("NUL byte"));
  write_file(path("text"), some_text(100));
  EXPECT_THAT(prepare_error(), HasSubstr("validation"));
  EXPECT_FALSE(std::filesystem::exists(path("out/data.json")));
}

TEST(Corpus, AMissingProgramNamesThePackage) {
  EXPECT_THAT(
      message_of<ConfigError>([] { read_king_james_bible("no-such-program-of-tessera"); }),
      AllOf(HasSubstr("no-such-program-of-tessera"), HasSubstr("apt-get install bible-kjv")));
  EXPECT_THAT(
      message_of<ConfigError>([] { read_king_james_bible("false"); }), HasSubstr("status 1"));
}

TEST(Corpus, OtherOutputThanTheWholeTextIsRefused) {
  EXPECT_THAT(
      message_of<ConfigError>(
          [] { parse_king_james_bible("\nGenesis 1\n\n  1 In the beginning.\n"); }),
      HasSubstr("1 books, 1 chapters and 1 verses, expected 66"));
  EXPECT_THAT(
      message_of<ConfigError>(
          [] { parse_king_james_bible("\nGenesis 1\n\n  In the beginning\n"); }),
      HasSubstr("neither heading nor verse"));
}

TEST(Corpus, KingJamesVersionIsReadWhole) {
  if (std::system("command -v bible > /dev/null") != 0) {
    GTEST_SKIP() << "package bible-kjv is not installed";
  }
  const auto books = read_king_james_bible();
  ASSERT_EQ(books.size(), 66);
  EXPECT_EQ(books.front().name, "Genesis");
  EXPECT_THAT(
      books.front().text,
      testing::StartsWith("Genesis 1\n\nIn the beginning God created the heaven and the "
                          "earth.\nAnd the earth was without form,"));
  EXPECT_EQ(books[21].name, "Song of Solomon");
  EXPECT_THAT(
      books.back().text,
      testing::EndsWith("\nThe grace of our Lord Jesus Christ be with you "
                        "all. Amen.\n"));
}

SamplerOptions sampler_options(std::uint64_t samples, std::uint64_t batch, int rank, int size) {
  return {samples, batch, rank, size, /*seed=*/7, /*shuffle=*/true};
}

TEST(Sampler, EveryEpochIsAnotherPermutation) {
  for (const std::uint64_t samples : {1, 2, 3, 5, 64, 1000}) {
    Sampler sampler(sampler_options(samples, 1, 0, 1));
    std::vector<std::vector<std::uint64_t>> epochs(3);
    for (auto& epoch : epochs) {
      for (std::uint64_t i = 0; i < samples; ++i) {
        epoch.push_back(sampler.next().at(0));
      }
      auto sorted = epoch;
      std::sort(sorted.begin(), sorted.end());
      for (std::uint64_t i = 0; i < samples; ++i) {
        ASSERT_EQ(sorted[i], i);
      }
    }
    if (samples >= 64) {
      EXPECT_NE(epochs[0], epochs[1]);
      EXPECT_NE(epochs[1], epochs[2]);
      EXPECT_FALSE(std::is_sorted(epochs[0].begin(), epochs[0].end()));
    }
  }
}

TEST(Sampler, ShufflingLeavesNoPattern) {
  constexpr std::uint64_t kSamples = 1000;
  Sampler sampler(sampler_options(kSamples, kSamples, 0, 1));
  const auto order = sampler.next();
  // Neighbours of a uniform permutation are a third of its length apart.
  double distance = 0;
  for (std::size_t i = 1; i < order.size(); ++i) {
    distance += std::abs(static_cast<double>(order[i]) - static_cast<double>(order[i - 1]));
  }
  EXPECT_NEAR(distance / kSamples, kSamples / 3.0, 30);
}

TEST(Sampler, TheStepsSamplesDoNotDependOnTheDegree) {
  constexpr std::uint64_t kGlobal = 8;
  std::vector<std::vector<std::uint64_t>> steps;
  Sampler alone(sampler_options(29, kGlobal, 0, 1));
  for (int step = 0; step < 12; ++step) { // over the ends of three epochs
    steps.push_back(alone.next());
  }
  for (const int size : {2, 4, 8}) {
    std::vector<Sampler> ranks;
    for (int rank = 0; rank < size; ++rank) {
      ranks.emplace_back(sampler_options(29, kGlobal / size, rank, size));
    }
    for (const auto& expected : steps) {
      std::vector<std::uint64_t> joined;
      for (auto& rank : ranks) {
        const auto own = rank.next();
        joined.insert(joined.end(), own.begin(), own.end());
      }
      EXPECT_EQ(joined, expected);
    }
  }
}

TEST(Sampler, GoesOnWhereItWas) {
  Sampler sampler(sampler_options(29, 4, 0, 1));
  for (int step = 0; step < 9; ++step) {
    sampler.next();
  }
  const SamplerState state = sampler_state_from_json(to_json(sampler.state()));
  EXPECT_EQ(state, (SamplerState{1, 7})); // 36 = 29 + 7
  // With another degree as well.
  Sampler left(sampler_options(29, 2, 0, 2));
  Sampler right(sampler_options(29, 2, 1, 2));
  left.set_state(state);
  right.set_state(state);
  for (int step = 0; step < 9; ++step) {
    auto joined = left.next();
    const auto rest = right.next();
    joined.insert(joined.end(), rest.begin(), rest.end());
    EXPECT_EQ(joined, sampler.next());
  }
}

TEST(Sampler, AnotherSeedIsAnotherOrder) {
  auto options = sampler_options(100, 20, 0, 1);
  Sampler a(options);
  options.seed = 8;
  Sampler b(options);
  EXPECT_NE(a.next(), b.next());
  options.shuffle = false;
  Sampler c(options);
  EXPECT_EQ(c.next().at(19), 19);
}

TEST(Sampler, ErrorsAreClear) {
  EXPECT_THROW(Sampler(sampler_options(0, 1, 0, 1)), ConfigError);
  EXPECT_THROW(Sampler(sampler_options(1, 1, 2, 2)), ConfigError);
  Sampler sampler(sampler_options(10, 1, 0, 1));
  EXPECT_THAT(
      message_of<CheckpointError>([&] {
        sampler.set_state({0, 10});
      }),
      HasSubstr("index 10 of an epoch of 10"));
  EXPECT_THAT(
      message_of<CheckpointError>([] { sampler_state_from_json(R"({"epoch": 1})"); }),
      HasSubstr("sampler state: field 'index' is missing"));
  EXPECT_EQ(count_samples(65, {64, 65}, "x"), 1);
  EXPECT_EQ(count_samples(128, {64, 65}, "x"), 1);
  EXPECT_EQ(count_samples(129, {64, 65}, "x"), 2);
  EXPECT_EQ(count_samples(128, {64, 64}, "x"), 2);
  EXPECT_THAT(
      message_of<ConfigError>([] {
        count_samples(64, {64, 65}, "train.tokens");
      }),
      AllOf(HasSubstr("train.tokens has 64"), HasSubstr("needs 65")));
}

TEST_F(Data, WindowsAreRunsOfTokens) {
  std::vector<std::int32_t> tokens(21);
  for (int i = 0; i < 21; ++i) {
    tokens[i] = 100 + i;
  }
  write_token_file(path("a"), tokens, 200);
  const TokenDataset dataset(path("a"));
  ASSERT_EQ(count_samples(dataset.size(), {5, 6}, "a"), 4);
  EXPECT_TRUE(torch::equal(
      load_windows(dataset, {3, 0}, {5, 6}),
      torch::tensor({{115, 116, 117, 118, 119, 120}, {100, 101, 102, 103, 104, 105}}, at::kLong)));
}

} // namespace
} // namespace tessera::data
