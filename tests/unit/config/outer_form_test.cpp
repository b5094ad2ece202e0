#include <filesystem>
#include <fstream>

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support.h"

namespace tessera::config::test {

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const Config kTwoByTwo{.pipeline_parallel_degree = 2, .ddp = true, .processes_per_host = 4};

TEST(OuterForm, TheFormsOfOneConfigurationAreEqual) {
  for (const char* text :
       {R"({"partitions": 2, "ddp": true, "processes_per_host": 4})",
        R"({"partitions": 2, "ddp": true, "mpi": {"processes_per_host": 4}})",
        R"({"smdistributed": {"modelparallel": {"enabled": true,
              "parameters": {"partitions": 2, "ddp": true}}},
            "mpi": {"enabled": true, "processes_per_host": 4}})",
        R"({"smdistributed": {"modelparallel":
              {"parameters": {"partitions": 2, "ddp": true}}},
            "mpi": {"processes_per_host": 4}})"}) {
    EXPECT_EQ(parse_config(text, "test"), kTwoByTwo) << text;
  }
}

TEST(OuterForm, NamesThePlaceOfAMistake) {
  const auto with = [](const std::string& model) {
    return parse_error("{\"smdistributed\": {\"modelparallel\": " + model + "}}");
  };
  EXPECT_THAT(
      with(R"({"enabled": false, "parameters": {}})"),
      HasSubstr("smdistributed.modelparallel.enabled: found false"));
  EXPECT_THAT(with(R"({"enabled": true})"), HasSubstr("\"parameters\" is missing"));
  EXPECT_THAT(
      with(R"({"parameters": 3})"), HasSubstr("smdistributed.modelparallel.parameters: found 3"));
  EXPECT_THAT(
      with(R"({"params": {}, "parameters": {}})"),
      HasSubstr("smdistributed.modelparallel.\"params\": unknown key; the "
                "nearest known key is \"parameters\""));
  EXPECT_THAT(with("1"), HasSubstr("smdistributed.modelparallel: found 1"));
  EXPECT_THAT(parse_error(R"({"smdistributed": {}})"), HasSubstr("\"modelparallel\" is missing"));
  EXPECT_THAT(parse_error(R"({"smdistributed": []})"), HasSubstr("smdistributed: found a list"));
  EXPECT_THAT(
      parse_error(R"({"smdistributed": {"modelparallel": {"parameters": {}},
                                        "dataparallel": {}}})"),
      HasSubstr("cannot be joined"));
  EXPECT_THAT(
      parse_error(R"({"smdistributed": {"modelparallel": {"parameters": {}}},
                      "ddp": true})"),
      HasSubstr("\"ddp\": only \"smdistributed\" and \"mpi\""));
  EXPECT_THAT(
      parse_error(R"({"mpi": {"process_per_host": 2, "enabled": 1}})"),
      AllOf(
          HasSubstr("mpi.\"process_per_host\": unknown key; the nearest known "
                    "key is \"processes_per_host\""),
          HasSubstr("mpi.enabled: found 1")));
  EXPECT_THAT(
      parse_error(R"({"mpi": {"processes_per_host": 0}})"),
      HasSubstr("processes_per_host: found 0"));
  // "mpi" stands beside the parameters, not among them.
  EXPECT_THAT(with(R"({"parameters": {"mpi": {}}})"), HasSubstr("\"mpi\": unknown key"));
}

class Files : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / str("tessera_config_test_", getpid());
    std::filesystem::create_directory(folder_);
  }
  void TearDown() override {
    std::filesystem::remove_all(folder_);
  }
  std::string write(const std::string& name, const std::string& text) {
    const auto path = folder_ / name;
    std::ofstream(path) << text;
    return path.string();
  }

  std::filesystem::path folder_;
};

TEST_F(Files, ParametersMayBeAnotherFile) {
  write("inner.json", R"({"partitions": 2, "ddp": true})");
  const std::string text =
      R"({"smdistributed": {"modelparallel": {"parameters": "inner.json"}},
          "mpi": {"processes_per_host": 4}})";
  EXPECT_EQ(load_config(write("outer.json", text)), kTwoByTwo);
  // A text that comes from nowhere opens nothing.
  EXPECT_THAT(parse_error(text), HasSubstr("is followed only from a config"));
}

TEST_F(Files, ErrorsNameTheFile) {
  const std::string bad = write("bad.json", "{\"ddp\": 3}");
  EXPECT_EQ(error_of([&] { load_config(bad); }), bad + ": ddp: found 3; write true or false");
  const std::string missing = (folder_ / "missing.json").string();
  EXPECT_THAT(error_of([&] { load_config(missing); }), HasSubstr(missing + ": no such file"));
  EXPECT_THAT(error_of([&] { load_config(folder_.string()); }), HasSubstr("no such file"));
  const std::string outer =
      write("outer.json", R"({"smdistributed": {"modelparallel": {"parameters": "gone.json"}}})");
  EXPECT_THAT(error_of([&] { load_config(outer); }), HasSubstr("gone.json"));
  write("broken.json", "{");
  const std::string to_broken = write(
      "outer2.json", R"({"smdistributed": {"modelparallel": {"parameters": "broken.json"}}})");
  EXPECT_THAT(error_of([&] { load_config(to_broken); }), HasSubstr("broken.json: not valid JSON"));
}

} // namespace

} // namespace tessera::config::test
