#include "tessera/config/keys.h"

#include "tessera/base/error.h"

namespace tessera::config {

namespace {

// Keeps products of degrees and lists of microbatches inside an int.
constexpr double kMost = 1'000'000;
constexpr double kTcpPorts = 65535;
constexpr double kSmallestBuffer = 65536;

constexpr const char* kCommon = "documentation, common parameters";
constexpr const char* kTorch = "documentation, PyTorch parameters";
constexpr const char* kPaperKeys = "paper, appendix I.1";
constexpr const char* kPaperModes = "paper, section 4.4";
constexpr const char* kMpi = "documentation, parameters for mpi";
constexpr const char* kOwn = "Tessera";

std::vector<Key> in_section(const char* section, std::vector<Key> rows) {
  for (Key& row : rows) {
    row.section = section;
    row.choices = choices_of(row);
  }
  return rows;
}

std::vector<Key> pipeline_keys() {
  return in_section(
      "Pipeline",
      {
          {.name = "pipeline_parallel_degree",
           .field = &Config::pipeline_parallel_degree,
           .aliases = {"partitions"},
           .min = 1,
           .max = kMost,
           .source = str(kCommon, "; ", kPaperKeys),
           .description = "Ranks that one model replica is cut into."},
          {.name = "microbatches",
           .field = &Config::microbatches,
           .min = 1,
           .max = kMost,
           .source = kCommon,
           .description = "Slices of a step's batch that travel through the pipeline; 1 means no "
                          "pipelining. The batch must be divisible by it."},
          {.name = "pipeline",
           .field = &Config::pipeline,
           .source = str(kCommon, "; paper, section 4.3"),
           .description = "The schedule. interleaved: a microbatch that is ready for its backward "
                          "goes first, else the next forward. simple: all forwards, then all "
                          "backwards. custom: the order in custom_schedule."},
          {.name = "custom_schedule",
           .field = &Config::custom_schedule,
           .open = true,
           .unsaid = "none",
           .source = str(kOwn, "; paper, section 4.3"),
           .description = "Order in which pp rank 0 starts the phases of the microbatches, such as "
                          "\"0F 1F 0B 1B\"; with pipeline \"custom\"."},
          {.name = "active_microbatches",
           .field = &Config::active_microbatches,
           .min = 1,
           .max = kMost,
           .unsaid = "partitions + 2",
           .source = kTorch,
           .description =
               "Most microbatches in execution at one time. With pipeline interleaved it caps the "
               "memory of activations; with simple all microbatches keep theirs, and it caps how "
               "many compute at one time."},
          {.name = "deterministic_server",
           .field = &Config::deterministic_server,
           .source = kTorch,
           .description =
               "Execution servers handle requests in the same order on all data-parallel ranks."},
          {.name = "static_mode",
           .field = &Config::static_mode,
           .source = kPaperModes,
           .description = "Promises that every step takes the same path: the order of requests of "
                          "the fastest of the first steps is then repeated without asking."},
          {.name = "static_mode_steps",
           .field = &Config::static_mode_steps,
           .min = 1,
           .max = kMost,
           .source = str(kPaperModes, " (T)"),
           .description = "Steps of each kind that static_mode records before it chooses; with "
                          "fast_mode one more goes before them."},
          {.name = "fast_mode",
           .field = &Config::fast_mode,
           .source = kPaperModes,
           .description = "On top of static_mode: a tensor goes from the module that makes it to "
                          "the module that reads it, not through a parent that only hands it on."},
          {.name = "reproducible",
           .field = &Config::reproducible,
           .source = kOwn,
           .description =
               "The same configuration gives the same bits in every run, resumed runs included: "
               "gradients are added, and buffers changed, microbatch by microbatch."},
      });
}

std::vector<Key> rank_keys() {
  return in_section(
      "Ranks",
      {
          {.name = "placement_strategy",
           .field = &Config::placement_strategy,
           .source = str(kCommon, "; ", kPaperKeys),
           .description =
               "Order in which reduced-data (D), pipeline (P) and tensor (T) ranks are laid out; "
               "the right-most letter varies fastest. cluster is DPT, spread is TPD."},
          {.name = "ddp",
           .field = &Config::ddp,
           .source = kTorch,
           .description = "Data parallelism beside model parallelism; needed as soon as there is "
                          "more than one model replica."},
          {.name = "replica_samples",
           .field = &Config::replica_samples,
           .min = 1,
           .max = kMost,
           .unsaid = "as many each",
           .source = kOwn,
           .description =
               "Samples of a step's batch that each replica takes, one number a replica, such as "
               "[24, 8] for a fast and a slow host. Gradients are those of the mean over all "
               "samples, as of one process with the whole batch. A replica divides its own into "
               "the same number of microbatches as the others."},
          {.name = "ddp_dist_backend",
           .field = &Config::ddp_dist_backend,
           .status = Status::kNotYet,
           .source = kTorch,
           .description = "Collectives of the data-parallel groups; auto takes the fastest that "
                          "the ranks share."},
          {.name = "ddp_port",
           .field = &Config::ddp_port,
           .min = 0,
           .max = kTcpPorts,
           .unsaid = "none",
           .source = kTorch,
           .description = "TCP port on which data-parallel groups of the documented library meet. "
                          "Here they meet through MPI, which needs none: the key is taken, and a "
                          "warning says that it changes nothing."},
      });
}

std::vector<Key> partition_keys() {
  return in_section(
      "Partition",
      {
          {.name = "partition_mode",
           .field = &Config::partition_mode,
           .source = str(kOwn, "; documentation, automated splitting of TensorFlow graphs"),
           .description =
               "What is assigned to pp ranks. modules: modules, as the model is composed. "
               "operations: the operators that its forward calls, recorded once for each kind of "
               "call; any module will do, without a change of its class. For scripts: a job of "
               "tessera train refuses it, since its families divide better by modules."},
          {.name = "contiguous",
           .field = &Config::contiguous,
           .source = "documentation, TensorFlow parameters",
           .description =
               "With partition_mode operations: the operations of every rank are a connected part "
               "of the graph, unless the graph is not connected."},
          {.name = "auto_partition",
           .field = &Config::auto_partition,
           .source = kCommon,
           .description = "Assigns modules to pp ranks automatically; partition scopes in which "
                          "modules are made are then not looked at. Those in a forward that is "
                          "divided by operations are, and the rest is divided around them."},
          {.name = "default_partition",
           .field = &Config::default_partition,
           .min = 0,
           .unsaid = "0",
           .source = kCommon,
           .description = "pp rank of modules that neither a partition scope nor partition names; "
                          "with partition_mode operations, of operators that nothing places."},
          {.name = "partition",
           .field = &Config::partition,
           .min = 0,
           .unsaid = "none",
           .source = kOwn,
           .description = "Manual partition: module path to pp rank, such as {\"encoder\": 0, "
                          "\"decoder\": 1}."},
          {.name = "partition_file",
           .field = &Config::partition_file,
           .open = true,
           .unsaid = "none",
           .source = kTorch,
           .description =
               "File that the partition decision is written to, or read from with load_partition."},
          {.name = "load_partition",
           .field = &Config::load_partition,
           .source = kTorch,
           .description =
               "Takes the partition decision from partition_file instead of making one."},
          {.name = "optimize",
           .field = &Config::optimize,
           .source = str(kCommon, "; ", kPaperKeys),
           .description = "Objective of the automatic partition (see memory_weight), and with "
                          "tensor parallelism the distribution of transformer layers: memory "
                          "stores no activation twice, speed communicates less."},
          {.name = "memory_weight",
           .field = &Config::memory_weight,
           .min = 0,
           .max = 1,
           .unsaid = "0.2 for speed, else 0.8",
           .source = str(kTorch, "; paper, equation (1)"),
           .description = "Weight of memory in the cost that the automatic partition balances: 0 "
                          "balances computation only, 1 memory only."},
      });
}

std::vector<Key> tracing_keys() {
  return in_section(
      "Tracing and creation",
      {
          {.name = "skip_tracing",
           .field = &Config::skip_tracing,
           .source = kTorch,
           .description = "Leaves out the tracing pass of the first step, for models too large to "
                          "run in one place."},
          {.name = "allow_ranks_without_parameters",
           .field = &Config::allow_ranks_without_parameters,
           .source = kOwn,
           .description = "A model of which some pipeline rank would own no parameter is trained "
                          "all the same; without it that is an error, and with auto_partition "
                          "false a warning."},
          {.name = "trace_device",
           .field = &Config::trace_device,
           .source = "documentation, DistributedModel",
           .description = "Where the tracing pass runs; auto is the device that trains."},
          {.name = "trace_execution_times",
           .field = &Config::trace_execution_times,
           .source = "documentation, DistributedModel",
           .description = "Measures each module's forward time for the partition; the decision "
                          "then depends on the clock."},
          {.name = "trace_memory_usage",
           .field = &Config::trace_memory_usage,
           .source = "documentation, DistributedModel",
           .description = "Measures what each module keeps for its backward while tracing, instead "
                          "of estimating it from the sizes of its outputs."},
          {.name = "delayed_parameter_initialization",
           .field = &Config::delayed_parameter_initialization,
           .aliases = {"delay_param_initialization"},
           .source = str(kTorch, "; paper, appendix I.5"),
           .description = "Gives parameters no memory until the partition is known; each rank then "
                          "fills only its own. The program acts on it; a script of one's own "
                          "builds its model under tessera::delay_param_initialization."},
      });
}

std::vector<Key> tensor_keys() {
  return in_section(
      "Tensor parallelism",
      {
          {.name = "tensor_parallel_degree",
           .field = &Config::tensor_parallel_degree,
           .min = 1,
           .max = kMost,
           .source = str(kTorch, "; ", kPaperKeys),
           .description = "Ranks over which tensor-parallel modules are distributed."},
          {.name = "tensor_parallel_degree_of",
           .field = &Config::tensor_parallel_degree_of,
           .min = 1,
           .unsaid = "none",
           .source = kOwn,
           .description =
               "Degrees of single modules, such as {\"layers.0\": 1}: with 1 a module that is "
               "marked "
               "stays whole on each rank of a tensor-parallel group, with all inside it, which "
               "takes "
               "more memory and no exchange. Other degrees than 1 and tensor_parallel_degree are "
               "refused."},
          {.name = "tensor_parallel_kind",
           .field = &Config::tensor_parallel_kind,
           .source = "Optimus (Xu et al. 2021)",
           .description =
               "How tensor-parallel modules are distributed: 1d cuts matrices by "
               "columns or rows (see optimize); 2d lays matrices and activations in "
               "blocks on a mesh of q x r ranks, q x r = tensor_parallel_degree, as near "
               "to a square as there is one (2 x 3 for 6)."},
          {.name = "mesh_memory",
           .field = &Config::mesh_memory,
           .source = "Optimus (Xu et al. 2021), section 3.2.3",
           .description = "What the transformer layers of a mesh keep for their backward: autograd "
                          "what torch keeps of every operation; managed each layer's input alone, "
                          "with products in shared buffers and the forward run again in the "
                          "backward. For layers that norm first, without dropout."},
          {.name = "prescaled_batch",
           .field = &Config::prescaled_batch,
           .aliases = {"_prescaled_batch"},
           .source = str(kTorch, "; ", kPaperKeys),
           .description = "The ranks of a tensor-parallel group are fed the same, larger batch "
                          "instead of one each."},
      });
}

std::vector<Key> precision_keys() {
  return in_section(
      "Precision",
      {
          {.name = "fp16",
           .field = &Config::fp16,
           .source = kTorch,
           .description = "Trains in fp16: parameters, buffers and what models are given are f16, "
                          "results f32 again; the optimizer has f32 masters and a loss scale."},
          {.name = "fp16_params",
           .field = &Config::fp16_params,
           .source = str(kTorch, "; ", kPaperKeys),
           .description =
               "Makes the parameters of modules that tensor parallelism divides f16, with "
               "f32 masters; the script gives them f16 tensors. fp16 contains it."},
          {.name = "bf16",
           .field = &Config::bf16,
           .source = str(kTorch, "; without sharded data parallelism: ", kOwn),
           .description = "Trains in bf16: as fp16, without a loss scale."},
          {.name = "fp32_grad_accumulation",
           .field = &Config::fp32_grad_accumulation,
           .aliases = {"_fp32_grad_accumulation"},
           .source = str(kOwn, "; the alias: example scripts"),
           .description =
               "Adds up the 16-bit gradients of parameters in f32, over microbatches, backward "
               "passes and replicas: a parameter's gradient is then an f32 tensor, and reaches its "
               "f32 master unrounded. With fp16, fp16_params or bf16."},
      });
}

std::vector<Key> memory_keys() {
  return in_section(
      "Memory",
      {
          {.name = "checkpoint_attentions",
           .field = &Config::checkpoint_attentions,
           .source = "example scripts; Korthikanti et al. 2022, section 5",
           .description = "Recomputes attentions (scores, softmax, dropout, weighted sum) in the "
                          "backward from queries, keys and values: those of the library's "
                          "transformer layers and of the model families. Same numbers."},
          {.name = "offload_activations",
           .field = &Config::offload_activations,
           .source = str(kTorch, "; ", kPaperKeys),
           .description = "Moves checkpointed activations to the host (of a processor: to a file) "
                          "and brings them back before their microbatch's backward."},
          {.name = "activation_loading_horizon",
           .field = &Config::activation_loading_horizon,
           .min = 1,
           .max = kMost,
           .source = str(kTorch, "; ", kPaperKeys),
           .description = "How early offloaded activations are brought back, in pipeline tasks; "
                          "with one pipeline rank, in parts of the model that are recomputed."},
          {.name = "offload_directory",
           .field = &Config::offload_directory,
           .open = true,
           .unsaid = "the temporary folder",
           .source = kOwn,
           .description = "Folder of each rank's file of offloaded activations: on a local disk "
                          "with room for them. The file has no name, so nothing is left of it."},
          {.name = "shard_optimizer_state",
           .field = &Config::shard_optimizer_state,
           .source = str(kTorch, "; ", kPaperKeys),
           .description = "Keeps the optimizer's state of each parameter, and its f32 master, on "
                          "one of the ranks that hold the same parameters, evenly by elements. "
                          "That rank alone gets the gradient and updates the parameter."},
      });
}

std::vector<Key> sharding_keys() {
  return in_section(
      "Sharded data parallelism",
      {
          {.name = "sharded_data_parallel_degree",
           .field = &Config::sharded_data_parallel_degree,
           .min = 1,
           .max = kMost,
           .source = kTorch,
           .description = "Ranks of a data-parallel group over which parameters, gradients and "
                          "optimizer state are sharded."},
          {.name = "sdp_reduce_bucket_size",
           .field = &Config::sdp_reduce_bucket_size,
           .min = 1,
           .source = kTorch,
           .description =
               "Most elements of a gradient bucket; a parameter of more, or of at least 262144, "
               "travels alone. A rank holds a bucket while the backward fills it, so fewer "
               "elements "
               "need less memory."},
          {.name = "sdp_param_persistence_threshold",
           .field = &Config::sdp_param_persistence_threshold,
           .min = 0,
           .source = kTorch,
           .description = "Parameter tensors of fewer elements stay whole on every rank."},
          {.name = "sdp_max_live_parameters",
           .field = &Config::sdp_max_live_parameters,
           .min = 1,
           .source = kTorch,
           .description =
               "Most parameters, in elements, that are held in gathered form where a shard "
               "group is on several nodes: by a node, or without "
               "sdp_hierarchical_allgather by a rank. On one node there are none: "
               "operators read the parts where they lie."},
          {.name = "sdp_hierarchical_allgather",
           .field = &Config::sdp_hierarchical_allgather,
           .source = kTorch,
           .description =
               "Where a shard group is on several nodes: a part crosses once to each node, whose "
               "ranks share it; false: once to each rank."},
          {.name = "sdp_gradient_clipping",
           .field = &Config::sdp_gradient_clipping,
           .min = 0,
           .open = true,
           .source = kTorch,
           .description = "L2 norm to which optimizer.step() clips gradients whenever they are "
                          "sharded."},
      });
}

std::vector<Key> process_keys() {
  return in_section(
      "Processes",
      {
          {.name = "processes_per_host",
           .field = &Config::processes_per_host,
           .min = 1,
           .max = kMost,
           .unsaid = "shared out",
           .source = kMpi,
           .description = "Processes that tessera launch starts on each host, else shared out over "
                          "the hosts; may stand in an \"mpi\" object."},
          {.name = "custom_mpi_options",
           .field = &Config::custom_mpi_options,
           .source = kMpi,
           .description =
               "More options that tessera launch hands to mpirun; may stand in an \"mpi\" object."},
          {.name = "seed",
           .field = &Config::seed,
           .min = 0,
           .source = kOwn,
           .description = "Seed of every random number that the library draws."},
          {.name = "random",
           .field = &Config::random,
           .source = kOwn,
           .description =
               "What random numbers depend on. by_task: on the layout too. layout_independent: the "
               "same seed gives the same dropout masks and first weights, to the bit, whatever the "
               "degrees, microbatches, partition, modes and recomputation. Models that are made "
               "delayed have other first weights than models that are not, alike in all layouts."},
          {.name = "timeout_seconds",
           .field = &Config::timeout_seconds,
           .min = 0,
           .max = 31'536'000,
           .open = true,
           .source = kOwn,
           .description = "Longest wait for another rank, in seconds, before the run ends with an "
                          "error that names it."},
          {.name = "transport_buffer_bytes",
           .field = &Config::transport_buffer_bytes,
           .min = kSmallestBuffer,
           .source = str(kOwn, "; paper, appendix G"),
           .description = "Persistent buffer of the transport between ranks of one node; what does "
                          "not fit goes through MPI. The environment variable "
                          "SMP_D2D_GPU_BUFFER_SIZE_BYTES goes before it."},
          {.name = "same_node_backend",
           .field = &Config::same_node_backend,
           .source = str(kOwn, "; paper, section 6"),
           .description = "What ranks of one node exchange data through: shared memory, MPI, or "
                          "the faster of the two. SMP_DISABLE_D2D=1 in the environment makes it "
                          "\"mpi\"."},
      });
}

// Names that configurations written for other libraries may hold.
std::vector<Key> refused_keys() {
  const auto refused =
      [](std::string name, std::string source, std::string description, std::string reason) {
        return Key{
            .name = std::move(name),
            .section = "Refused names",
            .field = std::monostate{},
            .status = Status::kRefused,
            .source = std::move(source),
            .description = std::move(description),
            .reason = std::move(reason)};
      };
  const std::string tensorflow = "documentation, TensorFlow parameters";
  const std::string scripts = "example scripts";
  return {
      refused(
          "horovod",
          tensorflow,
          "Data parallelism through Horovod.",
          "it concerns TensorFlow only; write \"ddp\": true for data parallelism"),
      refused(
          "use_times",
          scripts,
          "Module times in the partition cost.",
          "it was never documented; write \"trace_execution_times\""),
      refused(
          "_match_weights",
          scripts,
          "Equal weights with and without tensor parallelism.",
          "it was never documented; load the same weights instead"),
  };
}

std::vector<Key> all_keys_built() {
  std::vector<Key> all;
  for (auto part :
       {pipeline_keys,
        rank_keys,
        partition_keys,
        tracing_keys,
        tensor_keys,
        precision_keys,
        memory_keys,
        sharding_keys,
        process_keys,
        refused_keys}) {
    for (Key& key : part()) {
      all.push_back(std::move(key));
    }
  }
  return all;
}

} // namespace

const std::vector<Key>& keys() {
  static const std::vector<Key> kTable = all_keys_built();
  return kTable;
}

} // namespace tessera::config
