#include "models/data/tokenizer.h"

#include <cstring>
#include <filesystem>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

#include "models/data/child_process.h"
#include "models/data/files.h"
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

} // namespace

class Tokenizer::Worker {
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

Tokenizer::Tokenizer(std::unique_ptr<Worker> worker) : worker_(std::move(worker)) {}
Tokenizer::Tokenizer(const std::string& path) : Tokenizer(from_bytes(read_file(path), path)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::from_bytes(std::string_view model, const std::string& name) {
  Tokenizer tokenizer(std::make_unique<Worker>());
  const auto answer = tokenizer.worker_->ask(tokenizer_protocol::kLoad, model);
  tokenizer_protocol::Loaded loaded;
  if (!answer.done || answer.payload.size() != sizeof(loaded)) {
    throw ConfigError(
        str(name,
            " is not a SentencePiece model (",
            answer.payload,
            "); `tessera data prepare` writes one as tokenizer.model"));
  }
  std::memcpy(&loaded, answer.payload.data(), sizeof(loaded));
  tokenizer.vocab_size_ = loaded.vocab_size;
  tokenizer.end_of_document_ = loaded.end_of_document;
  return tokenizer;
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  const auto answer = worker_->ask(tokenizer_protocol::kEncode, text);
  TESSERA_CHECK(answer.done, answer.payload);
  std::vector<std::int32_t> ids(answer.payload.size() / sizeof(std::int32_t));
  std::memcpy(ids.data(), answer.payload.data(), answer.payload.size());
  return ids;
}

std::string Tokenizer::decode(const std::vector<std::int32_t>& ids) const {
  for (const auto id : ids) {
    if (id < 0 || id >= vocab_size_) {
      throw ConfigError(str("token id ", id, " is not one of the tokenizer's ", vocab_size_));
    }
  }
  auto answer = worker_->ask(
      tokenizer_protocol::kDecode,
      std::string_view(
          reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(std::int32_t)));
  TESSERA_CHECK(answer.done, answer.payload);
  return std::move(answer.payload);
}

std::int64_t Tokenizer::vocab_size() const {
  return vocab_size_;
}

std::int32_t Tokenizer::end_of_document() const {
  return end_of_document_;
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
  Tokenizer::Worker worker;
  const tokenizer_protocol::Training training{vocab_size};
  auto answer = worker.ask(
      tokenizer_protocol::kTrain,
      std::string_view(reinterpret_cast<const char*>(&training), sizeof(training)),
      text);
  if (!answer.done) {
    throw ConfigError(
        str("no tokenizer of ",
            vocab_size,
            " pieces can be trained on this text (",
            answer.payload,
            "); give more text or a smaller vocab_size"));
  }
  return std::move(answer.payload);
}

} // namespace tessera::data
