// Figure 5 of the paper: the timeline of a pipeline of four ranks and 16 microbatches, as it ran.
#include <regex>

#include <gmock/gmock.h>

#include "tessera/context/context.h"
#include "tessera/report/timeline_picture.h"
#include "tessera/timeline/timeline.h"

#include "tests/mpi/order/support.h"

namespace tessera::testing {
namespace {

constexpr int kFigureRanks = 4;
constexpr int kOfTheFigure = 16;

/// Takes long enough to be seen.
struct SlowImpl : torch::nn::Module {
  SlowImpl() {
    layer = register_module("layer", nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    sleep_ms(is_tracing() ? 0 : 1);
    return torch::tanh(layer(x));
  }
  nn::Linear layer{nullptr};
};
TESSERA_MODULE(Slow);

struct FourStagesImpl : torch::nn::Module {
  FourStagesImpl() {
    for (int i = 0; i < kFigureRanks; ++i) {
      stages->push_back(Slow());
    }
    register_module("stages", stages);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return stages(x);
  }
  nn::Sequential stages;
};
TESSERA_MODULE(FourStages);

timeline::Timeline recorded_step() {
  init(placed(kFigureRanks, kOfTheFigure, {{"stages.1", 1}, {"stages.2", 2}, {"stages.3", 3}}));
  const Ended ended;
  DistributedModel model{FourStages()};
  auto train_step = tessera::step([&](torch::Tensor x) {
    auto loss = model(x).pow(2).mean();
    model.backward(loss);
  });
  const torch::Tensor x = torch::ones({kOfTheFigure, kWidth});
  train_step(x); // traces and partitions
  barrier();
  context().recorder->set_origin();
  context().recorder->enable(true);
  train_step(x);
  timeline::Timeline own;
  own.world_size = kFigureRanks;
  own.events = context().recorder->take();
  timeline::Timeline all;
  all.world_size = kFigureRanks;
  for (const std::string& text : allgather(timeline::to_json(own))) {
    const auto events = timeline::timeline_from_json(text).events;
    all.events.insert(all.events.end(), events.begin(), events.end());
  }
  return all;
}

double first_start(const timeline::Timeline& timeline, const std::string& category, int rank) {
  double first = std::numeric_limits<double>::infinity();
  for (const auto& event : timeline.events) {
    if (event.category == category && event.rank == rank) {
      first = std::min(first, event.start_us);
    }
  }
  return first;
}

TEST(Picture, SixteenMicrobatchesOnFourRanks) {
  if (world_size() != kFigureRanks) {
    GTEST_SKIP() << "a pipeline of four ranks";
  }
  const timeline::Timeline timeline = recorded_step();
  for (int rank = 0; rank < kFigureRanks; ++rank) {
    for (const char* category : {"forward", "backward"}) {
      std::set<int> microbatches;
      for (const auto& event : timeline.events) {
        if (event.category == category && event.rank == rank) {
          microbatches.insert(event.microbatch);
          EXPECT_GT(event.end_us, event.start_us);
        }
      }
      EXPECT_EQ(microbatches.size(), static_cast<std::size_t>(kOfTheFigure))
          << category << ", rank " << rank;
    }
  }
  // It fills from the first rank and drains from the last; the loss, where backwards begin, is
  // computed on rank 0.
  for (int rank = 1; rank < kFigureRanks; ++rank) {
    EXPECT_LT(first_start(timeline, "forward", rank - 1), first_start(timeline, "forward", rank));
  }
  for (int rank = 2; rank < kFigureRanks; ++rank) {
    EXPECT_GT(first_start(timeline, "backward", rank - 1), first_start(timeline, "backward", rank));
  }
  const int step = timeline::steps(timeline).front();
  const double waited = timeline::bubble_share(timeline, step);
  EXPECT_GT(waited, 0);
  EXPECT_LT(waited, 1);
  const std::string picture = report::timeline_picture(timeline, step);
  std::map<std::string, std::map<std::string, int>> boxes; // by row and kind
  const std::regex pattern(
      "<rect class=\"(forward|backward)(?: odd)?\" x=\"[0-9.]+%\" y=\"([0-9.]+)\"");
  for (std::sregex_iterator it(picture.begin(), picture.end(), pattern), end; it != end; ++it) {
    ++boxes[(*it)[2]][(*it)[1]];
  }
  EXPECT_EQ(boxes.size(), static_cast<std::size_t>(kFigureRanks));
  for (auto& [row, of_row] : boxes) {
    EXPECT_GE(of_row["forward"], kOfTheFigure) << "row at " << row;
    EXPECT_GE(of_row["backward"], kOfTheFigure) << "row at " << row;
  }
}

} // namespace
} // namespace tessera::testing
