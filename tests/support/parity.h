#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/tessera.h"

/// Training under a strategy beside the plain single-process loop.
namespace tessera::testing {

struct Trained {
  std::vector<double> losses;
  TensorMap parameters;
};

struct Batch {
  torch::Tensor x;
  torch::Tensor y;
};

/// Batches of step 0, 1, ... for the whole world, equal on every rank.
using MakeBatch = std::function<Batch(int step)>;

/// 8 rows of width `kWidth`, mixed so that data-dependent models take
/// different ways for different microbatches.
inline MakeBatch random_batches(int rows = 8, int width = 8) {
  return [=](int step) {
    torch::manual_seed(1000 + step);
    return Batch{torch::randn({rows, width}), torch::randn({rows, width})};
  };
}

/// Rows of the batch that belong to one of `parts` replicas.
inline Batch part_of(const Batch& batch, int parts, int part) {
  const auto rows = batch.x.size(0) / parts;
  return {batch.x.narrow(0, part * rows, rows), batch.y.narrow(0, part * rows, rows)};
}

using Loss = std::function<torch::Tensor(const torch::Tensor&, const torch::Tensor&)>;

inline torch::Tensor squared(const torch::Tensor& out, const torch::Tensor& y) {
  return torch::mse_loss(out, y);
}

/// What a libtorch script without this library does. Data-dependent models see
/// the same slices as under the strategy: `slices` losses are averaged.
template <typename MakeNet>
Trained train_plain(
    MakeNet make_net,
    const MakeBatch& batches,
    int steps,
    int slices,
    const Loss& loss_of = squared) {
  torch::manual_seed(7);
  auto net = make_net();
  // libtorch lists a shared parameter once for each module that holds it.
  std::vector<torch::Tensor> unique;
  for (const auto& parameter : net->parameters()) {
    if (std::none_of(unique.begin(), unique.end(), [&](const auto& known) {
          return known.is_same(parameter);
        })) {
      unique.push_back(parameter);
    }
  }
  torch::optim::SGD optimizer(unique, torch::optim::SGDOptions(0.1).momentum(0.9));
  Trained result;
  for (int step = 0; step < steps; ++step) {
    const Batch batch = batches(step);
    optimizer.zero_grad();
    double total = 0;
    for (int i = 0; i < slices; ++i) {
      const Batch slice = part_of(batch, slices, i);
      auto loss = loss_of(net(slice.x), slice.y) / slices;
      loss.backward();
      total += loss.template item<double>();
    }
    optimizer.step();
    result.losses.push_back(total);
  }
  std::set<const void*> seen;
  for (const auto& item : net->named_parameters()) {
    if (!seen.insert(item.value().unsafeGetTensorImpl()).second) {
      continue; // under its first name only, as the library lists it
    }
    result.parameters[item.key()] = item.value().detach();
  }
  for (const auto& item : net->named_buffers()) {
    result.parameters[item.key()] = item.value().detach();
  }
  return result;
}

/// Ends the library whichever way a test leaves.
struct Ended {
  Ended() = default;
  Ended(const Ended&) = delete;
  Ended& operator=(const Ended&) = delete;
  ~Ended() {
    shutdown();
  }
};

/// The same script with this library. Collective over the world.
template <typename MakeNet>
Trained train_distributed(
    const Config& config,
    MakeNet make_net,
    const MakeBatch& batches,
    int steps,
    const Loss& loss_of = squared) {
  init(config);
  const Ended ended;
  Trained result;
  {
    // Only the first data-parallel rank's parameters may count.
    torch::manual_seed(dp_rank() == 0 ? 7 : 8);
    DistributedModel model(make_net());
    DistributedOptimizer optimizer(
        torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)));
    auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
      auto loss = loss_of(model(x), y);
      model.backward(loss);
      return loss;
    });
    for (int step = 0; step < steps; ++step) {
      const Batch mine = part_of(batches(step), data_size(), data_rank());
      optimizer.zero_grad();
      const double loss = train_step(mine.x, mine.y).reduce_mean().template item<double>();
      optimizer.step();
      double mean = 0;
      for (const double value : allgather(loss, Group::kDP)) {
        mean += value / dp_size();
      }
      result.losses.push_back(mean);
    }
    result.parameters = model.state_dict();
  }
  return result;
}

inline double relative_error(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.sizes() != b.sizes()) {
    return 1e9;
  }
  const auto x = a.to(torch::kDouble);
  const auto y = b.to(torch::kDouble);
  return (x - y).norm().item<double>() / std::max(1e-12, y.norm().item<double>());
}

inline void expect_equal(
    const Trained& got,
    const Trained& wanted,
    const std::string& what,
    double tolerance = 1e-5) {
  ASSERT_EQ(got.losses.size(), wanted.losses.size());
  for (std::size_t i = 0; i < got.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], wanted.losses[i], tolerance * std::abs(wanted.losses[i]))
        << what << ", loss of step " << i;
  }
  EXPECT_EQ(got.parameters.size(), wanted.parameters.size()) << what;
  for (const auto& [name, tensor] : wanted.parameters) {
    ASSERT_TRUE(got.parameters.contains(name)) << what << ", " << name;
    EXPECT_LE(relative_error(got.parameters.at(name), tensor), tolerance) << what << ", " << name;
  }
}

} // namespace tessera::testing
