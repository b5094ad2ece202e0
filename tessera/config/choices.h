#pragma once

// The closed sets of a configuration, and their texts.

#include "tessera/base/choice.h"

namespace tessera::config {

enum class Pipeline { kInterleaved, kSimple, kCustom };
constexpr std::array<std::string_view, 3> choice_names(Pipeline /*type*/) {
  return {"interleaved", "simple", "custom"};
}

/// Orders of the axes reduced data (D), pipeline (P) and tensor (T) over ranks; the right-most
/// letter varies fastest.
enum class PlacementStrategy { kCluster, kSpread, kDpt, kDtp, kPdt, kPtd, kTdp, kTpd };
constexpr std::array<std::string_view, 8> choice_names(PlacementStrategy /*type*/) {
  return {"cluster", "spread", "DPT", "DTP", "PDT", "PTD", "TDP", "TPD"};
}

enum class DdpBackend { kAuto, kNccl };
constexpr std::array<std::string_view, 2> choice_names(DdpBackend /*type*/) {
  return {"auto", "nccl"};
}

enum class Optimize { kMemory, kSpeed };
constexpr std::array<std::string_view, 2> choice_names(Optimize /*type*/) {
  return {"memory", "speed"};
}

enum class TraceDevice { kAuto, kCpu, kGpu };
constexpr std::array<std::string_view, 3> choice_names(TraceDevice /*type*/) {
  return {"auto", "cpu", "gpu"};
}

/// What is assigned to pipeline ranks: modules, or operations recorded from a forward.
enum class PartitionMode { kModules, kOperations };
constexpr std::array<std::string_view, 2> choice_names(PartitionMode /*type*/) {
  return {"modules", "operations"};
}

enum class TensorParallelKind { k1d, k2d };
constexpr std::array<std::string_view, 2> choice_names(TensorParallelKind /*type*/) {
  return {"1d", "2d"};
}

enum class MeshMemory { kAutograd, kManaged };
constexpr std::array<std::string_view, 2> choice_names(MeshMemory /*type*/) {
  return {"autograd", "managed"};
}

enum class SameNodeBackend { kAuto, kShm, kMpi };
constexpr std::array<std::string_view, 3> choice_names(SameNodeBackend /*type*/) {
  return {"auto", "shm", "mpi"};
}

enum class RandomNumbers { kByTask, kLayoutIndependent };
constexpr std::array<std::string_view, 2> choice_names(RandomNumbers /*type*/) {
  return {"by_task", "layout_independent"};
}

} // namespace tessera::config
