#include "tessera/plan/from_config.h"

namespace tessera::plans {

topology::Degrees degrees(const config::Config& config, int world_size) {
  config::check_world(config, world_size);
  return {
      .pipeline = config.pipeline_parallel_degree,
      .tensor = config.tensor_parallel_degree,
      .reduced_data = world_size / config.pipeline_parallel_degree / config.tensor_parallel_degree};
}

Plan plan_from_config(const config::Config& config, int world_size) {
  Plan plan;
  plan.degrees = degrees(config, world_size);
  plan.placement = topology::PlacementStrategy(config.placement_strategy).letters();
  plan.schedule = config.pipeline;
  plan.microbatches = config.microbatches;
  plan.active_microbatches = config.effective_active_microbatches();
  if (config.custom_schedule) {
    const auto order = schedule::parse_order(*config.custom_schedule);
    schedule::validate_order(order, plan.microbatches, plan.active_microbatches);
    plan.custom_schedule = schedule::to_text(order);
  }
  return plan;
}

} // namespace tessera::plans
