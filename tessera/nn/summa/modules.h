#pragma once

#include "tessera/nn/module/module.h"
#include "tessera/nn/parallel/distributed_module.h"
#include "tessera/nn/summa/blocks.h"
#include "tessera/nn/summa/mesh.h"

// Layers whose inputs and results lie on the mesh: [b of my row, s, h of my
// column]. Their parameters are blocks of those of the plain layers, under the
// plain names; those that live on mesh row 0 are registered there only. Values
// are what comes in by `take_shard`; until then they are not set.
// Calls are collective over the mesh. Threads: as torch::nn::Module.
namespace tessera::nn::two_d {

/// A distributed module on the mesh of tensor_parallel().
class MeshModule : public DistributedModule {
 public:
  /// Throws: ConfigError when tensor_parallel() has no mesh.
  MeshModule();

  const MeshPtr& mesh() const {
    return parallel().mesh;
  }

 protected:
  /// Blocks of a matrix of `rows` x (`groups` times `columns`): this rank's
  /// rows and, of each group, its columns. `transposed`: the full tensor is
  /// stored [columns, rows].
  at::Tensor register_block(
      const std::string& name,
      const Blocks& rows,
      const Blocks& columns,
      int groups = 1,
      bool transposed = false);
  /// A vector along the columns of the mesh that lives on row 0; elsewhere a
  /// stand-in that is registered nowhere.
  at::Tensor register_row0(const std::string& name, const Blocks& columns, int groups = 1);
  /// Call first in `forward`: at the first call the column learns whether row 0
  /// trains its vectors, so that all rows have the same graph. One broadcast.
  void agree_on_row0();

 private:
  std::vector<at::Tensor> stand_ins_; // or row 0's vectors
  bool agreed_ = false;
};

struct Linear2DOptions {
  Linear2DOptions(Blocks input, Blocks output) : in(std::move(input)), out(std::move(output)) {}
  Blocks in;
  Blocks out;
  /// Several matrices of `out` columns side by side (query, key, value).
  TORCH_ARG(int, groups) = 1;
  TORCH_ARG(bool, bias) = true;
  /// true: weight is [out, in] as of torch::nn::Linear; false: [in, out].
  TORCH_ARG(bool, out_in) = true;
};

/// y = x W + b by SUMMA. Shapes: [..., in of my column] -> [..., groups * out
/// of my column]. Cost: `multiply` of kAB, in the backward of kABt and kAtB.
class Linear2DImpl : public MeshModule {
 public:
  explicit Linear2DImpl(const Linear2DOptions& options);
  at::Tensor forward(const at::Tensor& x);

  const Linear2DOptions& options() const {
    return options_;
  }

  at::Tensor weight;
  at::Tensor bias; // a stand-in on rows other than 0

 private:
  Linear2DOptions options_;
};
TESSERA_MODULE(Linear2D);

/// `layer_norm` with parameters "weight" and "bias".
class LayerNorm2DImpl : public MeshModule {
 public:
  LayerNorm2DImpl(const Blocks& hidden, double eps);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight; // stand-ins on rows other than 0
  at::Tensor bias;

 private:
  Blocks hidden_;
  double eps_;
};
TESSERA_MODULE(LayerNorm2D);

/// `embedding` with the parameter "weight" [v, h].
class Embedding2DImpl : public MeshModule {
 public:
  Embedding2DImpl(const Blocks& vocabulary, const Blocks& hidden, std::int64_t padding_row = -1);
  at::Tensor forward(const at::Tensor& ids);

  at::Tensor weight;

 private:
  Blocks vocabulary_;
  std::int64_t padding_row_;
};
TESSERA_MODULE(Embedding2D);

/// Logits x E^T of an output layer that shares the block of an embedding.
/// Shapes: [..., h of my column] -> [..., v of my column].
class TiedLinear2DImpl : public MeshModule {
 public:
  TiedLinear2DImpl(
      const Embedding2DImpl& embedding,
      const Blocks& vocabulary,
      const Blocks& hidden);
  at::Tensor forward(const at::Tensor& x);

 private:
  Blocks vocabulary_;
  std::int64_t hidden_; // whole length
  at::Tensor weight_;
};
TESSERA_MODULE(TiedLinear2D);

} // namespace tessera::nn::two_d
