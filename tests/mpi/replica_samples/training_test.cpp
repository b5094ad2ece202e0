// Replicas with unlike numbers of samples train what one process trains with the whole batch.
#include "tessera/data_parallel/comm_hook.h"

#include "tests/mpi/replica_samples/support.h"

namespace tessera::testing {
namespace {

constexpr int kSteps = 3;

struct How {
  bool adam = false;
  at::ScalarType type = at::kFloat;
  std::optional<double> clip = {};
  int passes = 1;
  bool overlap = true;
  bool hook = false;
  std::string text() const {
    return tessera::str(
        adam ? "AdamW" : "momentum",
        ", ",
        type,
        clip ? ", clipped" : "",
        passes > 1 ? ", two passes" : "",
        overlap ? "" : ", at the end",
        hook ? ", by a hook" : "");
  }
};

struct Result {
  std::vector<double> losses, norms;
  TensorMap state;
};

std::unique_ptr<torch::optim::Optimizer> optimizer_of(
    const How& how,
    const std::vector<torch::Tensor>& parameters) {
  if (how.adam) {
    return std::make_unique<torch::optim::AdamW>(
        parameters, torch::optim::AdamWOptions(0.02).weight_decay(0.1));
  }
  return std::make_unique<torch::optim::SGD>(
      parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
}

Result plain(const How& how) {
  Chain chain = made(7, how.type);
  auto optimizer = optimizer_of(how, chain->parameters());
  Result result;
  for (int step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    for (int pass = 0; pass < how.passes; ++pass) {
      const Batch batch = batch_at(step * how.passes + pass, how.type);
      auto loss = (chain(batch.x) - batch.y).pow(2).mean(); // also in 16 bits
      loss.backward();
      result.losses.push_back(loss.item<double>());
    }
    result.norms.push_back(
        how.clip ? torch::nn::utils::clip_grad_norm_(chain->parameters(), *how.clip) : 0);
    optimizer->step();
  }
  result.state = state_of(chain);
  return result;
}

template <typename Rows>
Result trained(const Config& config, const How& how, const std::string& what, const Rows& rows) {
  init(config);
  const Ended ended;
  ModelOptions options;
  options.backward_passes_per_step = how.passes;
  options.overlapping_allreduce = how.overlap;
  options.bucket_cap_mb = 0.0005; // several buckets
  DistributedModel model(made(rdp_rank() == 0 ? 7 : 8, how.type), options);
  if (how.hook) {
    model.register_comm_hook([](data_parallel::GradientBucket& bucket) {
      return bucket.group.scaled_sum_async(bucket.buffer, bucket.scale);
    });
  }
  DistributedOptimizer optimizer(optimizer_of(how, model.parameters()));
  const auto train_step = step_of(model);
  Result result;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (int pass = 0; pass < how.passes; ++pass) {
      const Batch mine = rows(batch_at(step * how.passes + pass, how.type));
      result.losses.push_back(
          loss_of_all(train_step(mine.x, mine.y).reduce_mean().template item<double>()));
    }
    result.norms.push_back(how.clip ? optimizer.clip_grad_norm(*how.clip) : 0);
    optimizer.step();
  }
  expect_equal_replicas(model, what);
  result.state = model.state_dict();
  return result;
}

void expect_plain(const How& how, double tolerance) {
  const Result wanted = plain(how);
  for (const Uneven& layout : uneven_layouts()) {
    if (layout.shards > 1 && how.clip) {
      continue; // optimizer.step() clips there
    }
    if (how.hook && (layout.shards > 1 || layout.shares_state)) {
      continue; // refused
    }
    const std::string what = layout.text() + ", " + how.text();
    const Result got = trained(config_of(layout), how, what, own_rows);
    expect_state(got.state, wanted.state, what, tolerance);
    for (std::size_t i = 0; i < wanted.losses.size(); ++i) {
      EXPECT_NEAR(got.losses[i], wanted.losses[i], tolerance * wanted.losses[i]) << what;
    }
    for (std::size_t i = 0; i < wanted.norms.size(); ++i) {
      EXPECT_NEAR(got.norms[i], wanted.norms[i], tolerance * wanted.norms[i]) << what;
    }
  }
}

TEST(ReplicaSamples, TrainWithMomentum) {
  expect_plain({}, 1e-5);
  expect_plain({.overlap = false}, 1e-5);
}

TEST(ReplicaSamples, CountInWhatAHookIsGiven) {
  expect_plain({.hook = true}, 1e-5);
}

TEST(ReplicaSamples, TrainWithAdamW) {
  expect_plain({.adam = true}, 1e-4);
}

TEST(ReplicaSamples, ClipByTheNormOfTheModel) {
  expect_plain({.clip = 0.05}, 1e-5);
}

TEST(ReplicaSamples, AverageEveryOtherPass) {
  expect_plain({.passes = 2}, 1e-5);
}

TEST(ReplicaSamples, TrainSixteenBitsWithMasters) {
  expect_plain({.type = at::kBFloat16}, 2e-2);
}

// What the tests above would see if samples were not counted: the mean of unlike means.
TEST(ReplicaSamples, CountAlikeWithoutTheKey) {
  const Result wanted = plain({});
  Config config = config_of(Uneven());
  const std::vector<int> samples = std::exchange(config.replica_samples, {});
  const auto rows = [&](const Batch& batch) {
    int begin = 0;
    for (int i = 0; i < dp_rank(); ++i) {
      begin += samples[i];
    }
    const int count = samples[dp_rank()];
    return Batch{batch.x.narrow(0, begin, count), batch.y.narrow(0, begin, count)};
  };
  const Result got = trained(config, {}, "alike", rows);
  EXPECT_GT(relative_error(got.state.at("d.weight"), wanted.state.at("d.weight")), 1e-3);
}

// Equal numbers say what is so without them, to the bit.
TEST(ReplicaSamples, OfEqualNumbersChangeNothing) {
  Config config = config_of(Uneven());
  config.replica_samples.clear();
  const Result wanted = trained(config, {}, "unsaid", own_rows);
  config.replica_samples.assign(world_size(), kRows / world_size());
  const Result got = trained(config, {}, "said", own_rows);
  for (const auto& [name, tensor] : wanted.state) {
    EXPECT_TRUE(got.state.at(name).equal(tensor)) << name;
  }
}

// f16 with a loss scale: masters as of f32, within f16's rounding.
TEST(ReplicaSamples, TrainF16) {
  Config config = config_of(Uneven());
  const Result wanted = trained(config, {}, "f32", own_rows);
  config.fp16 = true;
  const Result got = trained(config, {}, "f16", own_rows);
  for (const auto& [name, tensor] : wanted.state) {
    EXPECT_LT(relative_error(got.state.at(name).to(torch::kFloat), tensor), 1e-2) << name;
  }
}

} // namespace
} // namespace tessera::testing
