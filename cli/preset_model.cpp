#include "cli/preset_model.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include <torch/torch.h>

#include "tessera/base/error.h"
#include "tessera/deferred_init/delayed_init.h"
#include "tessera/nn/replace/replace.h"
#include "tessera/nn/summa/mesh.h"
#include "tessera/tracer/record_work.h"
#include "tessera/tracer/trace.h"

#include "cli/lone_group.h"
#include "models/registry.h"

namespace tessera::cli {

namespace {

// Shapes and types of each family's targets (models/registry.h).
models::Tensors targets_of(const models::Preset& preset, const models::Tensors& inputs) {
  if (preset.family == "t5") {
    return {inputs.at(1)};
  }
  if (preset.family == "ncf") {
    return {at::zeros_like(inputs.at(0), at::dtype(at::kFloat))};
  }
  return {inputs.at(0)};
}

std::function<void()> forward_of(
    const models::AnyModel& model,
    const models::Preset& preset,
    std::int64_t batch,
    std::int64_t sequence) {
  return [&model, &preset, batch, sequence] {
    const models::Tensors inputs = model.sample_inputs({batch, sequence, 0});
    model.loss(model.forward(inputs), targets_of(preset, inputs));
  };
}

int side_of(int ranks) {
  int side = 1;
  while (side * side < ranks) {
    ++side;
  }
  return side;
}

/// nullopt when nothing of the model can be divided so.
std::optional<planner::TracedDivision>
trace_division(const models::Preset& preset, const PresetRun& run, const cost::TensorWay& way) {
  LoneGroup group(way.degree);
  nn::TensorParallel parallel;
  parallel.group = &group;
  parallel.prescaled_batch = way.same_samples;
  parallel.shapes_only = true;
  if (way.kind == "2d") {
    const int side = side_of(way.degree);
    parallel.distribution = nn::Distribution::kTwoD;
    parallel.mesh = nn::two_d::Mesh::outline(
        group, std::make_unique<LoneGroup>(side), std::make_unique<LoneGroup>(side));
  } else {
    parallel.distribution =
        way.kind == "memory" ? nn::Distribution::kMemory : nn::Distribution::kSpeed;
  }
  const tracer::DelayedInitScope delayed;
  const nn::TensorParallelScope scope(parallel);
  const tensor_parallelism marked;
  const models::AnyModel model = models::make_model(preset);
  if (run.precision == "bf16") {
    model.module->to(torch::kBFloat16);
  }
  const nn::Replacements replacements = nn::replace_marked(
      model.module, [](const torch::nn::Module&, const nn::Make& make) { return make(); });
  if (replacements.replaced.empty()) {
    return std::nullopt;
  }
  nn::keep_parts_together(*replacements.root);
  torch::nn::Module& root = *replacements.root;
  planner::TracedDivision division;
  division.way = way;
  // A mesh gives its rows parts of a common batch.
  const int least = way.same_samples && way.kind == "2d" ? side_of(way.degree) : 1;
  division.samples = way.same_samples ? least : way.degree;
  division.graph =
      tracer::trace(root, forward_of(model, preset, least, run.sequence), {.name = preset.name});
  division.least = tracer::record_work(root, forward_of(model, preset, least, run.sequence));
  division.twice = tracer::record_work(root, forward_of(model, preset, 2 * least, run.sequence));
  for (const auto& [name, local] : nn::local_tensors(root)) {
    if (local.parameter && !local.scaled_batch) {
      division.whole.insert(name);
    }
  }
  return division;
}

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

planner::TracedModel trace_preset(const models::Preset& preset, const PresetRun& run) {
  planner::TracedModel traced;
  traced.precision = run.precision;
  traced.global_batch_size = run.global_batch_size;
  {
    const tracer::DelayedInitScope delayed;
    const models::AnyModel model = models::make_model(preset);
    if (run.precision == "bf16") {
      model.module->to(torch::kBFloat16);
    }
    const auto forward = [&](std::int64_t batch) {
      return forward_of(model, preset, batch, run.sequence);
    };
    traced.graph = tracer::trace(*model.module, forward(1), {.name = preset.name});
    traced.one_sample = tracer::record_work(*model.module, forward(1));
    traced.two_samples = tracer::record_work(*model.module, forward(2));
  }
  for (const int degree : run.tensor_degrees) {
    const int side = side_of(degree);
    for (const char* kind : {"speed", "memory", "2d"}) {
      if (kind == std::string("2d") && side * side != degree) {
        continue;
      }
      for (const bool same_samples : {false, true}) {
        if (auto division = trace_division(preset, run, {degree, kind, same_samples})) {
          traced.divisions.push_back(std::move(*division));
        }
      }
    }
  }
  return traced;
}

} // namespace tessera::cli
