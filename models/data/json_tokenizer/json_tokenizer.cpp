#include "models/data/json_tokenizer/json_tokenizer.h"

#include <array>
#include <optional>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/json/parse.h"

#include "models/data/json_tokenizer/added_tokens.h"
#include "models/data/json_tokenizer/decoder.h"
#include "models/data/json_tokenizer/fields.h"
#include "models/data/json_tokenizer/make_word_model.h"
#include "models/data/json_tokenizer/normalizer.h"
#include "models/data/json_tokenizer/pre_tokenizer.h"
#include "models/data/utf8.h"

namespace tessera::data {

namespace {

constexpr const char* kPostProcessors =
    "ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing, Sequence";

constexpr std::array<const char*, 5> kEndsOfText{
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "[SEP]"};

/// What a post-processor of these types adds, `data prepare` does not want: begin and end.
void check_post_processor(const OrderedJson& json, const std::string& place) {
  if (json.is_null()) {
    return;
  }
  Fields fields(json, place);
  const std::string type = fields.text("type");
  if (type == "Sequence") {
    const OrderedJson& parts = fields.value("processors");
    if (!parts.is_array()) {
      fields.refuse("processors", "a list");
    }
    for (const OrderedJson& part : parts) {
      check_post_processor(part, place);
    }
    fields.done();
  } else if (
      type != "ByteLevel" && type != "TemplateProcessing" && type != "BertProcessing" &&
      type != "RobertaProcessing") {
    fields.refuse("type", kPostProcessors);
  }
}

OrderedJson parsed(std::string_view text, const std::string& name) {
  try {
    return parse_json(text, name);
  } catch (const JsonError& error) {
    throw ConfigError(error.what());
  }
}

class JsonTokenizer : public TokenizerModel {
 public:
  JsonTokenizer(const OrderedJson& json, const std::string& name) : name_(name) {
    Fields fields(json, name);
    fields.ignore("version");
    fields.must_be_unset("truncation");
    fields.must_be_unset("padding");
    normalizer_.emplace(fields.value("normalizer"), fields.place_of("normalizer"));
    pre_tokenizer_.emplace(fields.value("pre_tokenizer"), fields.place_of("pre_tokenizer"));
    check_post_processor(fields.value("post_processor"), fields.place_of("post_processor"));
    decoder_.emplace(fields.value("decoder"), fields.place_of("decoder"));
    words_ = make_word_model(
        fields.value("model"), fields.place_of("model"), pre_tokenizer_->byte_level());
    const auto added =
        read_added_tokens(fields.value("added_tokens"), fields.place_of("added_tokens"));
    fields.done();
    raw_.emplace(added, false, *normalizer_);
    normalized_.emplace(added, true, *normalizer_);
    name_ids(added, fields.place_of("added_tokens"));
  }

  std::vector<std::int32_t> encode(std::string_view text) override {
    if (first_invalid_utf8(text) != std::string_view::npos) {
      throw ConfigError(str("the text ", quoted_briefly(text), " is not UTF-8"));
    }
    std::vector<std::int32_t> ids;
    for (const auto& piece : raw_->split(text)) {
      if (piece.id >= 0) {
        ids.push_back(piece.id);
        continue;
      }
      const std::string normal = normalizer_->apply(std::string(piece.text));
      for (const auto& part : normalized_->split(normal)) {
        if (part.id >= 0) {
          ids.push_back(part.id);
          continue;
        }
        for (const std::string& word : pre_tokenizer_->apply(std::string(part.text))) {
          words_->encode(word, ids);
        }
      }
    }
    return ids;
  }

  std::string decode(const std::vector<std::int32_t>& ids) override {
    std::vector<std::string> tokens;
    for (const auto id : ids) {
      const auto& token = tokens_[static_cast<std::size_t>(id)];
      if (!token) {
        throw ConfigError(str(name_, " has no token with the id ", id));
      }
      if (!token->special) {
        tokens.push_back(token->content);
      }
    }
    return decoder_->text_of(tokens);
  }

  std::int64_t vocab_size() const override {
    return static_cast<std::int64_t>(tokens_.size());
  }
  std::int32_t end_of_document() const override {
    return end_;
  }

 private:
  struct Token {
    std::string content;
    bool special = false;
  };

  void set(std::int32_t id, const std::string& content, bool special, const std::string& place) {
    const auto at = static_cast<std::size_t>(id);
    if (at >= tokens_.size()) {
      tokens_.resize(at + 1);
    }
    if (tokens_[at] && tokens_[at]->content != content) {
      throw ConfigError(
          str(place,
              ": the id ",
              id,
              " is of ",
              quoted_briefly(tokens_[at]->content),
              " and of ",
              quoted_briefly(content)));
    }
    tokens_[at] = Token{content, special};
  }

  void name_ids(const std::vector<AddedToken>& added, const std::string& place) {
    const Vocabulary& vocabulary = words_->vocabulary();
    for (const auto& [content, id] : vocabulary) {
      set(id, content, false, place);
    }
    for (const AddedToken& token : added) {
      const auto known = vocabulary.find(token.content);
      if (known != vocabulary.end() && known->second != token.id) {
        throw ConfigError(
            str(place,
                ": ",
                quoted_briefly(token.content),
                " has the id ",
                token.id,
                ", in model.vocab ",
                known->second));
      }
      set(token.id, token.content, token.special, place);
    }
    for (const char* name : kEndsOfText) {
      for (const AddedToken& token : added) {
        if (end_ < 0 && token.special && token.content == name) {
          end_ = token.id;
        }
      }
    }
  }

  std::string name_;
  std::optional<Normalizer> normalizer_;
  std::optional<PreTokenizer> pre_tokenizer_;
  std::optional<TokenDecoder> decoder_;
  std::unique_ptr<WordModel> words_;
  std::optional<AddedTokenFinder> raw_;
  std::optional<AddedTokenFinder> normalized_;
  std::vector<std::optional<Token>> tokens_; // by id
  std::int32_t end_ = -1;
};

} // namespace

std::unique_ptr<TokenizerModel> make_json_tokenizer(
    std::string_view text,
    const std::string& name) {
  return std::make_unique<JsonTokenizer>(parsed(text, name), name);
}

} // namespace tessera::data
