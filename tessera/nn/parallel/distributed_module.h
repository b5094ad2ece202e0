#pragma once

#include <map>
#include <string>

#include <torch/nn/module.h>

#include "tessera/comm/collective.h"
#include "tessera/nn/parallel/context.h"
#include "tessera/nn/parallel/shard.h"

namespace tessera::nn {

/// Describes a parameter of a distributed module to the rest of the library, which
/// gathers and loads it and averages its gradient.
struct DistributedParameter {
  Shard shard;
  /// true: the parameter met the samples of the whole TP_GROUP, so its gradient
  /// is already their sum: it is averaged over the RDP_GROUP only. false: it
  /// met this rank's samples and is averaged over the DP_GROUP as any other.
  bool scaled_batch = true;
};

/// Base of every module that is spread over the TP_GROUP. It computes the
/// function of the plain module: every rank passes the samples it would pass to
/// the plain one, and gets their results.
///
/// A parameter that this rank holds no part of is simply not registered here.
/// Calls are collective over the TP_GROUP. Threads: as torch::nn::Module.
/// Source: Karakus et al. 2021, section 5 and appendices E.4, I.6.
class DistributedModule : public torch::nn::Module {
 public:
  /// Keeps the present settings of tensor_parallel().
  DistributedModule();

  const TensorParallel& parallel() const {
    return parallel_;
  }
  /// The same, with `shapes_only` of the calling thread.
  TensorParallel parallel_now() const;

  /// Names the module in collectives; the model does, by the module's path in it.
  void set_path(const std::string& path) {
    caller_ = comm::Caller::of(path);
  }

  /// The parameters of this module, without those of its children, by name.
  const std::map<std::string, DistributedParameter>& distributed_parameters() const {
    return distributed_;
  }

 protected:
  /// Registers `local` as this rank's part.
  /// Throws: ShapeError when its sizes are not the shard's.
  at::Tensor& register_distributed_parameter(
      const std::string& name,
      at::Tensor local,
      DistributedParameter description);

 private:
  friend class ParameterCreationScope; // creates what is registered
  friend class ForwardScope;

  TensorParallel parallel_;
  std::map<std::string, DistributedParameter> distributed_;
  comm::Caller caller_; // "" outside of a model
};

/// A forward of a distributed module on this thread. Collectives that `Ranks` made in it start,
/// also those of its backward, and products on a mesh carry the module's path, so that ranks that
/// call different modules are an error instead of wrong numbers. Threads: the one that makes it.
class ForwardScope {
 public:
  explicit ForwardScope(const DistributedModule& module);
  ~ForwardScope();
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;

 private:
  const comm::Caller* previous_;
};

} // namespace tessera::nn
