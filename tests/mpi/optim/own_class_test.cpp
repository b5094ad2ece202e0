// A script's own class of optimizer, which updates what its rank holds.
#include "tessera/optim/whole_norms.h"

#include "tests/mpi/optim/support.h"

namespace tessera::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Own : torch::optim::SGD {
  using SGD::SGD;
};

/// Says that it may.
struct OwnByParameter : torch::optim::SGD, optim::UpdatesByParameter {
  using SGD::SGD;
};

template <typename Optimizer>
std::string said_by(const Config& config) {
  ::testing::internal::CaptureStderr();
  {
    init(config);
    const Ended ended;
    DistributedModel model(made(7));
    DistributedOptimizer optimizer(
        std::make_unique<Optimizer>(model.parameters(), torch::optim::SGDOptions(0.1)));
    auto step = tessera::step([&](torch::Tensor x) { model.backward(model(x).pow(2).mean()); });
    for (int i = 0; i < 2; ++i) {
      step(part_of(batch_of(), data_size(), data_rank()).x);
      optimizer.step();
    }
  }
  return ::testing::internal::GetCapturedStderr();
}

TEST(OwnOptimizers, AreAskedWhereARankHoldsAPart) {
  for (const Layout& layout : layouts()) {
    const auto is_silent = Not(HasSubstr("holds alone"));
    EXPECT_THAT(said_by<torch::optim::SGD>(config_of(layout)), is_silent) << layout.text();
    EXPECT_THAT(said_by<OwnByParameter>(config_of(layout)), is_silent) << layout.text();
    const std::string said = said_by<Own>(config_of(layout));
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0 && layout.pp * layout.tp > 1) {
      EXPECT_THAT(
          said,
          AllOf(
              HasSubstr("Own updates what this rank holds alone"),
              HasSubstr("of the 8 parameters"),
              HasSubstr("UpdatesByParameter")))
          << layout.text();
      EXPECT_EQ(said.find("holds alone"), said.rfind("holds alone")); // once
    } else {
      EXPECT_THAT(said, is_silent) << layout.text();
    }
  }
}

} // namespace
} // namespace tessera::testing
