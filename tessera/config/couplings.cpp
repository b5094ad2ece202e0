#include "tessera/config/couplings.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::config {

namespace {

using C = const Config&;

std::vector<Coupling> pipeline_rules() {
  return {
      {"custom needs custom_schedule",
       "pipeline \"custom\" needs custom_schedule.",
       {"pipeline", "custom_schedule"},
       [](C c) { return c.pipeline == Pipeline::kCustom && !c.custom_schedule; },
       "pipeline is \"custom\" but no order is given; add \"custom_schedule\": \"0F 0B\" (every "
       "microbatch)"},
      {"custom_schedule needs custom",
       "custom_schedule needs pipeline \"custom\".",
       {"pipeline", "custom_schedule"},
       [](C c) { return c.custom_schedule && c.pipeline != Pipeline::kCustom; },
       [](C c) {
         return str(
             "custom_schedule is given but pipeline is \"",
             c.pipeline,
             "\"; write \"pipeline\": \"custom\" or leave custom_schedule out");
       }},
      {"fast_mode needs static_mode",
       "fast_mode needs static_mode.",
       {"fast_mode", "static_mode"},
       [](C c) { return c.fast_mode && !c.static_mode; },
       "fast_mode works on top of static_mode; add \"static_mode\": true"},
      {"static_mode_steps needs static_mode",
       "static_mode_steps needs static_mode.",
       {"static_mode_steps", "static_mode"},
       [](C c) { return c.static_mode_steps != Config{}.static_mode_steps && !c.static_mode; },
       "static_mode_steps has no effect without \"static_mode\": true"},
  };
}

// Ranks of a replica that bring samples of their own.
int ranks_with_samples(C c) {
  return c.prescaled_batch ? 1 : c.tensor_parallel_degree;
}

// The first replica whose samples its ranks and microbatches do not divide, or the end.
auto undivided_replica(C c) {
  const std::int64_t parts = std::int64_t{ranks_with_samples(c)} * c.microbatches;
  return std::find_if(c.replica_samples.begin(), c.replica_samples.end(), [&](int samples) {
    return samples % parts != 0;
  });
}

std::vector<Coupling> data_parallel_rules() {
  return {
      {"replica_samples needs ddp",
       "replica_samples needs ddp.",
       {"replica_samples", "ddp"},
       [](C c) { return !c.replica_samples.empty() && !c.ddp; },
       "replica_samples says what each of several replicas takes, but ddp is false; add \"ddp\": "
       "true"},
      {"replica_samples by microbatches",
       "Each number of replica_samples is a multiple of microbatches, and without prescaled_batch "
       "of microbatches x tensor_parallel_degree.",
       {"replica_samples", "microbatches", "tensor_parallel_degree", "prescaled_batch"},
       [](C c) { return undivided_replica(c) != c.replica_samples.end(); },
       [](C c) {
         const auto found = undivided_replica(c);
         return str(
             "replica_samples gives replica ",
             found - c.replica_samples.begin(),
             " ",
             *found,
             " samples, which ",
             c.microbatches,
             " microbatches",
             ranks_with_samples(c) > 1
                 ? str(" on ", ranks_with_samples(c), " tensor-parallel ranks with their own each")
                 : "",
             " do not divide; write a multiple of ",
             std::int64_t{ranks_with_samples(c)} * c.microbatches);
       }},
      {"ddp_dist_backend needs ddp",
       "ddp_dist_backend other than \"auto\" needs ddp.",
       {"ddp_dist_backend", "ddp"},
       [](C c) { return c.ddp_dist_backend != DdpBackend::kAuto && !c.ddp; },
       [](C c) {
         return str(
             "ddp_dist_backend is \"",
             c.ddp_dist_backend,
             "\" but ddp is false; add \"ddp\": true");
       }},
      {"ddp_port needs ddp",
       "ddp_port needs ddp.",
       {"ddp_port", "ddp"},
       [](C c) { return c.ddp_port && !c.ddp; },
       "ddp_port is given but ddp is false; add \"ddp\": true"},
      {"managed needs a mesh",
       "mesh_memory \"managed\" needs tensor_parallel_kind \"2d\" and a tensor_parallel_degree "
       "greater than 1.",
       {"mesh_memory", "tensor_parallel_kind", "tensor_parallel_degree"},
       [](C c) {
         return c.mesh_memory == MeshMemory::kManaged &&
                (c.tensor_parallel_kind != TensorParallelKind::k2d ||
                 c.tensor_parallel_degree == 1);
       },
       [](C c) {
         return str(
             "mesh_memory is \"managed\" but tensor_parallel_kind is \"",
             c.tensor_parallel_kind,
             "\" and tensor_parallel_degree ",
             c.tensor_parallel_degree,
             "; write \"tensor_parallel_kind\": \"2d\" and a degree of at least 2");
       }},
      {"tensor_parallel_degree needs ddp",
       "tensor_parallel_degree greater than 1 needs ddp: tensor parallelism runs over "
       "data-parallel ranks.",
       {"tensor_parallel_degree", "ddp"},
       [](C c) { return c.tensor_parallel_degree > 1 && !c.ddp; },
       [](C c) {
         return str(
             "tensor_parallel_degree is ",
             c.tensor_parallel_degree,
             " but ddp is false; add \"ddp\": true");
       }},
  };
}

std::string outside(C c, const std::string& what, int rank) {
  const int degree = c.pipeline_parallel_degree;
  return str(
      what,
      " is ",
      rank,
      " but pipeline_parallel_degree is ",
      degree,
      degree == 1 ? "; write 0" : str("; write 0 to ", degree - 1));
}

// The first entry of the manual partition that is no pp rank, or the end.
auto outside_entry(C c) {
  return std::find_if(c.partition.begin(), c.partition.end(), [&](const auto& entry) {
    return entry.second >= c.pipeline_parallel_degree;
  });
}

// The first module with a degree that no module can have, or the end.
auto other_degree(C c) {
  return std::find_if(
      c.tensor_parallel_degree_of.begin(),
      c.tensor_parallel_degree_of.end(),
      [&](const auto& entry) {
        return entry.second != 1 && entry.second != c.tensor_parallel_degree;
      });
}

std::vector<Coupling> tensor_rules() {
  return {
      {"degrees of modules",
       "Every value of tensor_parallel_degree_of must be 1 or tensor_parallel_degree.",
       {"tensor_parallel_degree", "tensor_parallel_degree_of"},
       [](C c) { return other_degree(c) != c.tensor_parallel_degree_of.end(); },
       [](C c) {
         const auto entry = other_degree(c);
         return str(
             "tensor_parallel_degree_of \"",
             entry->first,
             "\" is ",
             entry->second,
             ", but a module is divided over all ranks of its group or whole on each of them; "
             "write ",
             c.tensor_parallel_degree == 1 ? "1" : str("1 or ", c.tensor_parallel_degree));
       }},
  };
}

std::vector<Coupling> partition_rules() {
  return {
      {"manual needs default_partition",
       "auto_partition false needs default_partition or partition.",
       {"auto_partition", "default_partition", "partition"},
       [](C c) { return !c.auto_partition && !c.default_partition && c.partition.empty(); },
       "auto_partition is false; add \"default_partition\": 0, the pp rank of modules that are "
       "placed nowhere else, or a \"partition\" object"},
      {"default_partition below degree",
       "default_partition must be less than pipeline_parallel_degree.",
       {"default_partition", "pipeline_parallel_degree"},
       [](C c) { return c.effective_default_partition() >= c.pipeline_parallel_degree; },
       [](C c) { return outside(c, "default_partition", c.effective_default_partition()); }},
      {"partition below degree",
       "Every value of partition must be less than pipeline_parallel_degree.",
       {"partition", "pipeline_parallel_degree"},
       [](C c) { return outside_entry(c) != c.partition.end(); },
       [](C c) {
         const auto entry = outside_entry(c);
         return outside(c, "partition of \"" + entry->first + "\"", entry->second);
       }},
      {"partition needs manual",
       "partition needs auto_partition false.",
       {"partition", "auto_partition"},
       [](C c) { return !c.partition.empty() && c.auto_partition; },
       "partition is given but auto_partition is true; add \"auto_partition\": false"},
      {"load_partition needs partition_file",
       "load_partition needs partition_file.",
       {"load_partition", "partition_file"},
       [](C c) { return c.load_partition && !c.partition_file; },
       "load_partition is true; add \"partition_file\": the file to read"},
      {"load_partition excludes manual",
       "load_partition and auto_partition false exclude each other.",
       {"load_partition", "auto_partition"},
       [](C c) { return c.load_partition && !c.auto_partition; },
       "load_partition takes the partition from a file and auto_partition false takes it from the "
       "script; keep one"},
      {"measuring needs tracing",
       "trace_execution_times and trace_memory_usage exclude skip_tracing.",
       {"skip_tracing", "trace_execution_times", "trace_memory_usage"},
       [](C c) { return c.skip_tracing && (c.trace_execution_times || c.trace_memory_usage); },
       [](C c) {
         return str(
             "skip_tracing leaves nothing to measure, but ",
             c.trace_execution_times ? "trace_execution_times" : "trace_memory_usage",
             " is true; set one of them to false");
       }},
      {"measuring needs parameters",
       "trace_execution_times and trace_memory_usage exclude delayed_parameter_initialization.",
       {"trace_execution_times", "trace_memory_usage", "delayed_parameter_initialization"},
       [](C c) {
         return c.delayed_parameter_initialization &&
                (c.trace_execution_times || c.trace_memory_usage);
       },
       [](C c) {
         return str(
             c.trace_execution_times ? "trace_execution_times" : "trace_memory_usage",
             " runs the whole model, whose parameters delayed_parameter_initialization does not "
             "make; set one of them to false");
       }},
      {"tracing happens on the cpu",
       "trace_device \"gpu\" is refused: the tracing pass runs on the processor.",
       {"trace_device"},
       [](C c) { return c.trace_device == TraceDevice::kGpu; },
       "trace_device is \"gpu\", but the tracing pass runs on the processor; write \"auto\" or "
       "\"cpu\""},
  };
}

// The first key that says what recorded operations cannot do, as it would be written, or "".
std::string excluded_by_operations(C c) {
  const std::pair<const char*, bool> keys[] = {
      {"skip_tracing", c.skip_tracing},
      {"load_partition", c.load_partition},
      {"trace_memory_usage", c.trace_memory_usage},
      {"delayed_parameter_initialization", c.delayed_parameter_initialization},
      {"static_mode", c.static_mode},
      {"\"tensor_parallel_degree\" greater than 1", c.tensor_parallel_degree > 1},
      {"fp16", c.fp16 || c.fp16_params},
      {"bf16", c.bf16},
      {"checkpoint_attentions", c.checkpoint_attentions},
      {"offload_activations", c.offload_activations}};
  for (const auto& [name, set] : keys) {
    if (set) {
      return name;
    }
  }
  return "";
}

std::vector<Coupling> operation_rules() {
  return {
      {"operations exclude",
       "partition_mode \"operations\" excludes skip_tracing, load_partition, trace_memory_usage, "
       "delayed_parameter_initialization, static_mode, tensor_parallel_degree greater than 1, "
       "fp16, "
       "fp16_params, bf16, checkpoint_attentions and offload_activations.",
       {"partition_mode",
        "skip_tracing",
        "load_partition",
        "trace_memory_usage",
        "delayed_parameter_initialization",
        "static_mode",
        "tensor_parallel_degree",
        "fp16",
        "fp16_params",
        "bf16",
        "checkpoint_attentions",
        "offload_activations"},
       [](C c) {
         return c.partition_mode == PartitionMode::kOperations &&
                !excluded_by_operations(c).empty();
       },
       [](C c) {
         return "partition_mode is \"operations\", which excludes " + excluded_by_operations(c) +
                "; leave one of them out";
       }},
      {"contiguous needs operations",
       "contiguous false needs partition_mode \"operations\".",
       {"contiguous", "partition_mode"},
       [](C c) { return !c.contiguous && c.partition_mode != PartitionMode::kOperations; },
       "contiguous is false but modules are divided as a tree; add \"partition_mode\": "
       "\"operations\""},
  };
}

std::vector<Coupling> precision_and_memory_rules() {
  return {
      {"fp16 excludes bf16",
       "fp16 (and fp16_params) and bf16 exclude each other.",
       {"fp16", "fp16_params", "bf16"},
       [](C c) { return c.bf16 && (c.fp16 || c.fp16_params); },
       [](C c) {
         return str(c.fp16 ? "fp16" : "fp16_params", " and bf16 are both true; keep one");
       }},
      {"f32 sums need 16 bits",
       "fp32_grad_accumulation needs fp16, fp16_params or bf16.",
       {"fp32_grad_accumulation", "fp16", "fp16_params", "bf16"},
       [](C c) { return c.fp32_grad_accumulation && !c.fp16 && !c.fp16_params && !c.bf16; },
       "fp32_grad_accumulation is about 16-bit parameters, but fp16, fp16_params and bf16 are "
       "false; add \"fp16\": true or \"bf16\": true"},
      {"horizon needs offloading",
       "activation_loading_horizon other than 4 needs offload_activations.",
       {"activation_loading_horizon", "offload_activations"},
       [](C c) {
         return c.activation_loading_horizon != Config{}.activation_loading_horizon &&
                !c.offload_activations;
       },
       "activation_loading_horizon has no effect without \"offload_activations\": true"},
      {"managed meshes recompute attentions",
       "mesh_memory \"managed\" excludes checkpoint_attentions, which it contains.",
       {"mesh_memory", "checkpoint_attentions"},
       [](C c) { return c.checkpoint_attentions && c.mesh_memory == MeshMemory::kManaged; },
       "mesh_memory \"managed\" already recomputes attentions with their layers; leave "
       "checkpoint_attentions out"},
      {"shard_optimizer_state needs ddp",
       "shard_optimizer_state needs ddp.",
       {"shard_optimizer_state", "ddp"},
       [](C c) { return c.shard_optimizer_state && !c.ddp; },
       "shard_optimizer_state divides state over data-parallel ranks, but ddp is false; add "
       "\"ddp\": true"},
      {"folder needs offloading",
       "offload_directory needs offload_activations.",
       {"offload_directory", "offload_activations"},
       [](C c) { return c.offload_directory && !c.offload_activations; },
       "offload_directory has no effect without \"offload_activations\": true"},
  };
}

// The first sdp_* key that differs from its default, or "".
std::string sharding_key_set(C c) {
  const Config unset;
  const std::pair<const char*, bool> keys[] = {
      {"sdp_reduce_bucket_size", c.sdp_reduce_bucket_size != unset.sdp_reduce_bucket_size},
      {"sdp_param_persistence_threshold",
       c.sdp_param_persistence_threshold != unset.sdp_param_persistence_threshold},
      {"sdp_max_live_parameters", c.sdp_max_live_parameters != unset.sdp_max_live_parameters},
      {"sdp_hierarchical_allgather",
       c.sdp_hierarchical_allgather != unset.sdp_hierarchical_allgather},
      {"sdp_gradient_clipping", c.sdp_gradient_clipping != unset.sdp_gradient_clipping}};
  for (const auto& [name, set] : keys) {
    if (set) {
      return name;
    }
  }
  return "";
}

bool sharded(C c) {
  return c.sharded_data_parallel_degree > 1;
}

std::vector<Coupling> sharding_rules() {
  return {
      {"sdp keys need sharding",
       "The sdp_ keys need sharded_data_parallel_degree greater than 1.",
       {"sharded_data_parallel_degree",
        "sdp_reduce_bucket_size",
        "sdp_param_persistence_threshold",
        "sdp_max_live_parameters",
        "sdp_hierarchical_allgather",
        "sdp_gradient_clipping"},
       [](C c) { return c.sharded_data_parallel_degree == 1 && !sharding_key_set(c).empty(); },
       [](C c) {
         return sharding_key_set(c) +
                " has no effect without \"sharded_data_parallel_degree\" greater than 1";
       }},
      {"sharding needs ddp",
       "sharded_data_parallel_degree greater than 1 needs ddp.",
       {"sharded_data_parallel_degree", "ddp"},
       [](C c) { return sharded(c) && !c.ddp; },
       [](C c) {
         return str(
             "sharded_data_parallel_degree is ",
             c.sharded_data_parallel_degree,
             " but ddp is false; add \"ddp\": true");
       }},
      {"sharding excludes shard_optimizer_state",
       "sharded_data_parallel_degree greater than 1 excludes shard_optimizer_state, which it "
       "contains.",
       {"sharded_data_parallel_degree", "shard_optimizer_state"},
       [](C c) { return sharded(c) && c.shard_optimizer_state; },
       "sharded data parallelism already shards optimizer state; leave shard_optimizer_state out"},
      {"sharding with tensor needs prescaled",
       "sharded_data_parallel_degree greater than 1 with tensor_parallel_degree greater than 1 "
       "needs prescaled_batch.",
       {"sharded_data_parallel_degree", "tensor_parallel_degree", "prescaled_batch"},
       [](C c) { return sharded(c) && c.tensor_parallel_degree > 1 && !c.prescaled_batch; },
       "sharded data parallelism with tensor parallelism needs \"prescaled_batch\": true"},
  };
}

} // namespace

const std::vector<Coupling>& couplings() {
  static const std::vector<Coupling> kTable = [] {
    std::vector<Coupling> all;
    for (auto part :
         {pipeline_rules,
          data_parallel_rules,
          tensor_rules,
          partition_rules,
          operation_rules,
          precision_and_memory_rules,
          sharding_rules}) {
      for (Coupling& coupling : part()) {
        all.push_back(std::move(coupling));
      }
    }
    return all;
  }();
  return kTable;
}

} // namespace tessera::config
