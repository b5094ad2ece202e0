#include "models/data/sentencepiece_model.h"

#include <cstring>
#include <filesystem>

#include "tessera/base/child_process.h"
#include "tessera/base/error.h"

#include "models/data/tokenizer_protocol.h"

namespace tessera::data {

namespace {

using tokenizer_protocol::Header;
using tokenizer_protocol::Kind;

constexpr const char* kProgram = "tessera-tokenizer";
// The four special ids, 256 bytes and the end of a line.
constexpr std::int64_t kSmallestVocabulary = 4 + 256 + 1;

std::string find_program() {
  std::error_code ignored;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", ignored);
  for (const auto& folder : {self.parent_path(), std::filesystem::path(TESSERA_PROGRAM_FOLDER)}) {
    const auto program = folder / kProgram;
    if (std::filesystem::exists(program, ignored)) {
      return program.string();
    }
  }
  return kProgram;
}

struct Answer {
  bool done = false;
  std::string payload;
};

class Worker {
 public:
  Worker() : child_({find_program()}, "; it is built and installed with the program tessera") {}

  Answer ask(Kind kind, std::string_view first, std::string_view second = {}) {
    const Header request{kind, 0, first.size() + second.size()};
    Header reply;
    Answer answer;
    bool good = child_.write(&request, sizeof(request)) &&
                child_.write(first.data(), first.size()) &&
                child_.write(second.data(), second.size()) && child_.read(&reply, sizeof(reply));
    if (good) {
      answer.done = reply.kind == tokenizer_protocol::kDone;
      answer.payload.resize(reply.bytes);
      good = child_.read(answer.payload.data(), answer.payload.size());
    }
    if (!good) {
      throw ConfigError(str("the program ", kProgram, " ended with status ", child_.wait()));
    }
    return answer;
  }

 private:
  ChildProcess child_;
};

class SentencePieceModel : public TokenizerModel {
 public:
  SentencePieceModel(std::string_view bytes, const std::string& name) {
    const auto answer = worker_.ask(tokenizer_protocol::kLoad, bytes);
    if (!answer.done || answer.payload.size() != sizeof(loaded_)) {
      throw ConfigError(
          str(name,
              " is not a SentencePiece model (",
              answer.payload,
              ") and no tokenizer.json; `tessera data prepare` writes one as tokenizer.model"));
    }
    std::memcpy(&loaded_, answer.payload.data(), sizeof(loaded_));
  }

  std::vector<std::int32_t> encode(std::string_view text) override {
    const auto answer = worker_.ask(tokenizer_protocol::kEncode, text);
    TESSERA_CHECK(answer.done, answer.payload);
    std::vector<std::int32_t> ids(answer.payload.size() / sizeof(std::int32_t));
    std::memcpy(ids.data(), answer.payload.data(), answer.payload.size());
    return ids;
  }
  std::string decode(const std::vector<std::int32_t>& ids) override {
    auto answer = worker_.ask(
        tokenizer_protocol::kDecode,
        std::string_view(
            reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(std::int32_t)));
    TESSERA_CHECK(answer.done, answer.payload);
    return std::move(answer.payload);
  }
  std::int64_t vocab_size() const override {
    return loaded_.vocab_size;
  }
  std::int32_t end_of_document() const override {
    return loaded_.end_of_document;
  }

 private:
  Worker worker_;
  tokenizer_protocol::Loaded loaded_;
};

} // namespace

std::unique_ptr<TokenizerModel> make_sentencepiece_model(
    std::string_view bytes,
    const std::string& name) {
  return std::make_unique<SentencePieceModel>(bytes, name);
}

std::string train_tokenizer(std::string_view text, std::int64_t vocab_size) {
  if (vocab_size < kSmallestVocabulary) {
    throw ConfigError(
        str("vocab_size ",
            vocab_size,
            ": every byte has a token, write ",
            kSmallestVocabulary,
            " or more"));
  }
  Worker worker;
  const tokenizer_protocol::Training training{vocab_size};
  auto answer = worker.ask(
      tokenizer_protocol::kTrain,
      std::string_view(reinterpret_cast<const char*>(&training), sizeof(training)),
      text);
  if (!answer.done) {
    throw ConfigError(str(
        "no tokenizer of ",
        vocab_size,
        " pieces can be trained on this text (",
        answer.payload,
        "); write a larger vocab_size where it is smaller than the characters of the text, else a "
        "smaller one, or give more text"));
  }
  return std::move(answer.payload);
}

} // namespace tessera::data
