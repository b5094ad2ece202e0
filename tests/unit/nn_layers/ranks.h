#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/comm/world.h"
#include "tessera/nn/parallel/context.h"
#include "tessera/nn/parallel/distributed_module.h"
#include "tessera/nn/parallel/shard.h"

/// Ranks of a TP_GROUP as threads, and a distributed module beside the plain
/// one that does the work of all of them.
namespace tessera::testing {

struct Setting {
  int tp = 1;
  nn::Distribution distribution = nn::Distribution::kSpeed;
  bool prescaled = false;

  std::string name() const {
    return (distribution == nn::Distribution::kSpeed ? "speed_tp" : "memory_tp") +
           std::to_string(tp) + (prescaled ? "_prescaled" : "");
  }
};

inline std::ostream& operator<<(std::ostream& out, const Setting& setting) {
  return out << setting.name();
}

inline std::vector<Setting> all_settings(
    const std::vector<nn::Distribution>& distributions = {
        nn::Distribution::kSpeed,
        nn::Distribution::kMemory}) {
  std::vector<Setting> settings;
  for (const int tp : {1, 2, 4}) {
    for (const nn::Distribution distribution : distributions) {
      for (const bool prescaled : {false, true}) {
        settings.push_back({tp, distribution, prescaled});
      }
    }
  }
  return settings;
}

/// Runs `body` on every rank, with the setting in force on its thread.
inline void on_ranks(
    const Setting& setting,
    const std::function<void(const nn::TensorParallel&)>& body) {
  comm::WorldOptions options;
  options.timeout = std::chrono::seconds(20);
  const auto worlds = comm::inproc_worlds(setting.tp, options);
  std::vector<std::string> errors(worlds.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < worlds.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        std::vector<int> ranks;
        for (int r = 0; r < setting.tp; ++r) {
          ranks.push_back(r);
        }
        const auto group = worlds[rank]->new_group("tp", ranks);
        nn::TensorParallel parallel;
        parallel.group = group.get();
        parallel.distribution = setting.distribution;
        parallel.prescaled_batch = setting.prescaled;
        const nn::TensorParallelScope scope(parallel);
        body(parallel);
      } catch (const std::exception& e) {
        errors[rank] = e.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::string& error : errors) {
    EXPECT_EQ(error, "");
  }
}

/// Threads share torch's generator; one for all instantiations of `seeded`.
inline std::mutex& generator_mutex() {
  static std::mutex mutex;
  return mutex;
}

/// Calls `make` with a seed of its own while no other thread draws numbers.
template <typename Make>
auto seeded(std::uint64_t seed, const Make& make) {
  const std::lock_guard lock(generator_mutex());
  torch::manual_seed(seed);
  return make();
}

/// Sample counts of the ranks, uneven on purpose: rank 0 has one more.
inline std::vector<std::int64_t> uneven_samples(int ranks) {
  std::vector<std::int64_t> samples(ranks, 2);
  samples.front() = 3;
  return samples;
}

/// What a rank brings of a tensor with everybody's samples in front.
inline torch::Tensor own_part(
    const nn::TensorParallel& parallel,
    const torch::Tensor& all,
    const std::vector<std::int64_t>& samples) {
  if (parallel.prescaled_batch || !all.defined()) {
    return all;
  }
  std::int64_t start = 0;
  for (int r = 0; r < parallel.rank(); ++r) {
    start += samples[r];
  }
  return all.narrow(0, start, samples[parallel.rank()]);
}

inline void expect_close(
    const torch::Tensor& found,
    const torch::Tensor& expected,
    const std::string& what,
    double tolerance = 1e-5) {
  ASSERT_EQ(found.defined(), expected.defined()) << what;
  if (!found.defined()) {
    return;
  }
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  if (found.numel() == 0) {
    return;
  }
  const auto difference = (found.to(torch::kDouble) - expected.to(torch::kDouble)).abs().max();
  const auto scale = expected.to(torch::kDouble).abs().max();
  EXPECT_LE(difference.item<double>(), tolerance * (1e-3 + scale.item<double>())) << what;
}

/// Every distributed parameter below `module`: (full name, local, description).
struct LocalParameter {
  std::string name;
  torch::Tensor tensor;
  nn::DistributedParameter description;
};

inline std::vector<LocalParameter> distributed_parameters(const torch::nn::Module& module) {
  std::vector<LocalParameter> found;
  for (const auto& item : module.named_modules("", /*include_self=*/true)) {
    const auto* child = dynamic_cast<const nn::DistributedModule*>(item.value().get());
    if (child == nullptr) {
      continue;
    }
    const auto local = item.value()->named_parameters(/*recurse=*/false);
    for (const auto& [name, description] : child->distributed_parameters()) {
      found.push_back(
          {item.key().empty() ? name : item.key() + "." + name, local[name], description});
    }
  }
  return found;
}

/// Local values equal the parts of `full`, to the bit.
inline void expect_parts_of(
    const torch::nn::Module& module,
    const std::map<std::string, torch::Tensor>& full) {
  for (const auto& parameter : distributed_parameters(module)) {
    const auto it = full.find(parameter.name);
    ASSERT_NE(it, full.end()) << parameter.name;
    EXPECT_TRUE(torch::equal(
        parameter.tensor.detach(), nn::take_shard(parameter.description.shard, it->second)))
        << parameter.name;
  }
}

/// Every rank's gradients equal the parts of the plain module's, which is that
/// of the sum of all ranks' losses. Collective over the group.
inline void expect_gradients(
    const nn::TensorParallel& parallel,
    const torch::nn::Module& module,
    const std::map<std::string, torch::Tensor>& plain_gradients,
    double tolerance = 1e-5) {
  for (const auto& parameter : distributed_parameters(module)) {
    const auto it = plain_gradients.find(parameter.name);
    ASSERT_NE(it, plain_gradients.end()) << parameter.name;
    torch::Tensor local = parameter.tensor.grad();
    ASSERT_TRUE(local.defined()) << parameter.name;
    local = (local.is_sparse() ? local.to_dense() : local).clone();
    if (!parameter.description.scaled_batch && !parallel.prescaled_batch && parallel.size() > 1) {
      parallel.group->all_reduce(local); // data parallel: the ranks' samples
    }
    expect_close(
        local,
        nn::take_shard(parameter.description.shard, it->second),
        "gradient of " + parameter.name + " on tp_rank " + std::to_string(parallel.rank()),
        tolerance);
  }
}

inline std::map<std::string, torch::Tensor> parameters_of(const torch::nn::Module& module) {
  std::map<std::string, torch::Tensor> result;
  for (const auto& item : module.named_parameters()) {
    result[item.key()] = item.value().detach();
  }
  return result;
}

inline std::map<std::string, torch::Tensor> gradients_of(const torch::nn::Module& module) {
  std::map<std::string, torch::Tensor> result;
  for (const auto& item : module.named_parameters()) {
    result[item.key()] =
        item.value().grad().defined() ? item.value().grad() : torch::zeros_like(item.value());
  }
  return result;
}

/// A random tensor that is the same on every thread.
inline torch::Tensor fixed_random(const std::vector<std::int64_t>& sizes, std::uint64_t seed) {
  return seeded(seed, [&] { return torch::randn(sizes); });
}

} // namespace tessera::testing
