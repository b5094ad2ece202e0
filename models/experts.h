#pragma once

#include <tuple>

#include "tessera/nn/layers/experts.h"

#include "models/gpt.h"

// A decoder whose feed-forward layers are mixtures of experts.
// Source: Lepikhin et al. 2021 (GShard), section 2; Fedus et al. 2022 (Switch).
namespace tessera::models {

using ExpertsOptions = nn::DistributedExpertsOptions;

/// The experts of one layer in one process: nn::DistributedExperts takes its
/// place under tensor parallelism. Shapes: x_...I -> (y_...I, balance).
class ExpertsImpl : public torch::nn::Module {
 public:
  explicit ExpertsImpl(const ExpertsOptions& options);
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x);

  ExpertsOptions options;

 private:
  at::Tensor gate_, inner_weight_, inner_bias_, outer_weight_, outer_bias_;
};
TESSERA_MODULE(Experts);

/// x + attention(norm(x)), then x + experts(norm(x)); (x_BSI, balance so far)
/// -> the same, so that blocks form a sequence.
class ExpertBlockImpl : public torch::nn::Module {
 public:
  ExpertBlockImpl(const GptOptions& gpt, const ExpertsOptions& experts);
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, const at::Tensor& balance);

 private:
  LayerNorm ln_1_;
  GptAttention attn_;
  LayerNorm ln_2_;
  Experts experts_;
};
TESSERA_MODULE(ExpertBlock);

/// Embeddings, blocks, norm, output layer that shares the embedding.
/// Shapes: ids_BS (int64) -> (logits_BSV, sum of the blocks' load-balancing
/// losses). Width and layers are those of `gpt`.
class ExpertModelImpl : public torch::nn::Module {
 public:
  ExpertModelImpl(const GptOptions& gpt, ExpertsOptions experts);
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& ids);

 private:
  Embedding wte_;
  Embedding wpe_;
  nn::Sequential h_;
  LayerNorm ln_f_;
  TiedLinear lm_head_;
};
TESSERA_MODULE(ExpertModel);

} // namespace tessera::models
