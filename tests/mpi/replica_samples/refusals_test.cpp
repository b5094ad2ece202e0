// Batches that are not the replica's, and configurations that ranks do not share.
#include "tests/mpi/replica_samples/support.h"

namespace tessera::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ReplicaSamples, ABatchOfAnotherSizeNamesRankFoundAndExpected) {
  for (const int pp : {1, 2}) {
    const Uneven layout{.pp = pp};
    if (layout.replicas() < 2) {
      continue;
    }
    init(config_of(layout));
    const Ended ended;
    DistributedModel model{made(7)};
    const std::vector<int> samples = unlike_samples(layout.replicas());
    const Batch equal = part_of(batch_at(0), data_size(), data_rank());
    const std::string text = error_of<UserError>([&] { step_of(model)(equal.x, equal.y); });
    // The first rank whose batch is wrong: no replica takes a half or a quarter of 24 first.
    EXPECT_THAT(
        text,
        AllOf(
            HasSubstr("rank 0"),
            HasSubstr(tessera::str("a batch of ", kRows / layout.replicas(), " rows")),
            HasSubstr(tessera::str("replica 0 takes ", samples[0])),
            HasSubstr(tessera::str("batch of ", kRows, " rows")),
            HasSubstr("data_rows")))
        << layout.text();
    // The next step is an ordinary one.
    const Batch mine = own_rows(batch_at(0));
    EXPECT_EQ(error_of<UserError>([&] { step_of(model)(mine.x, mine.y); }), "");
  }
}

// What is not learnt from may have any size.
TEST(ReplicaSamples, AnEvaluationMayBeOfAnySize) {
  init(config_of(Uneven()));
  const Ended ended;
  DistributedModel model{made(7)};
  auto evaluate = tessera::step([&](torch::Tensor x) { return model(x).mean(); });
  const torch::NoGradGuard no_grad;
  evaluate(torch::ones({2, kWidth}));
}

TEST(ReplicaSamples, RowsAreReadable) {
  init(config_of(Uneven()));
  const Ended ended;
  const std::vector<int> samples = unlike_samples(world_size());
  std::int64_t begin = 0;
  for (int i = 0; i < rank(); ++i) {
    begin += samples[i];
  }
  EXPECT_EQ(data_rows(kRows), (DataRows{begin, samples[rank()]}));
  EXPECT_DOUBLE_EQ(data_weight(), samples[rank()] * size() / double{kRows});
  EXPECT_THAT(
      error_of<ShapeError>([] { data_rows(23); }),
      AllOf(HasSubstr("a batch of 23 rows"), HasSubstr("add up to 24")));
}

TEST(ReplicaSamples, RowsAreEqualWithoutTheKey) {
  Config config = config_of(Uneven());
  config.replica_samples.clear();
  init(config);
  const Ended ended;
  const std::int64_t count = kRows / size();
  EXPECT_EQ(data_rows(kRows), (DataRows{count * rank(), count}));
  EXPECT_EQ(data_weight(), 1);
  EXPECT_THAT(
      error_of<ShapeError>([] { data_rows(23); }),
      AllOf(HasSubstr("a batch of 23 rows"), HasSubstr("a multiple of")));
}

TEST(ReplicaSamples, AreTheSameOnAllRanks) {
  Config config = config_of(Uneven());
  int mine = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &mine);
  if (mine == 1) {
    std::swap(config.replica_samples.front(), config.replica_samples.back());
  }
  EXPECT_THAT(
      error_of<ConfigError>([&] {
        init(config);
        const Ended ended;
      }),
      HasSubstr("replica_samples differs between ranks 0 and 1"));
}

} // namespace
} // namespace tessera::testing
