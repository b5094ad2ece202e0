// Looks for state that microbatches or replicas share, in the first step of each kind.
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/comm/world.h"
#include "tessera/model/model_core.h"
#include "tessera/plan/from_config.h"
#include "tessera/tensor/value.h"
#include "tessera/train/engine.h"

namespace tessera::train {

// A trace sees one step function, and none is run where the partition is given.
std::optional<tracer::MemberChanges> StepEngine::watch_members(const StepCall& call) {
  if (context_.config.pipeline_parallel_degree == 1 || call.microbatches == 1 ||
      !watched_.insert(call.function + modes_of_models()).second ||
      plans::runs_one_at_a_time(plans::plan_from_config(context_.config, context_.world->size()))) {
    return std::nullopt;
  }
  std::vector<torch::nn::Module*> roots;
  for (const ModelCore* model : models()) {
    roots.push_back(model->root().get());
  }
  return tracer::MemberChanges(roots);
}

void StepEngine::warn_of_shared_members(const std::set<std::string>& found, int microbatches)
    const {
  std::string modules;
  for (const std::string& name : found) {
    if (!known_state_.contains(name)) {
      modules += (modules.empty() ? "" : ", ") + name;
    }
  }
  if (modules.empty() || context_.world->rank() != 0) {
    return;
  }
  log::warning(tessera::str(
      "the forward of ",
      modules,
      " keeps something in a member, which no tracing pass has shown. The ",
      microbatches,
      " microbatches of a step share it, so where one reads what another has set, the results of "
      "this step are wrong. Keep it in a local variable, or give it on as an argument and a "
      "result; where a forward reads what it has set itself, write \"active_microbatches\": 1; "
      "where calls carry it on to later ones (a cache of generated text), make all of these calls "
      "in one step function and write \"active_microbatches\": 1"));
}

// Without a pipeline as well: each microbatch goes on from what the one before has left.
std::optional<SampleBuffers> StepEngine::watch_buffers(const StepCall& call) {
  const int replicas = context_.data_size();
  if ((call.microbatches == 1 && replicas == 1) ||
      !watched_buffers_.insert(call.function + training_modes()).second) {
    return std::nullopt;
  }
  NamedTensors buffers;
  const std::int64_t rows = call.rows / call.microbatches;
  if (rows > 1) { // else there is nothing to tell samples by
    for (const ModelCore* model : models()) {
      if (model->partitioned()) {
        const NamedTensors local = model->local_buffers();
        buffers.insert(buffers.end(), local.begin(), local.end());
      }
    }
  }
  return SampleBuffers(buffers, rows);
}

void StepEngine::warn_of_sample_buffers(const std::set<std::string>& found, const StepCall& call)
    const {
  if (found.empty() || context_.world->rank() != 0) {
    return;
  }
  log::warning(tessera::str(
      "a step changes the buffer ",
      *found.begin(),
      ", of which one size is that of a microbatch's ",
      call.rows / call.microbatches,
      " rows. If it keeps a state of each sample, such as a hidden state, the results are wrong: "
      "each of the ",
      call.microbatches,
      " microbatches goes on from the samples of the one before, and of the ",
      context_.data_size(),
      " replicas the first one's buffers count. Give such a state to the step as an argument and "
      "take it as a result, which divides it with the batch (StepOptions::input_split_axes where "
      "samples are not its first axis)"));
}

std::set<std::string> StepEngine::on_any_rank(const std::vector<std::string>& found) const {
  std::set<std::string> all;
  for (const c10::IValue& of_rank :
       comm::all_gather_object(*context_.world, context_.group(Group::kWorld), pack(found))) {
    const auto names = unpack<std::vector<std::string>>(of_rank);
    all.insert(names.begin(), names.end());
  }
  return all;
}

} // namespace tessera::train
