#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/directory.h"

#include "fault_file_system.h"
#include "temporary_directory.h"
#include "tiny_model.h"

namespace tessera::checkpoint {
namespace {

using Fault = FaultFileSystem::Fault;
using ::testing::HasSubstr;

// A folder with one checkpoint, "old" of model 1, into which a save of model 2
// goes wrong; the new one has the tag `tag` and one checkpoint is kept.
struct Scene {
  explicit Scene(std::string new_tag) : tag(std::move(new_tag)) {
    FaultFileSystem files;
    save_one(dir.path(), "old", model_1(), files);
  }
  static const TinyModel& model_1() {
    static const TinyModel model(1);
    return model;
  }
  static const TinyModel& model_2() {
    static const TinyModel model(2);
    return model;
  }
  SaveResult save(FileSystem& files) const {
    SaveInfo info;
    info.retention.newest = 1;
    return save_one(dir.path(), tag, model_2(), files, info);
  }
  // Which model the newest checkpoint holds: 1 or 2, 0 when it is neither.
  int held() const {
    const Newest newest = open_newest(dir.path());
    if (!newest.checkpoint || !newest.warnings.empty()) {
      return 0;
    }
    TinyModel loaded(3);
    loaded.load(*newest.checkpoint);
    return loaded.equals(model_1()) ? 1 : loaded.equals(model_2()) ? 2 : 0;
  }

  TemporaryDirectory dir;
  std::string tag;
};

int calls_of_a_save(const std::string& tag) {
  const Scene scene(tag);
  FaultFileSystem files;
  scene.save(files);
  EXPECT_EQ(scene.held(), 2);
  return files.calls();
}

class Faults : public ::testing::TestWithParam<std::string> {};

TEST_P(Faults, ADeathAtAnyCallLeavesAWholeCheckpointAndTheNextSaveWorks) {
  const int calls = calls_of_a_save(GetParam());
  ASSERT_GT(calls, 30);
  int old_held = 0;
  int new_held = 0;
  for (int k = 0; k < calls; ++k) {
    const Scene scene(GetParam());
    FaultFileSystem files(Fault::kCrash, k);
    EXPECT_THROW(scene.save(files), InjectedCrash) << "call " << k;
    const int held = scene.held();
    ASSERT_TRUE(held == 1 || held == 2) << "call " << k;
    ++(held == 1 ? old_held : new_held);
    // The next save finds its way, and nothing of the dead one stays.
    SaveInfo info;
    info.retention.newest = 1;
    FaultFileSystem good;
    save_one(scene.dir.path(), "next", Scene::model_2(), good, info);
    EXPECT_EQ(scene.held(), 2) << "call " << k;
    EXPECT_EQ(
        names_in(scene.dir.path()),
        (std::vector<std::string>{
            "newest",
            "next",
            "next/meta.json",
            "next/model_0_0_0.safetensors",
            "next/optimizer_0_0_0.safetensors"}))
        << "call " << k;
  }
  EXPECT_GT(old_held, 20);
  EXPECT_GT(new_held, 1);
}

// A run that is killed while it saves and goes on keeps what an unharmed one keeps.
TEST(RetentionFaults, ADeathAtAnyCallCostsNeitherTheBestNorMarkedOnes) {
  SaveInfo info;
  info.retention = {.newest = 1, .every = 2, .best = true};
  const auto save =
      [&](const TemporaryDirectory& dir, const char* tag, double score, FileSystem& files) {
        info.score = score;
        save_one(dir.path(), tag, Scene::model_1(), files, info);
      };
  const std::vector<std::pair<const char*, double>> saves{{"a", 1.0}, {"b", 3.0}, {"c", 2.0}};
  FaultFileSystem good;
  int calls = 0;
  {
    const TemporaryDirectory dir;
    for (const auto& [tag, score] : saves) {
      save(dir, tag, score, good);
    }
    FaultFileSystem counting;
    save(dir, "d", 4.0, counting);
    calls = counting.calls();
    // The best, the second save, and the fourth, which is the newest too.
    ASSERT_EQ(tags_in(dir.path()), (std::vector<std::string>{"a", "b", "d"}));
  }
  ASSERT_GT(calls, 30);
  for (int k = 0; k < calls; ++k) {
    const TemporaryDirectory dir;
    for (const auto& [tag, score] : saves) {
      save(dir, tag, score, good);
    }
    FaultFileSystem files(Fault::kCrash, k);
    EXPECT_THROW(save(dir, "d", 4.0, files), InjectedCrash) << "call " << k;
    EXPECT_EQ(find_best(dir.path()), "a") << "call " << k;
    EXPECT_TRUE(find_tag(dir.path(), "b").meta.for_good) << "call " << k;
    save(dir, "d", 4.0, good);
    const std::vector<std::string> tags = tags_in(dir.path());
    EXPECT_EQ(tags, (std::vector<std::string>{"a", "b", "d"})) << "call " << k;
    EXPECT_TRUE(find_tag(dir.path(), "b").meta.for_good) << "call " << k;
    EXPECT_EQ(find_best(dir.path()), "a") << "call " << k;
  }
}

TEST_P(Faults, AnErrorAtAnyCallIsReportedAndLeavesAWholeCheckpoint) {
  const int calls = calls_of_a_save(GetParam());
  for (const Fault fault : {Fault::kNoSpace, Fault::kInputOutput}) {
    for (int k = 0; k < calls; ++k) {
      const Scene scene(GetParam());
      FaultFileSystem files(fault, k);
      bool failed = false;
      std::string said;
      try {
        const SaveResult result = scene.save(files);
        for (const auto& warning : result.warnings) {
          said += warning;
        }
      } catch (const CheckpointError& error) {
        failed = true;
        said = error.what();
      }
      // Only a call that tidies up what nobody needs may fail in silence.
      if (!said.empty()) {
        EXPECT_THAT(said, HasSubstr(fault == Fault::kNoSpace ? "No space left" : "Input/output"))
            << "call " << k;
      }
      const int held = scene.held();
      ASSERT_TRUE(held == 1 || held == 2) << "call " << k << said;
      EXPECT_TRUE(failed || held == 2) << "call " << k << said;
      // Training goes on, and the next save succeeds.
      FaultFileSystem good;
      EXPECT_TRUE(scene.save(good).warnings.empty());
      EXPECT_EQ(scene.held(), 2) << "call " << k;
      for (const auto& name : names_in(scene.dir.path())) {
        EXPECT_NE(name.front(), '.') << "call " << k;
      }
    }
  }
}

TEST_P(Faults, AFullDiskFailsTheSaveAndLeavesNoTemporaryFiles) {
  const int calls = calls_of_a_save(GetParam());
  int failures = 0;
  for (int k = 0; k < calls; ++k) {
    const Scene scene(GetParam());
    FaultFileSystem files(Fault::kFullDisk, k);
    bool threw = false;
    try {
      scene.save(files);
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.what(), HasSubstr("No space left")) << "call " << k;
      threw = true;
      ++failures;
    }
    const int held = scene.held();
    ASSERT_TRUE(held == 1 || held == 2) << "call " << k;
    if (threw && held == 1) {
      for (const auto& name : names_in(scene.dir.path())) {
        EXPECT_THAT(name, ::testing::Not(HasSubstr(".tmp"))) << "call " << k;
        EXPECT_THAT(name, ::testing::Not(HasSubstr(".saving-"))) << "call " << k;
      }
    }
  }
  EXPECT_GT(failures, 20);
}

TEST_P(Faults, ShortWritesAreContinued) {
  const int calls = calls_of_a_save(GetParam());
  int happened = 0;
  for (int k = 0; k < calls; ++k) {
    const Scene scene(GetParam());
    FaultFileSystem files(Fault::kShortWrite, k);
    scene.save(files);
    happened += files.happened() ? 1 : 0;
    EXPECT_EQ(scene.held(), 2) << "call " << k;
  }
  EXPECT_GT(happened, 10);
}

INSTANTIATE_TEST_SUITE_P(
    NewAndSameTag,
    Faults,
    ::testing::Values("new", "old"),
    [](const auto& tested) { return tested.param == "new" ? "NewTag" : "SameTag"; });

TEST(FaultsOfTheFirstSave, ADeathLeavesNothingThatIsTakenForACheckpoint) {
  FaultFileSystem counting;
  {
    const TemporaryDirectory dir;
    save_one(dir / "job", "first", TinyModel(1), counting);
  }
  for (int k = 0; k < counting.calls(); ++k) {
    const TemporaryDirectory dir;
    FaultFileSystem files(Fault::kCrash, k);
    EXPECT_THROW(save_one(dir / "job", "first", TinyModel(1), files), InjectedCrash);
    const Newest newest = open_newest(dir / "job");
    if (newest.checkpoint) {
      TinyModel loaded(3);
      loaded.load(*newest.checkpoint);
      EXPECT_TRUE(loaded.equals(TinyModel(1))) << "call " << k;
    }
  }
}

TEST(FaultsOfOneRank, TheSaveFailsWithTheRanksNameAndReason) {
  const TemporaryDirectory dir;
  save_one(dir.path(), "old", TinyModel(1));
  FaultFileSystem full(Fault::kFullDisk, 0);
  Writer good(dir.path(), "new");
  Writer bad(dir.path(), "new", full);
  good.begin();
  const TinyModel first(2, {"layer.0"});
  const TinyModel second(2, {"layer.2"});
  std::vector<RankFiles> ranks = {
      good.write_rank_files(0, {0, 0, 0}, first.content()),
      bad.write_rank_files(1, {0, 1, 0}, second.content())};
  ranks[1] = rank_files_from_text(to_text(ranks[1])); // as it travels
  try {
    good.commit(ranks, {});
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1: cannot write"));
    EXPECT_THAT(error.what(), HasSubstr("No space left"));
  }
  EXPECT_EQ(open_newest(dir.path()).checkpoint->meta().tag, "old");
  EXPECT_EQ(tags_in(dir.path()), std::vector<std::string>{"old"});
}

} // namespace
} // namespace tessera::checkpoint
