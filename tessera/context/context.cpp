#include "tessera/context/context.h"

#include "tessera/base/error.h"

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

} // namespace

std::shared_ptr<Context> make_context(const Config& config, comm::WorldPtr given) {
  auto context = std::make_shared<Context>();
  context->config = config;
  context->world = std::move(given);
  comm::World& world = *context->world;
  context->layout = std::make_unique<topology::RankLayout>(
      degrees_of(config, world.size()), topology::Placement(config.placement_strategy));
  context->groups = std::make_unique<comm::MeshGroups>(world, *context->layout);
  context->control = world.new_group("dp control", context->group(Group::kDP).ranks());
  if (config.tensor_parallel_degree > 1) {
    context->rdp_control = world.new_group("rdp control", context->group(Group::kRDP).ranks());
  }
  make_transports(*context);
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
