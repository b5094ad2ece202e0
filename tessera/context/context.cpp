#include "tessera/context/context.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/context/agreement.h"
#include "tessera/offload/file_host.h"
#include "tessera/offload/offloader.h"

namespace tessera {

namespace {

topology::Degrees degrees_of(const Config& config, int world_size) {
  topology::Degrees degrees;
  degrees.pipeline = config.pipeline_parallel_degree;
  degrees.tensor = config.tensor_parallel_degree;
  degrees.reduced_data = world_size / (degrees.pipeline * degrees.tensor);
  return degrees;
}

void make_transports(Context& context) {
  const Config& config = context.config;
  if (config.pipeline_parallel_degree == 1) {
    return;
  }
  transport::Options buffers;
  buffers.buffer_bytes = config.transport_buffer_bytes;
  context.transport =
      transport::make_transport(*context.world, context.group(Group::kPP).ranks(), buffers);
  context.order_group = config.deterministic_server ? Group::kDP : Group::kTP;
  const auto& ordered = context.group(context.order_group).ranks();
  if (ordered.size() > 1) {
    transport::Options small;
    small.buffer_bytes = 1 << 20; // orders carry no tensors
    context.order_transport = transport::make_transport(*context.world, ordered, small);
  }
}

std::shared_ptr<offload::FileHost> make_host(const Context& context) {
  std::string directory = context.config.offload_directory.value_or("");
  if (directory.empty()) {
    std::error_code error;
    directory = std::filesystem::temp_directory_path(error).string();
    if (error) {
      throw ConfigError(
          str("offload_activations: there is no folder for temporary files: ",
              error.message(),
              "; add \"offload_directory\": a folder on a local disk"));
    }
  }
  auto host = std::make_shared<offload::FileHost>(
      directory,
      str("rank ",
          context.world->rank(),
          " on ",
          context.world->hosts()[static_cast<std::size_t>(context.world->rank())]));
  if (host->in_memory() && context.world->local_rank() == 0) {
    log::warning(
        str("offload_activations: the files of '",
            directory,
            "' are in memory, so moving activations there saves nothing; name a folder on a disk "
            "in \"offload_directory\""));
  }
  return host;
}

// What one rank cannot do is every rank's error.
void make_offloader(Context& context) {
  const Config& config = context.config;
  if (!config.offload_activations) {
    return;
  }
  const bool by_region = config.pipeline_parallel_degree == 1;
  if (!by_region && (config.microbatches == 1 || config.effective_active_microbatches() == 1) &&
      context.world->rank() == 0) {
    log::warning(
        "offload_activations saves little: one microbatch at a time is under way, and its "
        "activations are back before its backward; write more microbatches and "
        "active_microbatches");
  }
  std::optional<std::string> problem;
  try {
    context.offloader = std::make_shared<offload::Offloader>(
        make_host(context), offload::Options{config.activation_loading_horizon, by_region});
  } catch (const ConfigError& error) {
    problem = error.what();
  }
  throw_first_problem<ConfigError>(*context.world, context.group(Group::kWorld), problem);
}

std::shared_ptr<const random::Layout> make_random_layout(const Context& context) {
  const Config& config = context.config;
  if (config.random != config::RandomNumbers::kLayoutIndependent) {
    return nullptr;
  }
  auto layout = std::make_shared<random::Layout>();
  layout->seed = static_cast<std::uint64_t>(config.seed);
  layout->data_rank = context.data_rank();
  layout->microbatches = config.microbatches;
  layout->first_samples = context.shares.begins();
  layout->data_ranks_of_group.clear();
  const auto& sharing = context.group(config.prescaled_batch ? Group::kRDP : Group::kDP).ranks();
  for (const int rank : context.group(Group::kTP).ranks()) {
    const auto place = std::find(sharing.begin(), sharing.end(), rank);
    layout->data_ranks_of_group.push_back(
        config.prescaled_batch ? layout->data_rank : static_cast<int>(place - sharing.begin()));
  }
  return layout;
}

// Ranks that weight gradients differently would go apart without a sign.
void check_replica_samples(Context& context) {
  std::uint64_t hash = context.config.replica_samples.size();
  std::string said;
  for (const int samples : context.config.replica_samples) {
    hash = hash * 1'000'003 + static_cast<std::uint64_t>(samples);
    said += str(said.empty() ? "" : ", ", samples);
  }
  comm::ProcessGroup& everybody = context.group(Group::kWorld);
  const at::Tensor all = at::empty({everybody.size()}, at::kLong);
  everybody.all_gather(all, at::full({1}, static_cast<std::int64_t>(hash), at::kLong));
  const auto* of_rank = all.data_ptr<std::int64_t>();
  for (int rank = 1; rank < everybody.size(); ++rank) {
    if (of_rank[rank] != of_rank[0]) {
      throw ConfigError(
          str("replica_samples differs between ranks 0 and ",
              rank,
              " (on rank ",
              context.world->rank(),
              " it is [",
              said,
              "]); give all ranks the same configuration"));
    }
  }
}

DataShares make_shares(const Context& context) {
  std::vector<int> replicas;
  const bool prescaled = context.config.prescaled_batch;
  for (const int rank : context.group(prescaled ? Group::kRDP : Group::kDP).ranks()) {
    replicas.push_back(context.layout->coordinates(rank).rdp);
  }
  return {context.config, replicas};
}

} // namespace

std::shared_ptr<Context> make_context(const Config& config, comm::WorldPtr given) {
  auto context = std::make_shared<Context>();
  context->config = config;
  context->world = std::move(given);
  comm::World& world = *context->world;
  context->layout = std::make_unique<topology::RankLayout>(
      degrees_of(config, world.size()), topology::PlacementStrategy(config.placement_strategy));
  context->groups = std::make_unique<comm::MeshGroups>(world, *context->layout);
  check_replica_samples(*context);
  context->shares = make_shares(*context);
  context->control = world.new_group("dp control", context->group(Group::kDP).ranks());
  if (config.tensor_parallel_degree > 1) {
    context->rdp_control = world.new_group("rdp control", context->group(Group::kRDP).ranks());
  }
  make_transports(*context);
  make_offloader(*context);
  context->random_layout = make_random_layout(*context);
  context->recorder = std::make_unique<timeline::Recorder>(world.rank(), context->coordinates().pp);
  return context;
}

Context& in_force(const std::weak_ptr<Context>& context) {
  const auto held = context.lock();
  if (held == nullptr) {
    throw ConfigError("tessera::shutdown has been called, and what was made before is used");
  }
  return *held;
}

} // namespace tessera
