#pragma once

#include "tessera/nn/module/sequential.h"
#include "tessera/nn/summa/boundary.h"
#include "tessera/nn/summa/transformer.h"

#include "models/gpt.h"
#include "models/options.h"

// GPT on a mesh: the modules, names and function of models/gpt.h. A rank brings
// its own token ids and gets its own logits; between them activations are
// [samples of the mesh row, s, hidden of the mesh column].
// Calls are collective over the mesh. Threads: as torch::nn::Module.
// Source: Xu et al. 2021, section 3.2.1.
namespace tessera::models {

/// Embeddings, blocks, final norm. Shapes: ids of the row [q b, s] -> [q b, s,
/// h of my column].
class GptTransformer2DImpl : public nn::two_d::MeshModule {
 public:
  explicit GptTransformer2DImpl(const GptOptions& options);
  at::Tensor forward(const at::Tensor& ids);

  nn::two_d::Embedding2D wte; // public: the output layer shares its block

 private:
  std::int64_t positions_;
  double dropout_;
  nn::two_d::Embedding2D wpe_;
  nn::Sequential h_;
  nn::two_d::LayerNorm2D ln_f_;
};
TESSERA_MODULE(GptTransformer2D);

/// Shapes: ids [b, s] -> logits [b, s, v], both of this rank alone.
/// Throws: ShapeError when heads, positions, hidden size or vocabulary are
/// fewer than the sides of the mesh; it says which sizes work.
class Gpt2DImpl : public nn::two_d::MeshModule {
 public:
  explicit Gpt2DImpl(const GptOptions& options);
  /// Throws: ShapeError as check_mesh_options.
  explicit Gpt2DImpl(const GptImpl& original);
  at::Tensor forward(const at::Tensor& ids);

 private:
  nn::two_d::Blocks vocabulary_;
  nn::two_d::Boundary boundary_;
  GptTransformer2D transformer_;
  nn::two_d::TiedLinear2D lm_head_;
};
TESSERA_MODULE(Gpt2D);

} // namespace tessera::models
