#include "tessera/autotune/plan.h"

#include <ATen/ATen.h>

#include "tessera/autotune/probe/probe.h"
#include "tessera/base/error.h"
#include "tessera/planner/description.h"

namespace tessera {

namespace autotune {

std::int64_t samples_of(const std::vector<at::Tensor>& batch) {
  std::int64_t samples = 0;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const std::int64_t rows = batch[i].defined() && batch[i].dim() > 0 ? batch[i].size(0) : 0;
    if (rows < 1 || (i > 0 && rows != samples)) {
      throw ConfigError(
          str("plan: tensor ",
              i,
              " of the batch has ",
              rows,
              " rows, expected ",
              i > 0 ? str(samples, " as the first has") : "1 or more",
              "; give tensors whose rows are the samples of one step"));
    }
    samples = rows;
  }
  if (samples == 0) {
    throw ConfigError("plan: the batch has no tensor; give those that a step is called with");
  }
  return samples;
}

at::Tensor rows_of(const at::Tensor& tensor, std::int64_t samples) {
  if (samples <= tensor.size(0)) {
    return tensor.narrow(0, 0, samples);
  }
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  sizes[0] = samples;
  return tensor.narrow(0, 0, 1).expand(sizes);
}

} // namespace autotune

Cluster load_cluster(const std::string& path) {
  return planner::load_cluster(path);
}

Cluster probe_cluster(bool thorough) {
  autotune::Effort effort;
  if (!thorough) {
    effort.quick = true;
    effort.seconds_a_point = 0.01;
  }
  return autotune::measure_cluster_now(effort);
}

} // namespace tessera
