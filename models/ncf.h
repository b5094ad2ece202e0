#pragma once

#include "models/layers.h"
#include "models/options.h"

namespace tessera::models {

/// Neural matrix factorisation: the product of two embeddings and a tower over
/// two others, joined by one linear layer.
///
/// Under a scope of tensor_parallelism only the four tables are marked: the tower is small beside
/// them, and each rank computes it for its own samples (Karakus et al. 2021, section 7.3).
/// Shapes: users_B, items_B (int64) -> logits_B (of "they interacted"); any other shape of pairs
/// likewise.
/// Source: He et al. 2017, section 3.4, equation (12).
class NcfImpl : public torch::nn::Module {
 public:
  explicit NcfImpl(const NcfOptions& options);
  at::Tensor forward(const at::Tensor& users, const at::Tensor& items);

 private:
  Embedding mf_user_embed_;
  Embedding mf_item_embed_;
  Embedding mlp_user_embed_;
  Embedding mlp_item_embed_;
  nn::Sequential mlp_;
  Linear final_;
};
TESSERA_MODULE(Ncf);

} // namespace tessera::models
