#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/checkpoint/reader.h"
#include "tessera/checkpoint/writer.h"

namespace tessera::checkpoint {

/// Named parameters with an Adam that has made a step; `seed` tells saves
/// apart.
struct TinyModel {
  explicit TinyModel(int seed, std::vector<std::string> names = all_names()) {
    for (const auto& name : names) {
      torch::manual_seed(seed * 1000 + name.back());
      parameters.emplace_back(
          name, torch::randn({2, static_cast<std::int64_t>(name.size())}).requires_grad_());
    }
    optimizer = std::make_unique<torch::optim::Adam>(
        tensors(), torch::optim::AdamOptions(0.5 / (1 + seed)));
    step(seed);
  }

  static std::vector<std::string> all_names() {
    return {"layer.0", "layer.0.1", "layer.2", "head.3"};
  }
  std::vector<at::Tensor> tensors() const {
    std::vector<at::Tensor> all;
    for (const auto& [name, tensor] : parameters) {
      all.push_back(tensor);
    }
    return all;
  }
  void step(int seed) {
    optimizer->zero_grad();
    for (auto& [name, tensor] : parameters) {
      torch::manual_seed(seed * 77 + name.back());
      (tensor * torch::randn(tensor.sizes())).sum().backward();
    }
    optimizer->step();
  }
  RankContent content() const {
    RankContent content;
    content.model = parameters;
    content.optimizer = state::capture(*optimizer, parameters);
    return content;
  }
  std::vector<Wanted> wanted() const {
    std::vector<Wanted> all;
    for (const auto& [name, tensor] : parameters) {
      all.push_back({name, tensor.scalar_type(), tensor.sizes().vec(), {}});
    }
    return all;
  }
  /// Replaces everything by what the checkpoint holds.
  void load(const Checkpoint& checkpoint) {
    const torch::NoGradGuard no_grad;
    const auto loaded = checkpoint.load_model(wanted());
    for (std::size_t i = 0; i < loaded.size(); ++i) {
      parameters[i].second.copy_(loaded[i]);
    }
    state::restore(*optimizer, checkpoint.load_optimizer(wanted()), parameters);
  }
  bool equals(const TinyModel& other) const {
    for (const auto& [name, tensor] : parameters) {
      for (const auto& [other_name, other_tensor] : other.parameters) {
        if (name == other_name && !torch::equal(tensor, other_tensor)) {
          return false;
        }
      }
    }
    return true;
  }

  NamedTensors parameters;
  std::unique_ptr<torch::optim::Adam> optimizer;
};

/// Saves one model from one rank.
inline SaveResult save_one(
    const std::string& directory,
    const std::string& tag,
    const TinyModel& model,
    FileSystem& files = real_file_system(),
    SaveInfo info = {}) {
  Writer writer(directory, tag, files);
  writer.begin();
  return writer.commit({writer.write_rank_files(0, {}, model.content())}, info);
}

} // namespace tessera::checkpoint
