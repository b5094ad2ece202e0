#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "tests/support/parity.h"

/// Training with several inputs and several losses under a strategy, beside
/// the plain loop. Tensors of a batch have their rows in axis 0.
namespace tessera::testing {

using Tensors = std::vector<torch::Tensor>;
using MakeTensors = std::function<Tensors(int step)>;

struct TrainedSlices {
  std::vector<std::vector<double>> losses; // of each step: mean of each loss
  TensorMap state; // parameters and buffers
  std::size_t left_out = 0; // buffers that do not count on this rank
};

inline Tensors rows_of(const Tensors& batch, int parts, int part) {
  Tensors slice;
  for (const auto& tensor : batch) {
    const auto rows = tensor.size(0) / parts;
    slice.push_back(tensor.narrow(0, part * rows, rows));
  }
  return slice;
}

inline torch::optim::SGD make_sgd(const std::vector<torch::Tensor>& parameters, double rate) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(rate).momentum(0.9));
}

/// A script without this library that computes what `replicas` data-parallel
/// ranks with `microbatches` each compute. Statistics of a batch are those of
/// one microbatch of one replica: nothing is exchanged inside a forward. The
/// running ones are the first replica's, in order of the microbatches, because
/// a training step begins with the first replica's buffers on all.
template <typename MakeNet, typename LossesOf>
TrainedSlices train_plain_slices(
    MakeNet make_net,
    const MakeTensors& batches,
    const LossesOf& losses_of,
    int steps,
    int replicas,
    int microbatches,
    double rate) {
  torch::manual_seed(7);
  auto net = make_net();
  TrainedSlices result;
  std::vector<torch::Tensor> unique;
  for (const auto& item : net->named_parameters()) {
    if (std::none_of(unique.begin(), unique.end(), [&](const auto& known) {
          return known.is_same(item.value());
        })) {
      unique.push_back(item.value());
      result.state[item.key()] = item.value().detach();
    }
  }
  for (const auto& item : net->named_buffers()) {
    result.state[item.key()] = item.value();
  }
  const auto buffers = net->buffers();
  const auto copies = [&] {
    Tensors list;
    for (const auto& buffer : buffers) {
      list.push_back(buffer.clone());
    }
    return list;
  };
  const auto restore = [&](const Tensors& list) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      buffers[i].copy_(list[i]);
    }
  };
  auto optimizer = make_sgd(unique, rate);
  const int slices = replicas * microbatches;
  for (int step = 0; step < steps; ++step) {
    const Tensors batch = batches(step);
    optimizer.zero_grad();
    std::vector<double> means;
    Tensors of_first;
    const Tensors before = copies();
    for (int i = 0; i < slices; ++i) {
      if (i % microbatches == 0) {
        restore(before); // the next replica begins
      }
      const Tensors losses = losses_of(net, rows_of(batch, slices, i));
      means.resize(losses.size());
      torch::Tensor total = torch::zeros({});
      for (std::size_t k = 0; k < losses.size(); ++k) {
        means[k] += losses[k].template item<double>() / slices;
        total = total + losses[k];
      }
      (total / slices).backward();
      if (i == microbatches - 1) {
        of_first = copies();
      }
    }
    restore(of_first);
    optimizer.step();
    result.losses.push_back(means);
  }
  return result;
}

/// The same with this library. Collective over the world.
template <typename MakeNet, typename LossesOf>
TrainedSlices train_distributed_slices(
    const Config& config,
    MakeNet make_net,
    const MakeTensors& batches,
    const LossesOf& losses_of,
    int steps,
    double rate) {
  init(config);
  const Ended ended;
  TrainedSlices result;
  // Only the first replica's parameters may count.
  torch::manual_seed(rdp_rank() == 0 ? 7 : 8);
  DistributedModel model(make_net());
  std::vector<std::string> buffer_names;
  for (const auto& item : model.net()->named_buffers()) {
    buffer_names.push_back(item.key());
  }
  DistributedOptimizer optimizer(make_sgd(model.parameters(), rate));
  auto train_step = tessera::step([&](const Tensors& batch) {
    const Tensors losses = losses_of(model, batch);
    model.backward(losses);
    return losses;
  });
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const auto losses = train_step(rows_of(batches(step), data_size(), data_rank()));
    optimizer.step();
    std::vector<double> means;
    for (const auto& loss : losses) {
      double mean = 0;
      for (const double value : allgather(loss.reduce_mean().template item<double>(), Group::kDP)) {
        mean += value / dp_size();
      }
      means.push_back(mean);
    }
    result.losses.push_back(means);
  }
  EXPECT_FALSE(model.local_parameters().empty()) << "pp rank " << pp_rank() << " has nothing to do";
  result.state = model.state_dict();
  if (rdp_rank() != 0) { // its buffers are its own until the next step begins
    for (const auto& name : buffer_names) {
      result.left_out += result.state.erase(name);
    }
  }
  return result;
}

inline void expect_equal(
    const TrainedSlices& got,
    const TrainedSlices& wanted,
    const std::string& what,
    double tolerance = 1e-5) {
  ASSERT_EQ(got.losses.size(), wanted.losses.size());
  for (std::size_t step = 0; step < wanted.losses.size(); ++step) {
    ASSERT_EQ(got.losses[step].size(), wanted.losses[step].size()) << what;
    for (std::size_t k = 0; k < wanted.losses[step].size(); ++k) {
      const double loss = wanted.losses[step][k];
      EXPECT_NEAR(got.losses[step][k], loss, tolerance * std::abs(loss))
          << what << ", loss " << k << " of step " << step;
    }
  }
  EXPECT_EQ(got.state.size() + got.left_out, wanted.state.size()) << what;
  for (const auto& [name, mine] : got.state) {
    ASSERT_TRUE(wanted.state.contains(name)) << what << ", " << name;
    const auto& tensor = wanted.state.at(name);
    ASSERT_EQ(mine.sizes(), tensor.sizes()) << what << ", " << name;
    // The gradient of an attention's key bias is 0 in exact arithmetic (softmax
    // ignores what is added to all its terms): all that is in it is rounding,
    // below 1e-12 in total here.
    const double bound = tolerance * tensor.to(torch::kDouble).norm().item<double>() +
                         1e-10 * std::sqrt(static_cast<double>(tensor.numel()));
    EXPECT_LE((mine.to(torch::kDouble) - tensor.to(torch::kDouble)).norm().item<double>(), bound)
        << what << ", " << name;
  }
}

} // namespace tessera::testing
