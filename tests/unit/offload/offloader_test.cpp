// When tensors leave and come back, seen by a host that writes down what it is asked for.
#include "tessera/offload/offloader.h"

#include <map>
#include <string>

#include <torch/torch.h>

#include <gmock/gmock.h>

#include "tessera/base/error.h"
#include "tessera/recompute/recomputation.h"
#include "tessera/tensor/value.h"

namespace tessera::offload {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Memory of the test; copies end at once, or when they are told to.
class RecordingHost : public Host {
 public:
  class RecordedCopy : public Copy {
   public:
    bool done() const override {
      return ended;
    }
    void wait() override {
      ended = true; // as if it ended meanwhile
      if (failed) {
        throw ConfigError("the disk is gone");
      }
    }
    bool ended = true;
    bool failed = false;
  };

  Place reserve(std::int64_t bytes) override {
    const std::int64_t at = next_++;
    memory_[at].resize(static_cast<std::size_t>(bytes));
    return {at, bytes};
  }
  void give_back(Place place) noexcept override {
    memory_.erase(place.offset);
  }
  std::shared_ptr<Copy> copy_out(const at::Tensor& memory, Place to) override {
    log.push_back(str("out ", memory.numel()));
    std::copy_n(memory.data_ptr<std::uint8_t>(), memory.numel(), memory_.at(to.offset).data());
    return copy();
  }
  std::shared_ptr<Copy> copy_in(Place from, const at::Tensor& memory) override {
    log.push_back(str("in ", memory.numel()));
    std::copy_n(memory_.at(from.offset).data(), memory.numel(), memory.data_ptr<std::uint8_t>());
    return copy();
  }
  std::int64_t bytes() const override {
    std::int64_t sum = 0;
    for (const auto& [at, bytes] : memory_) {
      sum += static_cast<std::int64_t>(bytes.size());
    }
    return sum;
  }

  std::shared_ptr<RecordedCopy> copy() {
    copies.push_back(std::make_shared<RecordedCopy>());
    copies.back()->ended = !slow;
    copies.back()->failed = fails;
    return copies.back();
  }

  bool slow = false;
  bool fails = false;
  std::vector<std::string> log;
  std::vector<std::shared_ptr<RecordedCopy>> copies;

 private:
  std::map<std::int64_t, std::vector<std::uint8_t>> memory_;
  std::int64_t next_ = 0;
};

/// A tensor whose size tells which it is: 4096 + n bytes.
at::Tensor numbered(int n) {
  return torch::full({4096 + n}, n, torch::kByte);
}

std::unique_ptr<recompute::KeptTensors> keep(Offloader& offloader, const at::Tensor& x, int mb) {
  return offloader.keep({x}, mb);
}

/// Steps of four microbatches, of which two are under way. Each keeps one tensor, 4096 + its
/// number. Returns what was copied in the last of them, and after each task the bytes that are
/// away.
std::vector<std::string> copies_of_steps(int horizon, int steps) {
  const auto host = std::make_shared<RecordingHost>();
  Offloader offloader(host, {.horizon = horizon});
  const std::vector<recompute::PipelineTask> order = {
      {0, false}, {1, false}, {2, false}, {0, true}, {3, false}, {1, true}, {2, true}, {3, true}};
  for (int step = 0; step < steps; ++step) {
    host->log.clear();
    offloader.step_begins(1);
    std::map<int, std::unique_ptr<recompute::KeptTensors>> kept;
    for (const auto& task : order) {
      host->log.push_back(str(task.microbatch, task.backward ? "B" : "F"));
      offloader.task_begins(task);
      if (!task.backward) {
        kept[task.microbatch] = keep(offloader, numbered(task.microbatch), task.microbatch);
      } else {
        const auto back = kept.at(task.microbatch)->get();
        EXPECT_TRUE(back.at(0).equal(numbered(task.microbatch)));
        kept.erase(task.microbatch);
      }
    }
    offloader.step_ended();
    EXPECT_EQ(host->bytes(), 0);
  }
  return host->log;
}

TEST(Offloader, TheFirstStepBringsTensorsBackWhenTheirBackwardBegins) {
  EXPECT_THAT(
      copies_of_steps(4, 1),
      ElementsAre(
          "0F",
          "out 4096",
          "1F",
          "out 4097",
          "2F",
          "out 4098",
          "0B",
          "in 4096",
          "3F",
          "out 4099",
          "1B",
          "in 4097",
          "2B",
          "in 4098",
          "3B",
          "in 4099"));
}

TEST(Offloader, ALaterStepBeginsTheHorizonEarlier) {
  EXPECT_THAT(
      copies_of_steps(1, 2),
      ElementsAre(
          "0F",
          "out 4096",
          "1F",
          "out 4097",
          "2F",
          "in 4096",
          "out 4098",
          "0B",
          "3F",
          "in 4097",
          "out 4099",
          "1B",
          "in 4098",
          "2B",
          "in 4099",
          "3B"));
  // 0 and 2: their backwards are within four tasks when their forwards have run.
  EXPECT_THAT(copies_of_steps(4, 3), ElementsAre("0F", "1F", "2F", "0B", "3F", "1B", "2B", "3B"));
  EXPECT_THAT(
      copies_of_steps(3, 2),
      ElementsAre(
          "0F",
          "1F",
          "out 4097",
          "2F",
          "in 4097",
          "out 4098",
          "0B",
          "in 4098",
          "3F",
          "1B",
          "2B",
          "3B"));
  EXPECT_THAT(copies_of_steps(100, 2), ElementsAre("0F", "1F", "2F", "0B", "3F", "1B", "2B", "3B"));
}

/// In a pipeline all backwards may begin before the first of them has what another rank computes.
TEST(Offloader, ABackwardThatWaitsBringsBackTheNextAlone) {
  const auto host = std::make_shared<RecordingHost>();
  Offloader offloader(host, {.horizon = 1});
  const int microbatches = 4;
  for (int step = 0; step < 2; ++step) {
    host->log.clear();
    offloader.step_begins(1);
    std::map<int, std::unique_ptr<recompute::KeptTensors>> kept;
    for (int i = 0; i < microbatches; ++i) {
      offloader.task_begins({i, false});
      kept[i] = keep(offloader, numbered(i), i);
    }
    for (int i = 0; i < microbatches; ++i) {
      host->log.push_back(str(i, "B"));
      offloader.task_begins({i, true});
    }
    for (int i = 0; i < microbatches; ++i) {
      host->log.push_back(str(i, " runs again"));
      EXPECT_TRUE(kept.at(i)->get().at(0).equal(numbered(i)));
      kept.erase(i);
    }
    offloader.step_ended();
  }
  EXPECT_THAT(
      host->log,
      ElementsAre(
          "out 4096",
          "out 4097",
          "out 4098",
          "in 4096",
          "out 4099",
          "0B",
          "in 4097",
          "1B",
          "2B",
          "3B",
          "0 runs again",
          "1 runs again",
          "in 4098",
          "2 runs again",
          "in 4099",
          "3 runs again"));
}

TEST(Offloader, OnOneRankRegionsComeBackOneByOne) {
  const auto host = std::make_shared<RecordingHost>();
  Offloader offloader(host, {.horizon = 1, .by_region = true});
  offloader.step_begins(1);
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    host->log.clear();
    offloader.task_begins({microbatch, false});
    std::vector<std::unique_ptr<recompute::KeptTensors>> kept;
    for (int region = 0; region < 4; ++region) {
      kept.push_back(keep(offloader, numbered(region), microbatch));
    }
    offloader.task_begins({microbatch, true});
    for (int region = 3; region >= 0; --region) {
      host->log.push_back(str("use ", region));
      EXPECT_TRUE(kept[region]->get().at(0).equal(numbered(region)));
    }
  }
  // The last region's backward follows its forward, so its tensor stayed.
  EXPECT_THAT(
      host->log,
      ElementsAre(
          "out 4096",
          "out 4097",
          "out 4098",
          "use 3",
          "in 4098",
          "use 2",
          "in 4097",
          "use 1",
          "in 4096",
          "use 0"));
}

TEST(Offloader, MemoryIsGivenUpWhenTheCopyHasEnded) {
  const auto host = std::make_shared<RecordingHost>();
  Offloader offloader(host, {});
  host->slow = true;
  offloader.step_begins(1);
  at::Tensor x = numbered(7);
  const auto weak = x.storage().getWeakStorageImpl();
  const auto kept = offloader.keep({x}, 0);
  x = at::Tensor();
  offloader.task_begins({1, false});
  EXPECT_FALSE(weak.expired()) << "the copy runs";
  host->copies.at(0)->ended = true;
  offloader.task_begins({2, false});
  EXPECT_TRUE(weak.expired());
  EXPECT_TRUE(kept->get().at(0).equal(numbered(7))) << "at once, where nobody has asked before";
  EXPECT_EQ(offloader.counters().waits, 1);
}

TEST(Offloader, WhatIsNeededBeforeItHasLeftStays) {
  const auto host = std::make_shared<RecordingHost>();
  Offloader offloader(host, {});
  host->slow = true;
  offloader.step_begins(1);
  at::Tensor x = numbered(7);
  const void* const place = x.data_ptr();
  const auto kept = offloader.keep({x}, 0);
  x = at::Tensor();
  offloader.task_begins({0, true}); // asks for it
  host->copies.at(0)->ended = true;
  offloader.task_begins({1, false});
  EXPECT_EQ(kept->get().at(0).data_ptr(), place);
  EXPECT_THAT(host->log, ElementsAre("out 4103"));
}

TEST(Offloader, ATensorThatOthersHaveIsCopiedOnceAndNotFetched) {
  const auto host = std::make_shared<RecordingHost>();
  Offloader offloader(host, {});
  offloader.step_begins(1);
  const at::Tensor x = numbered(7);
  const auto first = offloader.keep({x}, 0);
  const auto second = offloader.keep({x.detach()}, 0);
  const auto part = offloader.keep({x.narrow(0, 0, 4096)}, 0);
  EXPECT_THAT(host->log, ElementsAre("out 4103", "out 4096"));
  offloader.task_begins({0, true});
  EXPECT_EQ(first->get().at(0).data_ptr(), x.data_ptr());
  EXPECT_EQ(second->get().at(0).data_ptr(), x.data_ptr());
  EXPECT_EQ(part->get().at(0).data_ptr(), x.data_ptr());
  EXPECT_EQ(host->log.size(), 2U);
}

TEST(Offloader, WhatStays) {
  const auto host = std::make_shared<RecordingHost>();
  Offloader offloader(host, {});
  offloader.step_begins(1);
  const at::Tensor parameter = torch::zeros({64, 64}).requires_grad_();
  const at::Tensor small = torch::zeros({1023});
  const at::Tensor sparse = torch::eye(100).to_sparse();
  const at::Tensor meta = torch::zeros({64, 64}, torch::kMeta);
  const at::Tensor hollow = torch::zeros({64, 64}); // as a sharded parameter
  hollow.storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr(nullptr, at::kCPU));
  const at::Tensor view = hollow.narrow(0, 16, 32);
  const auto kept = offloader.keep({parameter, small, sparse, meta, at::Tensor(), hollow, view}, 0);
  EXPECT_THAT(host->log, IsEmpty());
  const auto back = kept->get();
  EXPECT_TRUE(back.at(0).is_same(parameter));
  EXPECT_TRUE(back.at(1).is_same(small));
  EXPECT_TRUE(back.at(2).is_same(sparse));
  EXPECT_TRUE(back.at(3).is_same(meta));
  EXPECT_FALSE(back.at(4).defined());
  EXPECT_TRUE(back.at(5).is_same(hollow));
  EXPECT_TRUE(back.at(6).is_same(view));
}

TEST(Offloader, ATensorComesBackWithItsLayout) {
  const auto host = std::make_shared<RecordingHost>();
  Offloader offloader(host, {});
  torch::manual_seed(2);
  const at::Tensor base = torch::randn({40, 50, 30});
  for (const at::Tensor& view :
       {base.transpose(0, 2),
        base.narrow(1, 3, 40).select(0, 2),
        base.flatten().narrow(0, 1, 2000),
        base.select(1, 0).unsqueeze(1).expand({40, 7, 30}),
        base.to(torch::kBFloat16).permute({1, 0, 2})}) {
    at::Tensor x = view.is_contiguous() && view.storage_offset() == 0 ? view.clone() : view;
    offloader.step_begins(1);
    const at::Tensor wanted = x.clone();
    const auto strides = x.strides().vec();
    const auto line = reinterpret_cast<std::intptr_t>(x.data_ptr()) % 64;
    // A storage of its own, which nobody else holds.
    const auto elements =
        static_cast<std::int64_t>(x.storage().nbytes()) / static_cast<std::int64_t>(x.itemsize());
    at::Tensor own = x.as_strided({elements}, {1}, 0)
                         .clone()
                         .as_strided(x.sizes(), x.strides(), x.storage_offset());
    const auto kept = offloader.keep({own}, 0);
    own = at::Tensor();
    offloader.task_begins({1, false});
    const at::Tensor back = kept->get().at(0);
    EXPECT_TRUE(back.equal(wanted)) << x.sizes();
    EXPECT_EQ(back.strides().vec(), strides);
    EXPECT_EQ(back.scalar_type(), x.scalar_type());
    EXPECT_EQ(reinterpret_cast<std::intptr_t>(back.data_ptr()) % 64, line);
    EXPECT_THAT(host->log.back(), HasSubstr("in "));
  }
}

TEST(Offloader, AFailedCopyIsAnErrorAndTheNextStepGoesOn) {
  const auto host = std::make_shared<RecordingHost>();
  Offloader offloader(host, {});
  host->fails = true;
  offloader.step_begins(1);
  const auto kept = offloader.keep({numbered(1)}, 0);
  offloader.task_begins({1, false}); // cannot throw
  EXPECT_THROW(offloader.keep({numbered(2)}, 1), ConfigError);
  EXPECT_TRUE(kept->get().at(0).equal(numbered(1))) << "it never left";
  host->fails = false;
  offloader.step_ended();
  offloader.step_begins(1);
  EXPECT_NO_THROW(offloader.keep({numbered(2)}, 0));
}

recompute::Region scaled() {
  recompute::Region region;
  region.name = "module 'scaled'";
  region.run = [](const c10::IValue& args) {
    const auto [x] = unpack<std::tuple<at::Tensor>>(args);
    return pack(x * x);
  };
  return region;
}

at::Tensor called(const at::Tensor& x) {
  return unpack<at::Tensor>(recompute::run(scaled(), pack(std::tuple<at::Tensor>(x))));
}

TEST(Offloader, ARegionMayRunBackwardTwice) {
  const auto host = std::make_shared<RecordingHost>();
  Offloader offloader(host, {});
  const recompute::KeeperScope scope(&offloader, 0);
  offloader.step_begins(1);
  const at::Tensor leaf = torch::randn({64, 64}).requires_grad_();
  const at::Tensor loss = called(leaf * 3).sum();
  EXPECT_EQ(host->log.size(), 1U);
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor once = leaf.grad().clone();
  loss.backward();
  EXPECT_TRUE(leaf.grad().equal(2 * once));
  EXPECT_EQ(host->bytes(), 0) << "nothing is kept when it is not needed any more";
}

TEST(Offloader, AChangeInPlaceIsFoundAlthoughTheTensorIsGone) {
  const auto host = std::make_shared<RecordingHost>();
  Offloader offloader(host, {});
  const recompute::KeeperScope scope(&offloader, 0);
  offloader.step_begins(1);
  const at::Tensor leaf = torch::randn({64, 64}).requires_grad_();
  at::Tensor x = leaf * 3;
  const at::Tensor loss = called(x).sum();
  x.mul_(2);
  try {
    loss.backward();
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_THAT(
        error.what(), HasSubstr("module 'scaled' has an argument that was changed in place"));
  }
}

TEST(Offloader, AGraphMayOutliveIt) {
  const auto host = std::make_shared<RecordingHost>();
  at::Tensor loss;
  const at::Tensor leaf = torch::randn({64, 64}).requires_grad_();
  {
    Offloader offloader(host, {.horizon = 1, .by_region = true});
    const recompute::KeeperScope scope(&offloader, 0);
    offloader.step_begins(1);
    offloader.task_begins({0, false});
    loss = called(leaf * 3).sum();
  }
  loss.backward();
  EXPECT_TRUE(leaf.grad().allclose(18 * leaf));
}

} // namespace
} // namespace tessera::offload
