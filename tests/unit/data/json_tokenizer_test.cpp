#include "models/data/json_tokenizer/json_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"

#include "models/data/json_tokenizer/byte_level.h"
#include "models/data/json_tokenizer/pattern.h"
#include "models/data/json_tokenizer/pre_tokenizer.h"
#include "models/data/tokenizer.h"
#include "tests/unit/data/folder.h"

namespace tessera::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Json = nlohmann::ordered_json;

constexpr const char* kLlama3Words =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

// Every byte has its own number as id; merges make 256 and on.
Json byte_level(const std::vector<std::string>& merges) {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) {
    vocab[spelling_of_byte(static_cast<unsigned char>(byte))] = byte;
  }
  int next = 256;
  for (const std::string& merge : merges) {
    std::string token = merge;
    token.erase(token.find(' '), 1);
    if (!vocab.contains(token)) {
      vocab[token] = next++;
    }
  }
  return {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens",
       Json::array({Json{
           {"id", 400},
           {"content", "<|endoftext|>"},
           {"single_word", false},
           {"lstrip", false},
           {"rstrip", false},
           {"normalized", false},
           {"special", true}}})},
      {"normalizer", nullptr},
      {"pre_tokenizer",
       {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}}},
      {"post_processor", {{"type", "ByteLevel"}, {"trim_offsets", false}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"continuing_subword_prefix", ""},
        {"end_of_word_suffix", ""},
        {"fuse_unk", false},
        {"byte_fallback", false},
        {"ignore_merges", false},
        {"vocab", vocab},
        {"merges", merges}}}};
}

Json word_piece() {
  const std::vector<std::string> tokens{
      "[PAD]",
      "[UNK]",
      "[CLS]",
      "[SEP]",
      "un",
      "##aff",
      "##able",
      ",",
      "cafe",
      "the",
      "##s",
      "\xE4\xB8\xAD",
      "!",
      "unaff"};
  Json vocab = Json::object();
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    vocab[tokens[i]] = i;
  }
  Json added = Json::array();
  for (const char* name : {"[PAD]", "[UNK]", "[CLS]", "[SEP]"}) {
    added.push_back(
        {{"id", vocab[name]}, {"content", name}, {"normalized", false}, {"special", true}});
  }
  return {
      {"added_tokens", added},
      {"normalizer",
       {{"type", "BertNormalizer"},
        {"clean_text", true},
        {"handle_chinese_chars", true},
        {"strip_accents", nullptr},
        {"lowercase", true}}},
      {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
      {"post_processor", {{"type", "TemplateProcessing"}, {"single", Json::array()}}},
      {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
      {"model",
       {{"type", "WordPiece"},
        {"unk_token", "[UNK]"},
        {"continuing_subword_prefix", "##"},
        {"max_input_chars_per_word", 12},
        {"vocab", vocab}}}};
}

Tokenizer tokenizer_of(const Json& json) {
  return Tokenizer::from_bytes(json.dump(), "t.json");
}

std::vector<std::string> words_of(const Json& json, const std::string& text) {
  return PreTokenizer(json, "t.json: pre_tokenizer").apply(text);
}

const Json kGpt2{{"type", "ByteLevel"}, {"add_prefix_space", false}};

Json llama3() {
  return {
      {"type", "Sequence"},
      {"pretokenizers",
       Json::array(
           {Json{
                {"type", "Split"},
                {"pattern", {{"Regex", kLlama3Words}}},
                {"behavior", "Isolated"},
                {"invert", false}},
            Json{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}})}};
}

TEST(ByteLevel, BytesAreSpelledAsGpt2Does) {
  EXPECT_EQ(spelling_of_byte(' '), "\xC4\xA0"); // U+0120
  EXPECT_EQ(spelling_of_byte('\n'), "\xC4\x8A"); // U+010A
  EXPECT_EQ(spelling_of_byte('a'), "a");
  EXPECT_EQ(spelling_of_byte(0xAD), "\xC5\x83"); // U+0143, the last of those that have none
  EXPECT_EQ(spelling_of_byte(0xFF), "\xC3\xBF");
  for (int byte = 0; byte < 256; ++byte) {
    EXPECT_EQ(
        bytes_spelled(spelling_of_byte(static_cast<unsigned char>(byte))),
        std::string(1, static_cast<char>(byte)));
  }
  EXPECT_EQ(bytes_spelled("a b"), std::nullopt);
}

TEST(Words, Gpt2) {
  EXPECT_THAT(
      words_of(kGpt2, "It's 42,  ok?\n\n  don't \xC3\xA4t"),
      ElementsAre("It", "'s", " 42", ",", " ", " ok", "?", "\n\n ", " don", "'t", " \xC3\xA4t"));
  EXPECT_THAT(words_of(kGpt2, "a  "), ElementsAre("a", "  "));
  // White space that is no ASCII, beside a letter beyond 16 bits.
  EXPECT_THAT(
      words_of(kGpt2, "x\xC2\xA0\xF0\x9D\x92\x9C\xC2\x85y"),
      ElementsAre("x", "\xC2\xA0", "\xF0\x9D\x92\x9C", "\xC2\x85", "y"));
  const Json prefixed{{"type", "ByteLevel"}};
  EXPECT_THAT(words_of(prefixed, "a b"), ElementsAre(" a", " b"));
  EXPECT_THAT(words_of(prefixed, " a"), ElementsAre(" a"));
}

TEST(Words, Llama3) {
  EXPECT_THAT(
      words_of(llama3(), "It'S 12345, ok?!\n\n  don't"),
      ElementsAre("It", "'S", " ", "123", "45", ",", " ok", "?!\n\n", " ", " don", "'t"));
}

TEST(Words, SplitsAndDigits) {
  const auto split = [](const Json& pattern, const char* behavior) {
    return Json{{"type", "Split"}, {"pattern", pattern}, {"behavior", behavior}};
  };
  EXPECT_THAT(
      words_of(split({{"String", "::"}}, "Removed"), "a::b::::c"), ElementsAre("a", "b", "c"));
  EXPECT_THAT(
      words_of(
          split({{"Regex", "\\d"}}, "Isolated"),
          "ab1\xD9\xA2"
          "c"),
      ElementsAre("ab", "1", "\xD9\xA2", "c"));
  EXPECT_THAT(
      words_of({{"type", "Digits"}, {"individual_digits", true}}, "a12b"),
      ElementsAre("a", "1", "2", "b"));
  EXPECT_THAT(words_of({{"type", "Digits"}}, "a12b"), ElementsAre("a", "12", "b"));
  EXPECT_THAT(
      words_of(
          {{"type", "BertPreTokenizer"}},
          "a+b \xE2\x80\x94"
          "c.."),
      ElementsAre("a", "+", "b", "\xE2\x80\x94", "c", ".", "."));
}

TEST(Regex, WhatTwoEnginesMayReadInTwoWaysIsRefused) {
  const auto message = [](const std::string& regex) {
    return message_of([&] { Pattern(regex, "t.json: place"); });
  };
  for (const char* regex : {"^a",          "a$",      ".",      "\\h",      "\\w+",
                            "(?<=a)b",     "(?<n>a)", "(?m:a)", "a{,3}",    "a{2}+",
                            "[[:alpha:]]", "[a&&b]",  "[a--b]", "\\p{Han}", "\\p{Alphabetic}",
                            "\\p{^L}",     "\\",      "[a",     "[]a]",     "a]",
                            "\\b"}) {
    EXPECT_THAT(message(regex), AllOf(HasSubstr("t.json: place"), HasSubstr("not implemented")))
        << regex;
  }
  EXPECT_THAT(message("(a"), HasSubstr("ICU does not understand"));
  EXPECT_THAT(message("a*"), HasSubstr("matches the empty text"));
  for (const char* regex : {kLlama3Words, "(?:a|b)+", "a{2,}", "[\\p{Lu}\\-]", "a++", "\\.\\$"}) {
    EXPECT_EQ(message(regex), "no error") << regex;
  }
}

// Merges: "l o" before "o w", so "low" is lo + w, then "lo w" makes it one.
TEST(Bpe, PairsAreMergedInTheOrderOfTheList) {
  const auto ids = [](const std::vector<std::string>& merges, const std::string& text) {
    return tokenizer_of(byte_level(merges)).encode(text);
  };
  EXPECT_THAT(ids({}, "low"), ElementsAre('l', 'o', 'w'));
  EXPECT_THAT(ids({"l o", "o w"}, "low"), ElementsAre(256, 'w'));
  EXPECT_THAT(ids({"o w", "l o"}, "low"), ElementsAre('l', 256));
  EXPECT_THAT(ids({"l o", "o w", "lo w"}, "low lower"), ElementsAre(258, ' ', 258, 'e', 'r'));
  // The leftmost of equal pairs comes first.
  EXPECT_THAT(ids({"a a"}, "aaaaa"), ElementsAre(256, 256, 'a'));
  EXPECT_THAT(ids({"a b", "b a"}, "aba"), ElementsAre(256, 'a'));
  // A merge never crosses words: " b" is one word, "a" another.
  EXPECT_THAT(ids({"a \xC4\xA0"}, "a b"), ElementsAre('a', ' ', 'b'));
  // Bytes of one character, merged one by one.
  EXPECT_THAT(ids({"\xC3\x83 \xC2\xA4"}, "\xC3\xA4\xC3\xB6"), ElementsAre(256, 0xC3, 0xB6));
}

TEST(Bpe, WholeWordsComeFirstWhenTheFileSaysSo) {
  Json json = byte_level({"l o"});
  json["model"]["vocab"]["low"] = 300;
  EXPECT_THAT(tokenizer_of(json).encode("low"), ElementsAre(256, 'w'));
  json["model"]["ignore_merges"] = true;
  EXPECT_THAT(tokenizer_of(json).encode("low lo"), ElementsAre(300, ' ', 256));
}

TEST(Bpe, MergesMayBeLists) {
  Json json = byte_level({"l o"});
  json["model"]["merges"] = Json::array({Json::array({"l", "o"})});
  json["model"].erase("type");
  EXPECT_THAT(tokenizer_of(json).encode("lo"), ElementsAre(256));
}

// Against the definition: of all pairs the one with the least rank, the leftmost, one at a time.
TEST(Bpe, LongWordsAreMergedAsTheDefinitionSays) {
  const std::vector<std::string> merges{
      "a b", "b a", "ab ab", "a a", "ab a", "b b", "aa b", "abab ab"};
  const Tokenizer tokenizer = tokenizer_of(byte_level(merges));
  std::uint32_t state = 5;
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string> parts;
    std::string word;
    for (int i = 0; i < 3 + round % 90; ++i) {
      state = state * 1664525 + 1013904223;
      parts.emplace_back(1, (state >> 16 & 1U) != 0 ? 'a' : 'b');
      word += parts.back();
    }
    for (bool changed = true; changed;) {
      changed = false;
      for (const std::string& merge : merges) {
        const auto blank = merge.find(' ');
        for (std::size_t i = 0; !changed && i + 1 < parts.size(); ++i) {
          if (parts[i] == merge.substr(0, blank) && parts[i + 1] == merge.substr(blank + 1)) {
            parts[i] += parts[i + 1];
            parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(i) + 1);
            changed = true;
          }
        }
        if (changed) {
          break;
        }
      }
    }
    std::vector<std::string> found;
    for (const auto id : tokenizer.encode(word)) {
      found.push_back(tokenizer.decode({id}));
    }
    ASSERT_EQ(found, parts) << word;
  }
}

TEST(ByteLevelTokenizer, TextComesBack) {
  const Tokenizer tokenizer = tokenizer_of(byte_level({"l o", "o w"}));
  for (const std::string text : {"low  b\n\tc", "\xE2\x82\xAC \xF0\x9F\x8C\x8D", ""}) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
  EXPECT_EQ(
      tokenizer.decode({0xE2, 0x82, 'a', 400}),
      "\xEF\xBF\xBD"
      "a"); // a special token is no text
  EXPECT_EQ(tokenizer.vocab_size(), 401);
  EXPECT_EQ(tokenizer.end_of_document(), 400);
  EXPECT_THAT(message_of([&] { tokenizer.decode({399}); }), HasSubstr("no token with the id 399"));
  EXPECT_THAT(message_of([&] { tokenizer.decode({401}); }), HasSubstr("token id 401"));
  EXPECT_THAT(message_of([&] { tokenizer.encode("a\xFF"); }), HasSubstr("not UTF-8"));
}

TEST(AddedTokens, AreFoundBeforeAllElse) {
  Json json = byte_level({"< |"});
  const auto add = [&](int id, const char* content, const Json& more) {
    Json token{{"id", id}, {"content", content}, {"special", true}};
    token.update(more);
    json["added_tokens"].push_back(token);
  };
  add(401, "<|end", Json::object());
  add(402, "<m>", {{"lstrip", true}});
  add(403, "<r>", {{"rstrip", true}});
  add(404, "low", {{"special", false}, {"normalized", true}});
  const Tokenizer tokenizer = tokenizer_of(json);
  EXPECT_THAT(
      tokenizer.encode("a<|endoftext|>b<|endc<|"), ElementsAre('a', 400, 'b', 401, 'c', 256));
  EXPECT_THAT(tokenizer.encode("a \n<m> b"), ElementsAre('a', 402, ' ', 'b'));
  EXPECT_THAT(tokenizer.encode("a <r> \tb"), ElementsAre('a', ' ', 403, 'b'));
  EXPECT_THAT(tokenizer.encode("<r> <m>a"), ElementsAre(403, 402, 'a'));
  EXPECT_THAT(tokenizer.encode("slow"), ElementsAre('s', 404));
  EXPECT_EQ(tokenizer.decode({'s', 404}), "slow");
}

TEST(AddedTokens, NormalizedOnesAreLookedForInTheNormalizedText) {
  Json json = word_piece();
  json["added_tokens"].push_back({{"id", 14}, {"content", "FooBar"}, {"special", false}});
  EXPECT_THAT(tokenizer_of(json).encode("foobar,FOOBAR"), ElementsAre(14, 7, 14));
  json["added_tokens"].back()["normalized"] = false;
  EXPECT_THAT(tokenizer_of(json).encode("foobar,FooBar"), ElementsAre(1, 7, 14));
}

TEST(WordPieceTokenizer, TheLongestPieceIsTaken) {
  const Tokenizer tokenizer = tokenizer_of(word_piece());
  EXPECT_THAT(tokenizer.encode("unaffable"), ElementsAre(13, 6));
  EXPECT_THAT(tokenizer.encode("Unables, the\tTHES!"), ElementsAre(4, 6, 10, 7, 9, 9, 10, 12));
  EXPECT_THAT(tokenizer.encode("caf\xC3\xA9 CAFE\xCC\x81"), ElementsAre(8, 8));
  EXPECT_THAT(tokenizer.encode("the\xE4\xB8\xAD\xE4\xB8\xADs"), ElementsAre(9, 11, 11, 1));
  EXPECT_THAT(tokenizer.encode("unknown the"), ElementsAre(1, 9));
  // 12 and 13 characters, of which 12 are allowed.
  const std::string longest = "the" + std::string(9, 's');
  EXPECT_THAT(
      tokenizer.encode(longest + " " + longest + "s"),
      ElementsAre(9, 10, 10, 10, 10, 10, 10, 10, 10, 10, 1));
  EXPECT_THAT(
      tokenizer.encode("th\xC2\xAD"
                       "e\xE2\x80\x8B\v the"),
      ElementsAre(9, 9)); // format, control
  EXPECT_THAT(tokenizer.encode("the[SEP]the"), ElementsAre(9, 3, 9));
  EXPECT_EQ(tokenizer.end_of_document(), 3);
  EXPECT_EQ(tokenizer.decode({2, 13, 6, 7, 9, 10, 12, 3}), "unaffable, thes!");
  EXPECT_EQ(tokenizer.vocab_size(), 14);
}

TEST(WordPieceTokenizer, AccentsStayWhenTheFileSaysSo) {
  Json json = word_piece();
  json["normalizer"]["strip_accents"] = false;
  EXPECT_THAT(tokenizer_of(json).encode("caf\xC3\xA9"), ElementsAre(1));
  json["normalizer"]["lowercase"] = false;
  EXPECT_THAT(tokenizer_of(json).encode("The cafe"), ElementsAre(1, 8));
  json["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers",
       Json::array(
           {Json{{"type", "NFD"}}, Json{{"type", "StripAccents"}}, Json{{"type", "Lowercase"}}})}};
  EXPECT_THAT(tokenizer_of(json).encode("Caf\xC3\xA9"), ElementsAre(8));
}

// Each change of a good file and what the message must name.
TEST(JsonTokenizer, WhatIsNotImplementedIsNamed) {
  struct Case {
    const char* pointer;
    Json value;
    std::vector<const char*> said;
  };
  const std::vector<Case> cases{
      {"/normalizer",
       {{"type", "Replace"}},
       {"t.json: normalizer.type", "Replace", "BertNormalizer"}},
      {"/normalizer",
       {{"type", "Sequence"}, {"normalizers", Json::array({Json{{"type", "Prepend"}}})}},
       {"normalizer.type", "Prepend"}},
      {"/pre_tokenizer", {{"type", "Metaspace"}}, {"pre_tokenizer.type", "Metaspace"}},
      {"/pre_tokenizer", nullptr, {"model.type", "BPE", "ByteLevel"}},
      {"/pre_tokenizer",
       {{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "MergedWithNext"}},
       {"pre_tokenizer.behavior", "MergedWithNext", "Isolated"}},
      {"/pre_tokenizer",
       {{"type", "Split"},
        {"pattern", {{"Regex", "a"}}},
        {"behavior", "Removed"},
        {"invert", true}},
       {"pre_tokenizer.invert", "true"}},
      {"/pre_tokenizer/more", 1, {"pre_tokenizer.more", "1"}},
      {"/post_processor", {{"type", "Other"}}, {"post_processor.type", "Other"}},
      {"/decoder", {{"type", "Metaspace"}}, {"decoder.type", "Metaspace"}},
      {"/truncation", {{"max_length", 5}}, {"truncation", "max_length"}},
      {"/padding", {{"strategy", "BatchLongest"}}, {"padding", "BatchLongest"}},
      {"/model/type", "Unigram", {"model.type is \"Unigram\",", "BPE, WordPiece"}},
      {"/model/dropout", 0.1, {"model.dropout", "0.1"}},
      {"/model/byte_fallback", true, {"model.byte_fallback", "true"}},
      {"/model/end_of_word_suffix", "</w>", {"model.end_of_word_suffix", "</w>"}},
      {"/model/other", 7, {"model.other", "7"}},
      {"/other", 7, {"t.json: other", "7"}},
      {"/model/merges/0", "l", {"model.merges[0]", "two tokens"}},
      {"/model/merges/0", "l q", {"model.merges[0]", "l q", "vocab"}},
      {"/model/merges", Json::array({"l o", "l o"}), {"model.merges[1]", "before"}},
      {"/model/vocab/lo", 5, {"model.vocab", "5", "twice"}},
      {"/model/vocab/lo", -5, {"model.vocab", "-5"}},
      {"/model/vocab/lo", 1 << 20, {"model.vocab", "1048576"}},
      {"/added_tokens/0/single_word", true, {"added_tokens[0].single_word", "true"}},
      {"/added_tokens/0/content", "", {"added_tokens[0].content"}},
      {"/added_tokens/0/id", 5, {"added_tokens", "id 5", "<|endoftext|>"}},
      {"/added_tokens/0/content", "lo", {"added_tokens", "lo", "400", "256"}},
      {"/added_tokens/0/new", 1, {"added_tokens[0].new"}}};
  for (const Case& one : cases) {
    Json json = byte_level({"l o"});
    ASSERT_NO_THROW(tokenizer_of(json));
    json[Json::json_pointer(one.pointer)] = one.value;
    const std::string message = message_of([&] { tokenizer_of(json); });
    for (const char* said : one.said) {
      EXPECT_THAT(message, HasSubstr(said)) << one.pointer << " " << one.value;
    }
  }
  Json json = byte_level({});
  json["model"]["vocab"].erase("a");
  EXPECT_THAT(message_of([&] { tokenizer_of(json); }), HasSubstr("no token for the byte 97"));
  Json pieces = word_piece();
  pieces["model"]["unk_token"] = "<unk>";
  EXPECT_THAT(message_of([&] { tokenizer_of(pieces); }), HasSubstr("model.unk_token"));
  pieces = word_piece();
  pieces["pre_tokenizer"] = kGpt2;
  EXPECT_THAT(message_of([&] { tokenizer_of(pieces); }), HasSubstr("WordPiece"));
  EXPECT_THAT(
      message_of([] { Tokenizer::from_bytes("{\"a\": ", "t.json"); }), HasSubstr("not valid JSON"));
  EXPECT_THAT(
      message_of([] { Tokenizer::from_bytes("{}", "t.json"); }), HasSubstr("t.json: model"));
}

TEST(JsonTokenizer, TheEndOfATextIsASpecialTokenOfAKnownName) {
  Json json = byte_level({});
  json["added_tokens"].push_back({{"id", 401}, {"content", "</s>"}, {"special", true}});
  EXPECT_EQ(tokenizer_of(json).end_of_document(), 400);
  json["added_tokens"][0]["special"] = false;
  EXPECT_EQ(tokenizer_of(json).end_of_document(), 401);
  json["added_tokens"] = Json::array();
  EXPECT_EQ(tokenizer_of(json).end_of_document(), -1);
}

} // namespace
} // namespace tessera::data
