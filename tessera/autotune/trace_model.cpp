#include "tessera/autotune/trace_model.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/module.h>

#include "tessera/autotune/lone_group.h"
#include "tessera/deferred_init/delayed_init.h"
#include "tessera/graph/operator_work.h"
#include "tessera/nn/replace/replace.h"
#include "tessera/nn/summa/mesh.h"
#include "tessera/topology/mesh_layout.h"
#include "tessera/tracer/record_work.h"
#include "tessera/tracer/trace.h"

namespace tessera::autotune {

namespace {

nn::Distribution runtime_distribution(cost::Distribution distribution) {
  switch (distribution) {
    case cost::Distribution::kMemory:
      return nn::Distribution::kMemory;
    case cost::Distribution::kMesh:
      return nn::Distribution::kTwoD;
    case cost::Distribution::kSpeed:
    case cost::Distribution::kAsMeasured:
      break;
  }
  return nn::Distribution::kSpeed;
}

// Returns the tensor parallelism of the group's first rank, for tracing without the other ranks.
nn::TensorParallel outline(LoneGroup& group, const cost::TensorWay& way) {
  nn::TensorParallel parallel;
  parallel.group = &group;
  parallel.prescaled_batch = way.same_samples;
  parallel.shapes_only = true;
  parallel.distribution = runtime_distribution(way.distribution);
  if (way.distribution == cost::Distribution::kMesh) {
    const topology::MeshShape shape = topology::mesh_shape(way.degree);
    parallel.mesh = nn::summa::Mesh::outline(
        group, std::make_unique<LoneGroup>(shape.columns), std::make_unique<LoneGroup>(shape.rows));
  }
  return parallel;
}

BuiltModel built(const ModelSource& source, cost::Precision precision) {
  BuiltModel model = source.build();
  if (precision == cost::Precision::kHalf) {
    model.root->to(torch::kBFloat16);
  }
  return model;
}

// Returns whether both forwards ran the same operators. A product on a mesh is another operator
// where its weights stay than where they travel, which is cut into as many products as panels.
bool same_operators(const graph::ForwardWork& a, const graph::ForwardWork& b) {
  return std::equal(
      a.begin(),
      a.end(),
      b.begin(),
      b.end(),
      [](const graph::OperatorWork& one, const graph::OperatorWork& other) {
        return one.name == other.name && (one.name != "product" || one.count == other.count);
      });
}

// Records the work of so many samples, and of twice as many. A forward of one sample may run other
// operators than any larger batch, since a dimension of 1 is reshaped without a copy, and weights
// of a mesh stay for few rows; its work then follows from two larger ones, to which a plan's
// microbatches belong.
std::pair<graph::ForwardWork, graph::ForwardWork>
record_two(torch::nn::Module& root, const BuiltModel& model, std::int64_t samples) {
  graph::ForwardWork once = tracer::record_work(root, model.forward(samples));
  graph::ForwardWork twice = tracer::record_work(root, model.forward(2 * samples));
  if (!same_operators(once, twice)) {
    const graph::ForwardWork thrice = tracer::record_work(root, model.forward(3 * samples));
    if (same_operators(twice, thrice)) {
      once = graph::work_of_batch(twice, thrice, 0);
    }
  }
  return {std::move(once), std::move(twice)};
}

// Returns nullopt when no module can be divided in this way.
std::optional<planner::DivisionTrace>
trace_division(const ModelSource& source, const TraceRequest& request, const cost::TensorWay& way) {
  LoneGroup group(way.degree);
  const tracer::DelayedInitScope delayed;
  const nn::TensorParallelScope scope(outline(group, way));
  const BuiltModel model = built(source, request.precision);
  const nn::Replacements replacements = nn::replace_marked(
      model.root, request.whole_modules, [](const torch::nn::Module&, const nn::Make& make) {
        return make();
      });
  if (replacements.replaced.empty()) {
    return std::nullopt;
  }
  nn::keep_parts_together(*replacements.root);
  torch::nn::Module& root = *replacements.root;
  planner::DivisionTrace division;
  division.way = way;
  // A mesh divides a common batch among its rows, so each row needs one sample at least.
  const bool mesh = way.distribution == cost::Distribution::kMesh;
  const int least = way.same_samples && mesh ? topology::mesh_shape(way.degree).rows : 1;
  division.samples = way.same_samples ? least : way.degree;
  division.graph = tracer::trace(root, model.forward(least), {.name = source.name});
  std::tie(division.least, division.twice) = record_two(root, model, least);
  for (const auto& [name, local] : nn::local_tensors(root)) {
    if (local.parameter && !local.scaled_batch) {
      division.whole.insert(name);
    }
  }
  return division;
}

// Restores the state of the default generator, because building a model draws random numbers.
class RandomState {
 public:
  RandomState() : generator_(at::detail::getDefaultCPUGenerator()) {
    const std::lock_guard lock(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~RandomState() {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state_);
  }
  RandomState(const RandomState&) = delete;
  RandomState& operator=(const RandomState&) = delete;

 private:
  at::Generator generator_;
  at::Tensor state_;
};

} // namespace

std::vector<int> tensor_degrees_of(const cost::Cluster& cluster) {
  constexpr int kFew = 8;
  int largest = 1;
  for (const cost::Node& node : cluster.nodes) {
    largest = std::max(largest, node.count);
  }
  const int devices = cluster.device_count();
  if (devices <= kFew) {
    largest = devices;
  }
  std::vector<int> degrees;
  for (int degree = 2; degree <= largest; ++degree) {
    if (devices % degree == 0) {
      degrees.push_back(degree);
    }
  }
  return degrees;
}

planner::ModelTrace trace_model(const ModelSource& source, const TraceRequest& request) {
  using cost::Distribution;
  const RandomState random;
  planner::ModelTrace traced;
  traced.precision = request.precision;
  traced.global_batch_size = request.global_batch_size;
  {
    const tracer::DelayedInitScope delayed;
    const BuiltModel model = built(source, request.precision);
    traced.graph = tracer::trace(*model.root, model.forward(1), {.name = source.name});
    std::tie(traced.one_sample, traced.two_samples) = record_two(*model.root, model, 1);
  }
  for (const int degree : request.tensor_degrees) {
    for (const auto distribution :
         {Distribution::kSpeed, Distribution::kMemory, Distribution::kMesh}) {
      for (const bool same_samples : {false, true}) {
        const cost::TensorWay way = {degree, distribution, same_samples};
        if (auto division = trace_division(source, request, way)) {
          traced.divisions.push_back(std::move(*division));
        }
      }
    }
  }
  return traced;
}

} // namespace tessera::autotune
