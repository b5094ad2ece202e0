// Gradients of bf16 parameters that travel in f32.
#include <gmock/gmock.h>

#include "tessera/autograd/f32_gradients.h"
#include "tessera/data_parallel/gradient_reducer.h"

#include "tests/unit/runtime/pipeline.h"

namespace tessera::data_parallel::testing {
namespace {

using runtime::testing::on_ranks;

constexpr double kLarge = 256; // of bf16: 1 more is lost

/// One rank of two, with three parameters of ten bf16 numbers.
struct SummingReplica {
  SummingReplica(comm::World& world, int owner)
      : group(world.new_group("dp", {0, 1})), control(world.new_group("control", {0, 1})) {
    std::vector<std::pair<std::string, at::Tensor>> named;
    for (int i = 0; i < 3; ++i) {
      parameters.push_back(torch::ones({5, 2}, at::kBFloat16).requires_grad_());
      named.emplace_back(str("p", i), parameters.back());
    }
    sums = std::make_unique<F32Gradients>(parameters);
    GradientReducer::Options options;
    options.bucket_bytes = 80; // two parameters in f32
    options.f32_sums = true;
    reducer = std::make_unique<GradientReducer>(world, *group, *control, named, options);
    reducer->set_owners({owner, owner, owner});
    here = owner < 0 || owner == world.rank();
  }
  void add(int i, double factor) {
    (parameters[i] * factor).sum().backward();
  }
  void expect(int i, double value) {
    const at::Tensor& gradient = parameters[i].grad();
    ASSERT_EQ(gradient.defined(), here);
    if (here) {
      EXPECT_EQ(gradient.scalar_type(), at::kFloat);
      EXPECT_TRUE(gradient.equal(torch::full({5, 2}, value))) << gradient << value;
    }
  }
  comm::ProcessGroupPtr group;
  comm::ProcessGroupPtr control;
  std::vector<at::Tensor> parameters;
  std::unique_ptr<F32Gradients> sums;
  std::unique_ptr<GradientReducer> reducer;
  bool here = true;
};

TEST(F32Reducer, AveragesAreNotRounded) {
  for (const int owner : {-1, 0}) {
    auto worlds = comm::inproc_worlds(2, {});
    on_ranks(2, [&](int rank) {
      SummingReplica replica(*worlds[rank], owner);
      for (int step = 0; step < 4; ++step) {
        for (at::Tensor& parameter : replica.parameters) {
          parameter.mutable_grad() = at::Tensor();
        }
        replica.reducer->begin(true);
        replica.add(0, rank == 0 ? 2 * kLarge : 0.5); // the replicas' sum alone loses it
        replica.add(1, 2 * kLarge);
        replica.add(1, 0.5); // late in the last step, which expects one
        if (step == 2) {
          replica.add(0, 0.25); // after the bucket has left
        }
        replica.reducer->finish({});
        replica.expect(0, kLarge + 0.25 + (step == 2 ? 0.25 : 0));
        replica.expect(1, 2 * kLarge + 0.5);
        EXPECT_FALSE(replica.parameters[2].grad().defined());
        EXPECT_EQ(replica.reducer->unaveraged_gradient(), "");
      }
    });
  }
}

TEST(F32Reducer, AveragesOutsideOfSteps) {
  auto worlds = comm::inproc_worlds(2, {});
  on_ranks(2, [&](int rank) {
    SummingReplica replica(*worlds[rank], -1);
    replica.add(0, 2 * kLarge);
    replica.add(0, rank);
    if (rank == 0) { // the other one has none
      replica.parameters[1].mutable_grad() = torch::full({5, 2}, kLarge, at::kBFloat16);
    }
    replica.reducer->average_rest();
    replica.expect(0, 2 * kLarge + 0.5);
    replica.expect(1, kLarge / 2);
  });
}

} // namespace
} // namespace tessera::data_parallel::testing
