#include "tessera/autotune/plan_model.h"

#include "tessera/cost/constants.h"
#include "tessera/cost/gradient_overlap.h"
#include "tessera/planner/candidate_text.h"
#include "tessera/planner/planned_config.h"
#include "tessera/planner/to_config.h"

namespace tessera {

config::Config Planned::config(const config::Config& base) const {
  return planner::with_plan(base, planner::to_config(best(), model));
}

std::string Planned::explanation() const {
  return planner::summary(found, model) + "the first of them:\n" +
         planner::explain(best(), model, cluster);
}

namespace autotune {

void search_what_runs(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    planner::SearchOptions& search) {
  // For up to so many devices the simulator executes these strategies in well under a second.
  constexpr int kSimulated = 24;
  constexpr int kMostDevices = 256;
  search.runnable_only = true;
  search.save_memory = true;
  search.constants = cost::runtime_constants(cluster, model.precision);
  search.overlap_gradients = search.overlap_gradients || cost::reduces_beside_backwards(cluster);
  search.simulate = cluster.device_count() <= kMostDevices ? kSimulated : search.simulate;
}

cost::DescribedModel describe_model(
    const ModelSource& source,
    int global_batch_size,
    cost::Precision precision,
    const cost::Cluster& cluster) {
  const planner::ModelTrace traced = trace_model(
      source,
      {.precision = precision,
       .global_batch_size = global_batch_size,
       .tensor_degrees = tensor_degrees_of(cluster)});
  return planner::describe_traced(traced, cluster);
}

Planned plan_model(
    const ModelSource& source,
    int global_batch_size,
    const cost::Cluster& cluster,
    const PlanOptions& options) {
  Planned planned;
  planned.cluster = cluster;
  planned.model = describe_model(source, global_batch_size, options.precision, cluster);
  planned.model.activation_checkpointing = options.activation_checkpointing;
  planned.model.optimizer_state_bytes = options.optimizer_state_bytes;
  planner::SearchOptions search = options.search;
  search_what_runs(planned.model, cluster, search);
  planned.found = planner::search(planned.model, cluster, search);
  return planned;
}

} // namespace autotune
} // namespace tessera
