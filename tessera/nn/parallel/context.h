#pragma once

#include <memory>

namespace tessera::comm {
class ProcessGroup;
struct Caller;
} // namespace tessera::comm

namespace tessera::nn::summa {
class Mesh;
}

namespace tessera::nn {

/// How distributed modules split their work over the TP_GROUP.
enum class Distribution {
  /// Megatron's: activations between blocks are whole on every rank
  /// (Karakus et al. 2021, appendix F.1).
  kSpeed,
  /// Every activation is sharded over its channels (appendix F.2).
  kMemory,
  /// SUMMA on a q x r mesh (Xu et al. 2021, who have squares).
  kTwoD
};

/// The properties of the ranks that a distributed module is spread over.
struct TensorParallel {
  /// TP_GROUP. nullptr: no tensor parallelism, one rank.
  comm::ProcessGroup* group = nullptr;
  Distribution distribution = Distribution::kSpeed;
  /// true: all ranks of the group bring the same samples; false: each its own.
  bool prescaled_batch = false;
  /// true while one rank traces alone: collectives only shape their results.
  bool shapes_only = false;
  /// Over `group`; kTwoD only.
  std::shared_ptr<summa::Mesh> mesh;

  int size() const;
  int rank() const;
};

/// Returns the settings of this thread: those of the innermost TensorParallelScope,
/// else those of the process. Modules keep the settings of their construction.
const TensorParallel& tensor_parallel();

/// Returns the module whose forward runs on this thread (ForwardScope), the innermost; "" outside.
const comm::Caller& present_module();
/// Sets it, nullptr for none, and returns the one before. `caller` outlives its use.
const comm::Caller* set_present_module(const comm::Caller* caller);

/// Sets them for the whole process. Threads: before other threads make or call modules.
void set_tensor_parallel(const TensorParallel& context);

/// Sets them for this thread and a scope; for ranks that are threads, and for tracing.
class TensorParallelScope {
 public:
  explicit TensorParallelScope(const TensorParallel& context);
  ~TensorParallelScope();
  TensorParallelScope(const TensorParallelScope&) = delete;
  TensorParallelScope& operator=(const TensorParallelScope&) = delete;

 private:
  TensorParallel context_;
  const TensorParallel* previous_;
};

} // namespace tessera::nn
