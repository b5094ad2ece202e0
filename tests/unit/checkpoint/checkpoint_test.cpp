#include <algorithm>
#include <functional>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/checkpoint/directory.h"
#include "tessera/checkpoint/json.h"

#include "temporary_directory.h"
#include "tests/support/test_folder.h"
#include "tiny_model.h"

namespace tessera::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using tests::message_of;

// Parameters of each pp rank, for 1, 2 and 4 ranks.
std::vector<std::vector<std::string>> divided(int ranks) {
  const auto names = TinyModel::all_names();
  std::vector<std::vector<std::string>> parts(static_cast<std::size_t>(ranks));
  for (std::size_t i = 0; i < names.size(); ++i) {
    parts[i * parts.size() / names.size()].push_back(names[i]);
  }
  return parts;
}

// As the ranks of a job would, one after the other.
struct Job {
  explicit Job(int ranks, int seed = 1) {
    for (const auto& names : divided(ranks)) {
      models.emplace_back(seed, names);
    }
  }
  SaveResult save(const std::string& directory, const std::string& tag, SaveInfo info = {}) {
    info.degrees.pipeline = static_cast<int>(models.size());
    for (const auto& model : models) {
      for (const auto& [name, tensor] : model.parameters) {
        info.partition[name] = static_cast<int>(&model - models.data());
      }
    }
    Writer first(directory, tag);
    first.begin();
    std::vector<RankFiles> written;
    for (std::size_t i = 0; i < models.size(); ++i) {
      Writer writer(directory, tag);
      const int rank = static_cast<int>(i);
      RankContent content = models[i].content();
      content.rank_tensors = {{"rng", torch::full({3}, rank, at::kByte)}};
      written.push_back(
          rank_files_from_text(to_text(writer.write_rank_files(rank, {0, rank, 0}, content))));
    }
    return first.commit(written, info);
  }
  void load(const std::string& directory) {
    for (auto& model : models) {
      const Newest newest = open_newest(directory);
      ASSERT_TRUE(newest.checkpoint);
      ASSERT_THAT(newest.warnings, IsEmpty());
      model.load(*newest.checkpoint);
    }
  }
  void step(int seed) {
    for (auto& model : models) {
      model.step(seed);
    }
  }
  bool equals(const Job& other) const {
    for (const auto& mine : models) {
      for (const auto& theirs : other.models) {
        if (!mine.equals(theirs)) {
          return false;
        }
      }
    }
    return true;
  }
  std::vector<TinyModel> models;
};

TEST(Checkpoint, FourRanksThenOneThenTwoTrainAsOneUninterruptedRun) {
  const TemporaryDirectory dir;
  Job straight(1);
  Job four(4);
  const SaveResult by_four = four.save(dir.path(), "a");
  Job one(1, 2);
  one.load(dir.path());
  EXPECT_TRUE(one.equals(straight));
  const SaveResult by_one = one.save(dir.path(), "b");
  EXPECT_EQ(by_one.parameter_hash, by_four.parameter_hash);
  EXPECT_EQ(by_one.optimizer_hash, by_four.optimizer_hash);
  straight.step(9);
  one.step(9);
  const SaveResult stepped = one.save(dir.path(), "c");
  EXPECT_NE(stepped.parameter_hash, by_one.parameter_hash);
  EXPECT_NE(stepped.optimizer_hash, by_one.optimizer_hash);
  Job two(2, 3);
  two.load(dir.path());
  for (int i = 0; i < 3; ++i) {
    straight.step(i);
    two.step(i);
    EXPECT_TRUE(two.equals(straight)) << i;
  }
}

TEST(Checkpoint, SaysEverythingAboutItself) {
  const TemporaryDirectory dir;
  Job job(2);
  SaveInfo info;
  info.model = "tiny";
  info.placement = "PTD";
  info.user_content = R"({"step":7,"lr":[0.1,1e-300],"text":"é"})";
  const auto saved = job.save(dir.path(), "step_7", info);
  EXPECT_EQ(saved.path, dir / "step_7");
  EXPECT_EQ(bytes_of(dir / "newest"), "step_7\n");
  EXPECT_THAT(
      names_in(saved.path),
      ElementsAre(
          "meta.json",
          "model_0_0_0.safetensors",
          "model_1_0_0.safetensors",
          "optimizer_0_0_0.safetensors",
          "optimizer_1_0_0.safetensors",
          "rank_0.safetensors",
          "rank_1.safetensors"));
  const auto checkpoint = Checkpoint::open(dir.path(), "step_7");
  const Meta& meta = checkpoint.meta();
  EXPECT_EQ(meta.model, "tiny");
  EXPECT_EQ(meta.placement, "PTD");
  EXPECT_EQ(meta.degrees.pipeline, 2);
  EXPECT_EQ(meta.partition.at("head.3"), 1);
  EXPECT_EQ(meta.sequence, 1U);
  EXPECT_EQ(nlohmann::json::parse(meta.user_content), nlohmann::json::parse(info.user_content));
  EXPECT_EQ(meta.optimizer.kind, "Adam");
  EXPECT_THAT(meta.optimizer.number_fields, ElementsAre("step"));
  EXPECT_THAT(meta.tensors, SizeIs(4));
  EXPECT_EQ(checkpoint.load_rank_tensors(1).at("rng")[0].item<int>(), 1);
  EXPECT_THAT(checkpoint.load_rank_tensors(2), IsEmpty());
}

TEST(Checkpoint, SavingTwiceGivesTheSameBytes) {
  const TemporaryDirectory one;
  const TemporaryDirectory two;
  Job(2).save(one.path(), "a");
  Job(2).save(two.path(), "a");
  const auto names = names_in(one.path());
  EXPECT_EQ(names, names_in(two.path()));
  EXPECT_THAT(names, SizeIs(9));
  for (const auto& name : names) {
    EXPECT_EQ(bytes_of(one / name), bytes_of(two / name)) << name;
  }
}

TEST(Checkpoint, AFullOneIsTwoPlainFilesThatOthersCanRead) {
  const TemporaryDirectory dir;
  const TinyModel model(1);
  Writer writer(dir.path(), "full");
  writer.begin();
  writer.commit({writer.write_rank_files(0, {}, model.content(), true)}, {});
  EXPECT_THAT(
      names_in(dir / "full"),
      ElementsAre("meta.json", "model.safetensors", "optimizer.safetensors"));
  TinyModel loaded(2);
  loaded.load(Checkpoint::open(dir.path(), "full"));
  EXPECT_TRUE(loaded.equals(model));
}

TEST(Checkpoint, ABufferOfEveryDtypeAndConversionOnRequest) {
  const TemporaryDirectory dir;
  RankContent content;
  content.model = {
      {"count", torch::tensor(7)},
      {"mask", torch::tensor({true, false})},
      {"half", torch::tensor({1.5}, at::kHalf)}};
  Writer writer(dir.path(), "a");
  writer.begin();
  writer.commit({writer.write_rank_files(0, {}, content)}, {});
  const auto checkpoint = Checkpoint::open(dir.path(), "a");
  const auto tensors =
      checkpoint.load_model({{"mask", at::kBool, {2}, {}}, {"count", at::kLong, {}, {}}});
  EXPECT_TRUE(torch::equal(tensors[0], content.model[1].second));
  EXPECT_EQ(tensors[1].item<int>(), 7);
  const std::vector<Wanted> as_float = {{"half", at::kFloat, {1}, {}}};
  EXPECT_THAT(
      message_of([&] { checkpoint.load_model(as_float); }),
      HasSubstr("half: saved F16, wanted F32"));
  ReadOptions convert;
  convert.convert_dtypes = true;
  EXPECT_EQ(checkpoint.load_model(as_float, convert)[0].item<float>(), 1.5F);
  EXPECT_THAT(
      message_of([&] { checkpoint.load_optimizer({}); }), HasSubstr("holds no optimizer state"));
}

TEST(Checkpoint, WhatDoesNotFitTheModelIsListedTogether) {
  const TemporaryDirectory dir;
  SaveInfo info;
  info.model = "gpt2-small";
  save_one(dir.path(), "a", TinyModel(1), real_file_system(), info);
  const auto checkpoint = Checkpoint::open(dir.path(), "a");
  ReadOptions options;
  options.model = "gpt2-large";
  options.all_names = {"layer.0", "layer.0.1", "layer.9", "layer.2"};
  const std::string message = message_of([&] {
    checkpoint.load_model(
        {{"layer.9", at::kFloat, {1}, {}},
         {"layer.0", at::kFloat, {3, 3}, {}},
         {"layer.2", at::kDouble, {2, 7}, {}}},
        options);
  });
  EXPECT_THAT(
      message,
      AllOf(
          HasSubstr("\"gpt2-small\", this is \"gpt2-large\""),
          HasSubstr("missing in the checkpoint (1):\n    layer.9"),
          HasSubstr("only in the checkpoint (1):\n    head.3"),
          HasSubstr("layer.0: saved [2, 7], wanted [3, 3]"),
          HasSubstr("layer.2: saved F32, wanted F64")));
}

// A matrix divided over tensor-parallel ranks, by rows or by columns.
RankContent sliced(const TinyModel& whole, int dimension, int at, int parts) {
  RankContent content = whole.content();
  const auto cut = [&](const at::Tensor& tensor) {
    const auto length = tensor.size(dimension) / parts;
    return tensor.detach().narrow(dimension, at * length, length);
  };
  for (auto& [name, tensor] : content.model) {
    Slice slice{tensor.sizes().vec(), {0, 0}};
    slice.offset[static_cast<std::size_t>(dimension)] = at * tensor.size(dimension) / parts;
    content.slices[name] = slice;
    tensor = cut(tensor);
    auto& fields = content.optimizer->parameters.at(name);
    for (auto& [field, value] : fields) {
      value = value.isTensor() ? c10::IValue(cut(value.toTensor())) : value;
    }
    if (at > 0) {
      fields.erase("step"); // a number is written by one rank only
    }
  }
  return content;
}

TEST(Checkpoint, SlicesOfTensorParallelRanksBecomeOtherSlices) {
  const TemporaryDirectory dir;
  const TinyModel whole(1, {"matrix"}); // 2 x 6
  Writer writer(dir.path(), "a");
  writer.begin();
  std::vector<RankFiles> ranks;
  for (int i = 0; i < 3; ++i) {
    ranks.push_back(writer.write_rank_files(i, {0, 0, i}, sliced(whole, 1, i, 3)));
  }
  EXPECT_THAT(
      message_of([&] {
        Writer(dir.path(), "b").commit({ranks[0], ranks[2]}, {});
      }),
      HasSubstr("slices of matrix hold 8 of its 12 elements"));
  writer.commit(ranks, {});
  const auto checkpoint = Checkpoint::open(dir.path(), "a");
  TinyModel loaded(2, {"matrix"});
  loaded.load(checkpoint);
  EXPECT_TRUE(loaded.equals(whole));
  TinyModel straight(1, {"matrix"});
  straight.step(4);
  loaded.step(4);
  EXPECT_TRUE(loaded.equals(straight));
  // Three column slices make two column slices and two row slices.
  const at::Tensor matrix = whole.parameters[0].second.detach();
  const auto half = checkpoint.load_model(
      {{"matrix", at::kFloat, {2, 3}, {{2, 6}, {0, 3}}},
       {"matrix", at::kFloat, {1, 6}, {{2, 6}, {1, 0}}}});
  EXPECT_TRUE(torch::equal(half[0], matrix.narrow(1, 3, 3)));
  EXPECT_TRUE(torch::equal(half[1], matrix.narrow(0, 1, 1)));
  const auto state = checkpoint.load_optimizer({{"matrix", at::kFloat, {2, 3}, {{2, 6}, {0, 3}}}});
  EXPECT_TRUE(torch::equal(
      state.parameters.at("matrix").at("exp_avg").toTensor(),
      whole.content().optimizer->parameters.at("matrix").at("exp_avg").toTensor().narrow(1, 3, 3)));
  EXPECT_EQ(state.parameters.at("matrix").at("step").toInt(), 1);
}

TEST(Checkpoint, ATensorOfTwoOwnersIsRefused) {
  const TemporaryDirectory dir;
  Writer writer(dir.path(), "a");
  writer.begin();
  const TinyModel model(1);
  const auto first = writer.write_rank_files(0, {0, 0, 0}, model.content());
  const auto second = writer.write_rank_files(1, {1, 0, 0}, model.content());
  EXPECT_THAT(
      message_of([&] {
        writer.commit({first, second}, {});
      }),
      HasSubstr("layer.0.1 is written by rank 0 and by rank 1"));
  writer.begin();
  const auto again = writer.write_rank_files(0, {0, 0, 0}, model.content());
  EXPECT_THAT(
      message_of([&] {
        writer.commit({again, again}, {});
      }),
      HasSubstr("wrote model_0_0_0.safetensors, as another rank did"));
  EXPECT_THAT(
      message_of([&] { writer.commit({first}, {}); }), HasSubstr("a folder that all hosts share"));
  EXPECT_TRUE(names_in(dir.path()).empty());
}

TEST(Checkpoint, WhatCannotBeSavedFailsTheSaveOnly) {
  const TemporaryDirectory dir;
  save_one(dir.path(), "old", TinyModel(1));
  SaveInfo info;
  info.user_content = "{\"step\":";
  EXPECT_THAT(
      message_of([&] { save_one(dir.path(), "new", TinyModel(2), real_file_system(), info); }),
      HasSubstr("the user's content: not valid JSON"));
  EXPECT_THAT(names_in(dir.path()), SizeIs(5));
  for (const std::string tag : {"", ".hidden", "a/b", "newest", "line\n", "../up"}) {
    EXPECT_THAT(
        message_of([&] { const Writer writer(dir.path(), tag); }), HasSubstr("cannot be the tag"))
        << tag;
  }
  set_bytes(dir / "file", "");
  EXPECT_THAT(
      message_of([&] { save_one(dir / "file", "a", TinyModel(1)); }), HasSubstr("is a file"));
}

TEST(Retention, KeepsTheYoungestCompleteOnes) {
  const TemporaryDirectory dir;
  SaveInfo info;
  info.retention.newest = 2;
  // Tags out of alphabetical order: age is the order of saving.
  const auto save = [&](const std::string& tag) {
    const auto result = save_one(dir.path(), tag, TinyModel(1), real_file_system(), info);
    EXPECT_THAT(result.warnings, IsEmpty());
  };
  save("z");
  EXPECT_THAT(tags_in(dir.path()), ElementsAre("z"));
  save("y");
  EXPECT_THAT(tags_in(dir.path()), ElementsAre("y", "z"));
  save("b");
  EXPECT_THAT(tags_in(dir.path()), ElementsAre("b", "y"));
  // A torn one is neither counted nor removed.
  std::filesystem::remove(dir / "y/model_0_0_0.safetensors");
  save("c");
  EXPECT_THAT(tags_in(dir.path()), ElementsAre("b", "c", "y"));
  // Saved again, a tag becomes the youngest.
  save("b");
  save("d");
  EXPECT_THAT(tags_in(dir.path()), ElementsAre("b", "d", "y"));
  info.retention.newest = 1;
  save("e");
  EXPECT_THAT(tags_in(dir.path()), ElementsAre("e", "y"));
  EXPECT_EQ(open_newest(dir.path()).checkpoint->meta().tag, "e");
  info.retention.newest = 0;
  save("f");
  EXPECT_THAT(tags_in(dir.path()), ElementsAre("e", "f", "y"));
}

TEST(Retention, EveryNthSaveStaysForGood) {
  const TemporaryDirectory dir;
  SaveInfo info;
  info.retention = {.newest = 2, .every = 3};
  const auto save = [&](const std::string& tag) {
    EXPECT_THAT(
        save_one(dir.path(), tag, TinyModel(1), real_file_system(), info).warnings, IsEmpty());
  };
  for (const char* tag : {"1", "2", "3", "4", "5", "6", "7", "8"}) {
    save(tag);
  }
  EXPECT_THAT(tags_in(dir.path()), ElementsAre("3", "6", "7", "8"));
  EXPECT_TRUE(find_tag(dir.path(), "6").meta.for_good);
  EXPECT_FALSE(find_tag(dir.path(), "7").meta.for_good);
  // A mark outlasts the key, and a save in the marked one's place.
  info.retention.every = 0;
  save("9");
  save("3");
  save("a");
  EXPECT_THAT(tags_in(dir.path()), ElementsAre("3", "6", "a"));
  EXPECT_TRUE(find_tag(dir.path(), "3").meta.for_good);
}

TEST(Retention, TheBestStaysUntilABetterOneIsThere) {
  const TemporaryDirectory dir;
  SaveInfo info;
  info.retention = {.newest = 1, .best = true};
  const auto save = [&](const std::string& tag, std::optional<double> score) {
    info.score = score;
    save_one(dir.path(), tag, TinyModel(1), real_file_system(), info);
  };
  EXPECT_EQ(find_best(dir.path()), std::nullopt);
  save("1", std::nullopt);
  EXPECT_EQ(find_best(dir.path()), std::nullopt);
  save("2", 3.5);
  save("3", 3.75);
  EXPECT_THAT(tags_in(dir.path()), ElementsAre("2", "3"));
  EXPECT_EQ(find_best(dir.path()), "2");
  save("4", std::nullopt);
  EXPECT_THAT(tags_in(dir.path()), ElementsAre("2", "4"));
  save("5", 3.5); // of equals the oldest
  EXPECT_THAT(tags_in(dir.path()), ElementsAre("2", "5"));
  save("6", -1.0);
  EXPECT_THAT(tags_in(dir.path()), ElementsAre("6"));
  EXPECT_EQ(find_tag(dir.path(), "6").meta.score, -1.0);
  save("7", 0.0);
  EXPECT_THAT(tags_in(dir.path()), ElementsAre("6", "7"));
  EXPECT_EQ(find_tag(dir.path(), "7").meta.score, 0.0);
  // A torn one is no best one.
  std::filesystem::remove(dir / "6/model_0_0_0.safetensors");
  EXPECT_EQ(find_best(dir.path()), "7");
  info.retention.best = false;
  save("8", 1.0);
  EXPECT_THAT(tags_in(dir.path()), ElementsAre("6", "8"));
}

struct Damage {
  std::string name;
  std::string message;
  std::function<void(const std::string&)> apply;
};

std::vector<Damage> damages() {
  const auto flip = [](const std::string& path) {
    std::string bytes = bytes_of(path);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    set_bytes(path, bytes);
  };
  return {
      {"FileMissing",
       "model_0_0_0.safetensors is missing",
       [](const std::string& path) { std::filesystem::remove(path + "/model_0_0_0.safetensors"); }},
      {"FileCut",
       "bytes instead of",
       [](const std::string& path) {
         std::filesystem::resize_file(path + "/optimizer_0_0_0.safetensors", 100);
       }},
      {"BitFlipped",
       "model_0_0_0.safetensors has the checksum",
       [=](const std::string& path) { flip(path + "/model_0_0_0.safetensors"); }},
      {"MetaMissing",
       "has no meta.json",
       [](const std::string& path) { std::filesystem::remove(path + "/meta.json"); }},
      {"MetaCut",
       "not valid JSON",
       [](const std::string& path) { std::filesystem::resize_file(path + "/meta.json", 500); }},
      {"MetaChanged",
       "meta.json is damaged",
       [](const std::string& path) {
         std::string text = bytes_of(path + "/meta.json");
         text.replace(text.find("\"sequence\": 2"), 13, "\"sequence\": 3");
         set_bytes(path + "/meta.json", text);
       }},
      {"FolderMissing", "there is no checkpoint \"b\"", [](const std::string& path) {
         std::filesystem::remove_all(path);
       }}};
}

TEST(TornCheckpoint, IsNamedAndOnlyNewestFallsBack) {
  for (const auto& damage : damages()) {
    const TemporaryDirectory dir;
    save_one(dir.path(), "a", TinyModel(1));
    save_one(dir.path(), "b", TinyModel(2));
    damage.apply(dir / "b");
    EXPECT_THAT(message_of([&] { Checkpoint::open(dir.path(), "b"); }), HasSubstr(damage.message))
        << damage.name;
    const Newest newest = open_newest(dir.path());
    ASSERT_TRUE(newest.checkpoint) << damage.name;
    EXPECT_EQ(newest.checkpoint->meta().tag, "a") << damage.name;
    ASSERT_THAT(newest.warnings, SizeIs(1)) << damage.name;
    EXPECT_THAT(newest.warnings[0], HasSubstr(damage.message)) << damage.name;
  }
}

TEST(TornCheckpoint, WhenNoneIsWholeEachIsNamed) {
  const TemporaryDirectory dir;
  EXPECT_FALSE(open_newest(dir / "nothing").checkpoint);
  EXPECT_FALSE(open_newest(dir.path()).checkpoint);
  save_one(dir.path(), "a", TinyModel(1));
  save_one(dir.path(), "b", TinyModel(2));
  std::filesystem::resize_file(dir / "a/meta.json", 10);
  std::filesystem::resize_file(dir / "b/model_0_0_0.safetensors", 10);
  EXPECT_THAT(
      message_of([&] { open_newest(dir.path()); }),
      AllOf(
          HasSubstr("no checkpoint in"),
          HasSubstr("/a/meta.json: not valid JSON"),
          HasSubstr("/b is torn")));
}

TEST(TornCheckpoint, ADamagedNewestFileFallsBackToTheYoungest) {
  const TemporaryDirectory dir;
  save_one(dir.path(), "b", TinyModel(1));
  save_one(dir.path(), "a", TinyModel(2));
  EXPECT_EQ(open_newest(dir.path()).checkpoint->meta().tag, "a");
  set_bytes(dir / "newest", "b\n"); // going back by hand is allowed
  EXPECT_EQ(open_newest(dir.path()).checkpoint->meta().tag, "b");
  set_bytes(dir / "newest", "../../etc\n");
  const auto damaged = open_newest(dir.path());
  EXPECT_EQ(damaged.checkpoint->meta().tag, "a");
  EXPECT_THAT(damaged.warnings, SizeIs(1));
  std::filesystem::remove(dir / "newest");
  EXPECT_EQ(open_newest(dir.path()).checkpoint->meta().tag, "a");
}

TEST(TornCheckpoint, DamageThatSizesDoNotShowIsSeenWhenATensorIsRead) {
  const TemporaryDirectory dir;
  save_one(dir.path(), "a", TinyModel(1));
  damages()[2].apply(dir / "a");
  const auto checkpoint = Checkpoint::open(dir.path(), "a", Verify::kSizes);
  EXPECT_THAT(
      message_of([&] { checkpoint.load_model(TinyModel(1).wanted()); }),
      HasSubstr("is not the one that was saved"));
}

// Damage that repairs its own checksum reaches every check behind it.
TEST(TornCheckpoint, RandomDamageOfMetaGivesAnErrorOrTheSameTensors) {
  const TemporaryDirectory dir;
  Job job(2);
  job.save(dir.path(), "a");
  const std::string path = dir / "a/meta.json";
  const std::string good = bytes_of(path);
  std::mt19937 random(99);
  int refused = 0;
  int resealed = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string text = good;
    const std::size_t at = random() % text.size();
    switch (i % 4) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, 1 + random() % 30);
        break;
      case 2:
        text.insert(at, text.substr(random() % text.size(), random() % 30));
        break;
      default:
        text[at] = "0123456789[]{},:\"-"[random() % 18];
        break;
    }
    if (i % 2 == 1) {
      try {
        text = seal(parse_json(text, "text"));
        ++resealed;
      } catch (const CheckpointError&) {
        continue;
      } catch (const nlohmann::json::exception&) {
        continue; // no object any more
      }
    }
    set_bytes(path, text);
    try {
      const auto checkpoint = Checkpoint::open(dir.path(), "a");
      TinyModel loaded(5);
      loaded.load(checkpoint);
      for (const auto& model : job.models) {
        ASSERT_TRUE(loaded.equals(model)) << "mutation " << i;
      }
    } catch (const CheckpointError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(resealed, 100);
}

} // namespace
} // namespace tessera::checkpoint
