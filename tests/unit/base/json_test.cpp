#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/json/parse.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

std::string refusal(const std::string& text, const JsonRules& rules = {}) {
  try {
    parse_json(text, "file");
  } catch (const JsonError& error) {
    return error.what();
  }
  try {
    repeated_keys(text, rules);
  } catch (const JsonError& error) {
    return error.what();
  }
  return "no error";
}

std::string nested(int levels, const std::string& open, const std::string& close) {
  std::string text;
  for (int i = 0; i < levels; ++i) {
    text += open;
  }
  text += "1";
  for (int i = 0; i < levels; ++i) {
    text += close;
  }
  return text;
}

TEST(Json, KeepsTheOrderOfKeys) {
  EXPECT_EQ(
      parse_json(R"({"b": [1, 2.5, "x"], "a": null})", "f").dump(),
      R"({"b":[1,2.5,"x"],"a":null})");
}

TEST(Json, DepthIsBounded) {
  EXPECT_NO_THROW(parse_json(nested(256, "[", "]"), "f"));
  EXPECT_THAT(
      refusal(nested(257, "[", "]")),
      AllOf(StartsWith("file: "), HasSubstr("deeper than 256 levels at line 1, column 257")));
  EXPECT_THAT(refusal(nested(60000, "[", "]")), HasSubstr("deeper than 256"));
  EXPECT_THAT(refusal(nested(60000, "{\"a\":", "}")), HasSubstr("deeper than 256"));
  EXPECT_THAT(refusal(std::string(60000, '[')), HasSubstr("deeper than 256"));
  // Neighbours are no levels, and brackets in texts are letters.
  EXPECT_EQ(refusal("[" + std::string(600, ' ') + nested(1, "[", "]") + "]"), "no error");
  EXPECT_EQ(refusal("[\"" + std::string(600, '[') + "\"]"), "no error");
  EXPECT_THAT(refusal("[[1]]", {.most_levels = 1}), HasSubstr("deeper than 1 levels"));
}

TEST(Json, SizeIsBounded) {
  EXPECT_THAT(
      refusal("[1, 2, 3]", {.most_bytes = 4}), AllOf(HasSubstr("9 bytes"), HasSubstr("4 that")));
}

TEST(Json, AKeyThatStandsTwiceNamesBothPlaces) {
  EXPECT_THAT(
      refusal("{\n  \"a\": 1,\n  \"b\": {\"a\": 2},\n  \"a\": 3\n}"),
      AllOf(
          HasSubstr("file: \"a\": stands twice in one object"),
          HasSubstr("line 2, column 3"),
          HasSubstr("line 4, column 3")));
  EXPECT_THAT(refusal(R"({"a": 1, "\u0061": 2})"), HasSubstr("\"a\": stands twice"));
  EXPECT_EQ(refusal(R"([{"a": 1}, {"a": "a"}, {"b": {"a": ["a", "a"]}}])"), "no error");
  // Of many keys, too.
  std::string many = "{";
  for (int i = 0; i < 100; ++i) {
    many += str("\"k", i, "\": ", i, ", ");
  }
  EXPECT_EQ(refusal(many + "\"k\": 1}"), "no error");
  EXPECT_THAT(refusal(many + "\"k77\": 1}"), HasSubstr("\"k77\": stands twice"));
  EXPECT_THAT(refusal(many + "\"k3\": 1}"), HasSubstr("\"k3\": stands twice"));
}

TEST(Json, RepeatedKeysAreAFewAtMost) {
  std::string text = "{";
  for (int i = 0; i < 1000; ++i) {
    text += "\"a\": 1,";
  }
  EXPECT_THAT(repeated_keys(text + "\"b\": 1}"), SizeIs(8));
  EXPECT_THAT(repeated_keys("{\"a\": \"a\"}"), IsEmpty());
}

TEST(Json, WhatIsNoJsonNamesLineAndColumn) {
  EXPECT_THAT(
      refusal("{\n\"ddp\": trx}"),
      AllOf(
          HasSubstr("file: not valid JSON: "),
          HasSubstr("line 2, column 10"),
          Not(HasSubstr("json.exception"))));
  for (const char* text : {"", "{", "}", "]]", "{} {}", "\"", "{\"a", "{\"a\\", "[1,]", "//\n1"}) {
    EXPECT_THAT(refusal(text), HasSubstr("not valid JSON")) << text;
  }
  EXPECT_THAT(refusal("[1e999]"), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("\xff\xfe"), HasSubstr("not valid JSON"));
  EXPECT_LT(refusal("[" + std::string(1 << 20, '7')).size(), 500U);
}

TEST(Json, CommentsAndLastCommasBecomeBlanks) {
  EXPECT_EQ(without_comments("[1, // one\n 2]"), "[1,       \n 2]");
  EXPECT_EQ(without_comments("{/* a\nb */\"k\": 1}"), "{    \n    \"k\": 1}");
  EXPECT_EQ(without_comments("[1, 2, /* last */ ]"), "[1, 2             ]");
  EXPECT_EQ(without_comments("{\"a\": [1,],\n}"), "{\"a\": [1 ] \n}");
  EXPECT_EQ(without_comments("1 // end"), "1       ");
  // In a text they are letters.
  const std::string texts = R"(["http://a", "/* b */", "a\"// c", ",]"])";
  EXPECT_EQ(without_comments(texts), texts);
  // What is wrong stays wrong.
  for (const char* text : {"[,]", "{,}", "[1,,]", "[,1]"}) {
    EXPECT_THROW(parse_json(without_comments(text), "f"), JsonError) << text;
  }
  EXPECT_THROW(without_comments("[1] /* "), JsonError);
}

} // namespace
} // namespace tessera
