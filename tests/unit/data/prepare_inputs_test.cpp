#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tessera/base/files.h"

#include "models/data/document_index.h"
#include "models/data/input/documents.h"
#include "models/data/json_tokenizer/byte_level.h"
#include "models/data/prepare.h"
#include "models/data/token_file.h"
#include "models/data/tokenizer.h"
#include "tests/unit/data/folder.h"

namespace tessera::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Json = nlohmann::ordered_json;

// Every byte is a token; 256 ends a text.
std::string bytes_tokenizer(bool with_end = true) {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) {
    vocab[spelling_of_byte(static_cast<unsigned char>(byte))] = byte;
  }
  Json added = Json::array();
  if (with_end) {
    added.push_back({{"id", 256}, {"content", "</s>"}, {"special", true}});
  }
  return Json{
      {"added_tokens", added},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}}
      .dump();
}

class Prepare : public FolderTest {
 protected:
  Prepare() {
    made("tokenizer.json", bytes_tokenizer());
    std::string lines;
    for (int i = 0; i < 100; ++i) {
      lines += Json{{"text", document(i)}, {"id", i}}.dump() + "\n";
    }
    made("in/a.jsonl", lines);
  }
  static std::string document(int i) {
    return "document " + std::to_string(i) + (i % 3 == 0 ? "\nof two lines" : "");
  }
  PrepareOptions options(const std::string& output) const {
    PrepareOptions made;
    made.output = path(output);
    made.texts = {path("in")};
    made.tokenizer = path("tokenizer.json");
    return made;
  }
  std::vector<std::int32_t> tokens_of(const std::string& name) const {
    const TokenDataset dataset(path(name));
    std::vector<std::int64_t> ids(dataset.size());
    dataset.copy(0, dataset.size(), ids.data());
    return {ids.begin(), ids.end()};
  }
  // Of a folder: all that is not of one time.
  std::vector<std::string> contents(const std::string& folder) const {
    std::vector<std::string> all;
    for (const char* name :
         {kJsonTokenizerFile,
          kTrainFile,
          kValidationFile,
          kTrainDocumentsFile,
          kValidationDocumentsFile,
          kManifestFile}) {
      all.push_back(read_file(path(folder + "/" + name)));
    }
    return all;
  }
};

TEST_F(Prepare, EveryLineIsADocumentOfTheIndex) {
  const auto result = prepare_corpus(options("out"));
  EXPECT_EQ(result.documents, 100u);
  EXPECT_EQ(result.vocab_size, 257);
  std::vector<std::int32_t> train;
  std::vector<std::int32_t> validation;
  std::vector<std::uint64_t> begins;
  for (int i = 0; i < 100; ++i) {
    auto& part = i % 20 == 10 ? validation : train;
    if (&part == &train) {
      begins.push_back(train.size());
    }
    for (const char c : document(i)) {
      part.push_back(static_cast<unsigned char>(c));
    }
    part.push_back(256);
  }
  EXPECT_EQ(tokens_of("out/train.tokens"), train);
  EXPECT_EQ(tokens_of("out/validation.tokens"), validation);
  const DocumentIndex index(path("out/train.documents"));
  ASSERT_EQ(index.documents(), 95u);
  for (std::uint64_t i = 0; i < 95; ++i) {
    EXPECT_EQ(index.begin_of(i), begins[i]);
  }
  EXPECT_EQ(DocumentIndex(path("out/validation.documents")).documents(), 5u);
  const FolderFacts facts = read_folder(path("out"));
  EXPECT_EQ(facts.manifest->documents, 100u);
  EXPECT_EQ(facts.train_documents, 95u);
  EXPECT_EQ(facts.tokenizer, "tokenizer.json");
  EXPECT_EQ(tokenizer_path(path("out")), path("out/tokenizer.json"));
}

TEST_F(Prepare, ThreadsChangeNothing) {
  auto one = options("one");
  one.threads = 1;
  auto five = options("five");
  five.threads = 5;
  prepare_corpus(one);
  prepare_corpus(five);
  EXPECT_EQ(contents("one"), contents("five"));
  EXPECT_TRUE(prepare_corpus(five).skipped);
}

TEST_F(Prepare, AWordTooManyIsOtherData) {
  prepare_corpus(options("out"));
  made("in/b.txt", "more\n");
  EXPECT_THAT(message_of([&] { prepare_corpus(options("out")); }), HasSubstr("holds other data"));
  auto forced = options("out");
  forced.force = true;
  EXPECT_EQ(prepare_corpus(forced).documents, 101u);
}

TEST_F(Prepare, ATokenizerWithoutAnEndSeparatesNothing) {
  made("tokenizer.json", bytes_tokenizer(false));
  prepare_corpus(options("out"));
  for (const auto token : tokens_of("out/train.tokens")) {
    EXPECT_LT(token, 256);
  }
  EXPECT_EQ(DocumentIndex(path("out/train.documents")).documents(), 95u);
}

TEST_F(Prepare, DamagedIndexesAreMadeAnew) {
  prepare_corpus(options("out"));
  const auto whole = contents("out");
  std::filesystem::remove(path("out/train.documents"));
  EXPECT_FALSE(prepare_corpus(options("out")).skipped);
  EXPECT_EQ(contents("out"), whole);
  // The index of another folder.
  auto other = options("other");
  other.texts = {made("other.jsonl", "{\"text\": \"a\"}\n" + read_file(path("in/a.jsonl")))};
  prepare_corpus(other);
  std::filesystem::copy_file(
      path("other/train.documents"),
      path("out/train.documents"),
      std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(message_of([&] { read_folder(path("out")); }), HasSubstr("do not belong together"));
  EXPECT_FALSE(prepare_corpus(options("out")).skipped);
  EXPECT_EQ(contents("out"), whole);
}

TEST_F(Prepare, FoldersOfEarlierVersionsAreRead) {
  prepare_corpus(options("out"));
  std::filesystem::remove(path("out/train.documents"));
  std::filesystem::remove(path("out/validation.documents"));
  Json manifest = Json::parse(read_file(path("out/data.json")));
  manifest["format"] = 1;
  manifest.erase("documents");
  manifest["input_hash"] = "1234";
  write_file(path("out/data.json"), manifest.dump());
  const FolderFacts facts = read_folder(path("out"));
  EXPECT_FALSE(facts.train_documents);
  EXPECT_EQ(facts.train_tokens, tokens_of("out/train.tokens").size());
  EXPECT_THAT(
      message_of([&] { prepare_corpus(options("out")); }),
      AllOf(HasSubstr("earlier version"), HasSubstr("--force")));
}

TEST_F(Prepare, AnErrorLeavesTheOldFolder) {
  prepare_corpus(options("out"));
  const auto whole = contents("out");
  made("in/b.jsonl", "{\"no\": 1}\n");
  auto forced = options("out");
  forced.force = true;
  EXPECT_THAT(
      message_of([&] { prepare_corpus(forced); }),
      HasSubstr(path("in/b.jsonl") + ", line 1: there is no field \"text\""));
  EXPECT_EQ(contents("out"), whole);
}

TEST_F(Prepare, TokensAreTakenAsTheyAre) {
  std::vector<std::uint16_t> numbers;
  for (int i = 0; i < 15000; ++i) {
    numbers.push_back(static_cast<std::uint16_t>(i % 1000 == 999 ? 256 : i % 251));
  }
  made("tokens/a.bin", {reinterpret_cast<const char*>(numbers.data()), numbers.size() * 2});
  PrepareOptions tokens;
  tokens.output = path("out");
  tokens.tokens = {path("tokens")};
  tokens.token_bytes = 2;
  tokens.tokenizer = path("tokenizer.json");
  const auto result = prepare_corpus(tokens);
  EXPECT_EQ(result.documents, 15u);
  std::vector<std::int32_t> train(numbers.begin(), numbers.end());
  const auto held = train.begin() + 10 * 1024;
  const std::vector<std::int32_t> validation(held, held + 1024);
  train.erase(held, held + 1024);
  EXPECT_EQ(tokens_of("out/train.tokens"), train);
  EXPECT_EQ(tokens_of("out/validation.tokens"), validation);
  // Token 10999 ends a document in what was held back, so the next one begins behind it there and
  // once more in training.
  const DocumentIndex index(path("out/train.documents"));
  EXPECT_EQ(index.documents(), 15u);
  EXPECT_EQ(index.begin_of(10), 10000u);
  EXPECT_EQ(index.begin_of(11), 10240u);
  EXPECT_EQ(index.begin_of(12), 12000u - 1024);
  EXPECT_EQ(DocumentIndex(path("out/validation.documents")).documents(), 2u);
  EXPECT_TRUE(prepare_corpus(tokens).skipped);

  tokens.token_bytes = 4;
  EXPECT_THAT(message_of([&] { prepare_corpus(tokens); }), HasSubstr("token 0 (from 0) is 65536"));
  tokens.tokenizer = "";
  EXPECT_THAT(message_of([&] { prepare_corpus(tokens); }), HasSubstr("--tokenizer"));
}

TEST_F(Prepare, ProgressIsTold) {
  std::string text;
  while (text.size() < 3'000'000) {
    text += "A line of the text that is long enough to be told about.\n";
  }
  made("in/long.txt", text);
  auto told = options("out");
  std::uint64_t last = 0;
  told.progress = [&](const PrepareProgress& progress) {
    EXPECT_GT(progress.total_bytes, 3'000'000u);
    EXPECT_LE(progress.done_bytes, progress.total_bytes);
    last = progress.done_bytes;
  };
  prepare_corpus(told);
  EXPECT_GT(last, 0u);
}

} // namespace
} // namespace tessera::data
