#pragma once

#include <tuple>

#include "tessera/nn/module/sequential.h"
#include "tessera/nn/summa/boundary.h"
#include "tessera/nn/summa/transformer.h"

#include "models/bert.h"
#include "models/options.h"

// BERT on a mesh: the modules, names and function of models/bert.h. A rank
// brings its own tokens and gets its own scores; between them activations are
// [samples of the mesh row, s, hidden of the mesh column].
// Calls are collective over the mesh. Threads: as torch::nn::Module.
// Source: Xu et al. 2021, section 3.2.1.
namespace tessera::models {

using nn::two_d::Blocks;
using nn::two_d::Embedding2D;
using nn::two_d::LayerNorm2D;
using nn::two_d::Linear2D;
using nn::two_d::MeshModule;

/// Shapes: ids and token types of the row -> x on the mesh.
class BertEmbeddings2DImpl : public MeshModule {
 public:
  explicit BertEmbeddings2DImpl(const BertOptions& options);
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& token_types);

  Embedding2D word_embeddings; // public: the masked head shares its block

 private:
  std::int64_t positions_;
  double dropout_;
  Embedding2D position_embeddings_;
  Embedding2D token_type_embeddings_;
  LayerNorm2D layer_norm_;
};
TESSERA_MODULE(BertEmbeddings2D);

class BertSelfAttention2DImpl : public MeshModule {
 public:
  explicit BertSelfAttention2DImpl(const BertOptions& options);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& bias);

 private:
  std::int64_t head_width_;
  double dropout_;
  Linear2D query_, key_, value_;
};
TESSERA_MODULE(BertSelfAttention2D);

/// norm(residual + dense(x)).
class BertOutput2DImpl : public MeshModule {
 public:
  BertOutput2DImpl(const BertOptions& options, const Blocks& in);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual);

 private:
  double dropout_;
  Linear2D dense_;
  LayerNorm2D layer_norm_;
};
TESSERA_MODULE(BertOutput2D);

class BertAttention2DImpl : public MeshModule {
 public:
  explicit BertAttention2DImpl(const BertOptions& options);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& bias);

 private:
  BertSelfAttention2D self_;
  BertOutput2D output_;
};
TESSERA_MODULE(BertAttention2D);

class BertIntermediate2DImpl : public MeshModule {
 public:
  explicit BertIntermediate2DImpl(const BertOptions& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  Linear2D dense_;
};
TESSERA_MODULE(BertIntermediate2D);

/// (x, bias) -> (y, bias), so that layers form a sequence.
class BertLayer2DImpl : public MeshModule {
 public:
  explicit BertLayer2DImpl(const BertOptions& options);
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, const at::Tensor& bias);

 private:
  BertAttention2D attention_;
  BertIntermediate2D intermediate_;
  BertOutput2D output_;
};
TESSERA_MODULE(BertLayer2D);

class BertEncoder2DImpl : public MeshModule {
 public:
  explicit BertEncoder2DImpl(const BertOptions& options);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& bias);

 private:
  nn::Sequential layer_;
};
TESSERA_MODULE(BertEncoder2D);

class BertPooler2DImpl : public MeshModule {
 public:
  explicit BertPooler2DImpl(const BertOptions& options);
  at::Tensor forward(const at::Tensor& hidden);

 private:
  Linear2D dense_;
};
TESSERA_MODULE(BertPooler2D);

class BertModel2DImpl : public MeshModule {
 public:
  explicit BertModel2DImpl(const BertOptions& options);
  std::tuple<at::Tensor, at::Tensor>
  forward(const at::Tensor& ids, const at::Tensor& mask, const at::Tensor& token_types);

  BertEmbeddings2D embeddings; // public: the masked head shares its block

 private:
  BertEncoder2D encoder_;
  BertPooler2D pooler_;
};
TESSERA_MODULE(BertModel2D);

class BertTransform2DImpl : public MeshModule {
 public:
  explicit BertTransform2DImpl(const BertOptions& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  Linear2D dense_;
  LayerNorm2D layer_norm_;
};
TESSERA_MODULE(BertTransform2D);

/// Scores of masked tokens: [..., v of my column].
class BertPredictions2DImpl : public MeshModule {
 public:
  BertPredictions2DImpl(const BertOptions& options, const nn::two_d::Embedding2DImpl& words);
  at::Tensor forward(const at::Tensor& hidden);

 private:
  at::Tensor bias_;
  BertTransform2D transform_;
  nn::two_d::TiedLinear2D decoder_;
};
TESSERA_MODULE(BertPredictions2D);

class BertHeads2DImpl : public MeshModule {
 public:
  BertHeads2DImpl(const BertOptions& options, const nn::two_d::Embedding2DImpl& words);
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& hidden, const at::Tensor& pooled);

 private:
  BertPredictions2D predictions_;
  Linear2D seq_relationship_;
};
TESSERA_MODULE(BertHeads2D);

/// Shapes: ids [b, s], mask [b, s], token types [b, s] -> logits [b, s, v],
/// next sentence [b, 2], all of this rank alone. Undefined mask: no padding.
class Bert2DImpl : public MeshModule {
 public:
  explicit Bert2DImpl(const BertOptions& options);
  explicit Bert2DImpl(const BertImpl& original) : Bert2DImpl(original.options()) {}
  std::tuple<at::Tensor, at::Tensor>
  forward(const at::Tensor& ids, const at::Tensor& mask = {}, const at::Tensor& token_types = {});

 private:
  Blocks vocabulary_;
  nn::two_d::Boundary boundary_;
  BertModel2D bert_;
  BertHeads2D cls_;
};
TESSERA_MODULE(Bert2D);

} // namespace tessera::models
