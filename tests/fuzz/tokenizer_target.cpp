#include "tessera/base/error.h"

#include "models/data/json_tokenizer/byte_level.h"
#include "models/data/json_tokenizer/json_tokenizer.h"
#include "tests/fuzz/fuzz.h"

namespace tessera::fuzz {

namespace {

std::string byte_vocabulary() {
  std::string vocab;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string spelling = data::spelling_of_byte(static_cast<unsigned char>(byte));
    const bool escaped = spelling == "\"" || spelling == "\\";
    vocab += std::string(byte == 0 ? "" : ",") + "\"" + (escaped ? "\\" : "") + spelling +
             "\":" + std::to_string(byte);
  }
  return vocab;
}

constexpr const char* kWordPiece = R"({
  "added_tokens": [{"id": 1, "content": "[SEP]", "lstrip": true, "normalized": false,
    "special": true}],
  "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"},
    {"type": "BertNormalizer", "strip_accents": null, "lowercase": true}]},
  "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "BertPreTokenizer"},
    {"type": "Digits", "individual_digits": true}]},
  "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 1], "cls": ["[SEP]", 1]},
  "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
  "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 9, "vocab": {"[UNK]": 0, "[SEP]": 1, "a": 2, "##b": 3, "!": 4}}})";

} // namespace

std::vector<std::string> seeds() {
  const std::string bytes =
      R"json({"version": "1.0", "truncation": null, "padding": null,
  "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
    {"type": "Split",
     "pattern": {"Regex": "(?i:'s)|[^\\r\\n\\p{L}]?\\p{L}+|\\p{N}{1,3}|\\s+(?!\\S)"},
     "behavior": "Isolated", "invert": false},
    {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}]},
  "decoder": {"type": "ByteLevel"}, "added_tokens": [{"id": 300, "content": "<s>"}],
  "model": {"type": "BPE", "ignore_merges": true, "merges": ["a b", ["ab", "b"]],
    "vocab": {)json" +
      byte_vocabulary() + R"json(,"ab": 256, "abb": 257}}})json";
  return {bytes, kWordPiece};
}

} // namespace tessera::fuzz

// A tokenizer.json. One that is accepted encodes every text and reads its own ids.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  bool accepted = false;
  try {
    const auto tokenizer = data::make_json_tokenizer(
        std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
    accepted = true;
    for (const char* text :
         {"", "abba's 12345 <s>!\n\n  x", "[SEP]\xC3\xA4\xE2\x82\xAC\xF0\x9F\x8C\x8D\t\xC2\xA0"}) {
      const auto ids = tokenizer->encode(text);
      for (const auto id : ids) {
        if (id < 0 || id >= tokenizer->vocab_size()) {
          fuzz::broken("ids are in the vocabulary");
        }
      }
      tokenizer->decode(ids);
    }
  } catch (const ConfigError&) {
    // Before it was accepted, or ICU gave up on a pattern of the file.
    accepted = accepted || false;
  }
  fuzz::count(accepted);
  return 0;
}
