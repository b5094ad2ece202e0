#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tessera/base/choice.h"

namespace tessera::config {

// The closed sets of a configuration, and their texts.

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

/// What a run is asked to be. Every field is one key of the JSON form, under the same name. What a
/// key means, its range and its aliases are written once, in the table of `keys.cpp`, which
/// parsing, validation, `tessera config --explain` and docs/configuration.md follow.
///
/// An empty optional means "not said": the accessors below give the value that is then in force. A
/// Config may be built in code:
///   Config{.pipeline_parallel_degree = 2, .microbatches = 4, .pipeline = "simple", .ddp = true}
/// and is checked by `validate`, as a parsed one is. A text that is none of a closed set is a
/// ConfigError where it is assigned.
///
/// Source: the library's documentation of `distribution` parameters; Karakus et
/// al. 2021, appendix I.1 and section 4.4.
struct Config {
  // -- Pipeline --
  int pipeline_parallel_degree = 1;
  int microbatches = 1;
  Choice<Pipeline> pipeline = Pipeline::kInterleaved;
  std::optional<std::string> custom_schedule = {};
  std::optional<int> active_microbatches = {};
  bool deterministic_server = false;
  bool static_mode = false;
  int static_mode_steps = 5;
  bool fast_mode = false;
  bool reproducible = false;

  // -- Ranks --
  Choice<PlacementStrategy> placement_strategy = PlacementStrategy::kCluster;
  bool ddp = false;
  std::vector<int> replica_samples = {};
  Choice<DdpBackend> ddp_dist_backend = DdpBackend::kAuto;
  std::optional<int> ddp_port = {};

  // -- Partition --
  Choice<PartitionMode> partition_mode = PartitionMode::kModules;
  bool contiguous = true;
  bool auto_partition = true;
  std::optional<int> default_partition = {};
  std::map<std::string, int> partition = {};
  std::optional<std::string> partition_file = {};
  bool load_partition = false;
  Choice<Optimize> optimize = Optimize::kMemory;
  std::optional<double> memory_weight = {};

  // -- Tracing and creation --
  bool skip_tracing = false;
  bool allow_ranks_without_parameters = false;
  Choice<TraceDevice> trace_device = TraceDevice::kAuto;
  bool trace_execution_times = false;
  bool trace_memory_usage = false;
  bool delayed_parameter_initialization = false;

  // -- Tensor parallelism --
  int tensor_parallel_degree = 1;
  std::map<std::string, int> tensor_parallel_degree_of = {};
  Choice<TensorParallelKind> tensor_parallel_kind = TensorParallelKind::k1d;
  Choice<MeshMemory> mesh_memory = MeshMemory::kAutograd;
  bool prescaled_batch = false;

  // -- Precision --
  bool fp16 = false;
  bool fp16_params = false;
  bool bf16 = false;
  bool fp32_grad_accumulation = false;

  // -- Memory --
  bool checkpoint_attentions = false;
  bool offload_activations = false;
  int activation_loading_horizon = 4;
  std::optional<std::string> offload_directory = {};
  bool shard_optimizer_state = false;

  // -- Sharded data parallelism --
  int sharded_data_parallel_degree = 1;
  std::int64_t sdp_reduce_bucket_size = 500'000'000;
  std::int64_t sdp_param_persistence_threshold = 1'000'000;
  std::int64_t sdp_max_live_parameters = 1'000'000'000;
  bool sdp_hierarchical_allgather = true;
  double sdp_gradient_clipping = 1.0;

  // -- Processes --
  std::optional<int> processes_per_host = {};
  std::string custom_mpi_options = {};

  // -- Tessera's own --
  std::int64_t seed = 0;
  Choice<RandomNumbers> random = RandomNumbers::kByTask;
  double timeout_seconds = 1800.0;
  std::int64_t transport_buffer_bytes = std::int64_t{256} << 20;
  Choice<SameNodeBackend> same_node_backend = SameNodeBackend::kAuto;

  bool operator==(const Config&) const = default;

  /// `active_microbatches`, or pipeline_parallel_degree + 2.
  int effective_active_microbatches() const;
  /// `memory_weight`, or 0.2 for "speed" and 0.8 for "memory".
  double effective_memory_weight() const;
  /// `default_partition`, or 0.
  int effective_default_partition() const;
  /// The modules of `tensor_parallel_degree_of` with a degree of 1.
  std::set<std::string> whole_modules() const;
  /// Those with another degree.
  std::set<std::string> divided_modules() const;
};

/// Reads the JSON form: either the keys alone,
///   {"pipeline_parallel_degree": 2, "mpi": {"processes_per_host": 4}}
/// or the outer form of a job,
///   {"smdistributed": {"modelparallel":
///      {"enabled": true, "parameters": {"pipeline_parallel_degree": 2}}},
///    "mpi": {"enabled": true, "processes_per_host": 4}}.
/// `origin` (a file name) begins every message. Any bytes are safe.
/// Threads: any thread.
/// Throws: ConfigError holding every error of the text, one a line: unknown and
/// repeated keys, wrong types and ranges, broken couplings, and keys whose
/// function this version does not have.
Config parse_config(const std::string& json_text, const std::string& origin);

/// parse_config of a file; "parameters" of the outer form may then also be the
/// name of a JSON file, relative to this one.
/// Throws: ConfigError also when a file cannot be read.
Config load_config(const std::string& path);

/// Checks ranges, couplings and availability, as parsing does.
/// Throws: ConfigError holding every error.
void validate(const Config& config);

/// Checks the degrees against the number of processes: world = pipeline x
/// tensor x reduced data; more than one replica needs `ddp`; `replica_samples` has one number a
/// replica.
/// Throws: ConfigError that says which number to change to what.
void check_world(const Config& config, int world_size);

/// Returns the keys-alone form, every key with its value (those not said are left out);
/// parse_config reads it back to an equal Config.
std::string to_json(const Config& config);

} // namespace tessera::config
