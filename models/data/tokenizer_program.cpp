// tessera-tokenizer: SentencePiece in a process of its own, started by
// Tokenizer (see tokenizer.h for why). Answers frames on standard input until
// its end.
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <unistd.h>

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include "models/data/tokenizer_protocol.h"

namespace {

using namespace tessera::data::tokenizer_protocol;

// SentencePiece skips longer sentences without an error: long lines are cut.
constexpr std::size_t kLongestSentence = 2048;

class Sentences : public sentencepiece::SentenceIterator {
 public:
  explicit Sentences(std::string_view text) {
    while (!text.empty()) {
      const auto end = std::min(text.find('\n'), text.size());
      add(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    load();
  }
  bool done() const override {
    return at_ >= pieces_.size();
  }
  void Next() override {
    ++at_;
    load();
  }
  const std::string& value() const override {
    return value_;
  }
  sentencepiece::util::Status status() const override {
    return {};
  }

 private:
  // Cuts at a space where there is one, never inside a UTF-8 sequence.
  void add(std::string_view line) {
    while (line.size() > kLongestSentence) {
      auto end = line.rfind(' ', kLongestSentence);
      if (end == std::string_view::npos || end == 0) {
        end = kLongestSentence;
        while (end > 1 && (line[end] & 0xC0) == 0x80) {
          --end;
        }
      }
      pieces_.push_back(line.substr(0, end));
      line.remove_prefix(end);
    }
    if (!line.empty()) {
      pieces_.push_back(line);
    }
  }
  void load() {
    if (!done()) {
      value_ = std::string(pieces_[at_]);
    }
  }

  std::vector<std::string_view> pieces_;
  std::size_t at_ = 0;
  std::string value_;
};

struct Failure {
  std::string reason;
};

void check(const sentencepiece::util::Status& status) {
  if (!status.ok()) {
    throw Failure{status.ToString()};
  }
}

std::string train(std::string_view payload) {
  Training training;
  std::memcpy(&training, payload.data(), sizeof(training));
  Sentences sentences(payload.substr(sizeof(training)));
  std::string model;
  const std::unordered_map<std::string, std::string> arguments{
      {"model_type", "bpe"},
      {"vocab_size", std::to_string(training.vocab_size)},
      // One thread and no sampling: the same text gives the same model.
      {"num_threads", "1"},
      {"input_sentence_size", "0"},
      {"minloglevel", "1"},
      {"pad_id", "3"},
      // Text is taken as it is, so that it comes back as it was.
      {"character_coverage", "1.0"},
      {"byte_fallback", "true"},
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"add_dummy_prefix", "false"},
      {"user_defined_symbols", "\n"}};
  check(sentencepiece::SentencePieceTrainer::Train(arguments, &sentences, &model));
  return model;
}

std::string answer(
    sentencepiece::SentencePieceProcessor& processor,
    std::uint32_t kind,
    const std::string& payload) {
  const auto as_bytes = [](const auto* values, std::size_t count) {
    return std::string(reinterpret_cast<const char*>(values), count * sizeof(*values));
  };
  std::vector<int> ids;
  std::string text;
  switch (kind) {
    case kTrain:
      return train(payload);
    case kLoad: {
      check(processor.LoadFromSerializedProto(payload));
      const Loaded loaded{processor.GetPieceSize(), processor.eos_id()};
      return as_bytes(&loaded, 1);
    }
    case kEncode:
      check(processor.Encode(payload, &ids));
      return as_bytes(ids.data(), ids.size());
    case kDecode:
      ids.resize(payload.size() / sizeof(int));
      std::memcpy(ids.data(), payload.data(), ids.size() * sizeof(int));
      check(processor.Decode(ids, &text));
      return text;
    default:
      throw Failure{"unknown request " + std::to_string(kind)};
  }
}

template <typename Transfer>
bool transfer_all(Transfer transfer, char* at, std::size_t size) {
  while (size > 0) {
    const auto count = transfer(at, size);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      return false;
    }
    at += count;
    size -= static_cast<std::size_t>(count);
  }
  return true;
}

bool read_all(void* bytes, std::size_t size) {
  return transfer_all(
      [](char* at, std::size_t n) { return read(0, at, n); }, static_cast<char*>(bytes), size);
}

bool write_all(const void* bytes, std::size_t size) {
  return transfer_all(
      [](const char* at, std::size_t n) { return write(1, at, n); },
      const_cast<char*>(static_cast<const char*>(bytes)),
      size);
}

} // namespace

int main() {
  sentencepiece::SentencePieceProcessor processor;
  Header header;
  std::string payload;
  while (read_all(&header, sizeof(header))) {
    payload.resize(header.bytes);
    if (!read_all(payload.data(), payload.size())) {
      return 1;
    }
    Header reply;
    std::string result;
    try {
      result = answer(processor, header.kind, payload);
      reply.kind = kDone;
    } catch (const Failure& failure) {
      result = failure.reason;
      reply.kind = kFailed;
    } catch (const std::exception& error) {
      result = error.what();
      reply.kind = kFailed;
    }
    reply.bytes = result.size();
    if (!write_all(&reply, sizeof(reply)) || !write_all(result.data(), result.size())) {
      return 1;
    }
  }
  return 0;
}
