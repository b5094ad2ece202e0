#include "tessera/train/engine.h"

#include <algorithm>
#include <chrono>
#include <filesystem>

#include <torch/csrc/autograd/autograd.h>

#include "tessera/autograd/weight_gradient.h"
#include "tessera/base/error.h"
#include "tessera/diagnostics/activity.h"
#include "tessera/plan/from_config.h"
#include "tessera/runtime/error_text.h"
#include "tessera/runtime/random_state.h"
#include "tessera/train/model_core.h"
#include "tessera/train/step_failure.h"

namespace tessera::train {

namespace {

/// Restores the script's stream at its end, unless the script is to go on from where it is then.
class RestoredRandomState {
 public:
  RestoredRandomState() : state_(runtime::RandomState::capture()) {}
  void keep_current() {
    state_ = runtime::RandomState::capture();
  }
  ~RestoredRandomState() {
    state_.restore();
  }
  RestoredRandomState(const RestoredRandomState&) = delete;
  RestoredRandomState& operator=(const RestoredRandomState&) = delete;

 private:
  runtime::RandomState state_;
};

class Marked {
 public:
  explicit Marked(bool& flag) : flag_(flag) {
    flag_ = true;
  }
  ~Marked() {
    flag_ = false;
  }
  Marked(const Marked&) = delete;
  Marked& operator=(const Marked&) = delete;

 private:
  bool& flag_;
};

// Ranks draw different random numbers where their samples are different.
std::uint64_t seed() {
  return runtime::mix(static_cast<std::uint64_t>(session().config.seed), data_rank());
}

// What the first of the data-parallel ranks with a failure says.
std::optional<std::string> first_problem(const std::optional<std::string>& mine) {
  Session& s = session();
  for (const c10::IValue& text :
       comm::all_gather_object(*s.world, *s.control, mine ? c10::IValue(*mine) : c10::IValue())) {
    if (!text.isNone()) {
      return text.toStringRef();
    }
  }
  return std::nullopt;
}

// Where a step draws what a single process would draw: with several microbatches or replicas there
// is no order in which one stream could serve all.
bool continues_script_stream(int microbatches) {
  return microbatches == 1 && dp_size() == 1;
}

} // namespace

StepEngine::StepEngine() : directory_(session().group(Group::kPP).rank()) {}

StepEngine::~StepEngine() = default;

void StepEngine::add(ModelCore& model) {
  if (in_step_) {
    throw ConfigError(tessera::str(
        "model '", model.name(), "' was made inside a step function; make models before the step"));
  }
  check_own(model);
  const auto taken = [&](const std::string& label) {
    return std::any_of(models_.begin(), models_.end(), [&](const ModelCore* other) {
      return other->label() == label;
    });
  };
  ++models_made_;
  std::string label = model.name();
  for (int i = 2; taken(label); ++i) {
    label = tessera::str(model.name(), " ", i);
  }
  model.enter(models_made_, label);
  models_.push_back(&model);
  ++revision_;
}

void StepEngine::check_own(const ModelCore& model) const {
  std::set<const void*> known;
  const auto refuse = [&](const std::string& what, const std::string& why) {
    throw ConfigError(tessera::str("model '", model.name(), "': ", what, why));
  };
  for (const auto& handle : divided_) {
    if (const auto tensor = handle.lock()) {
      known.insert(tensor.get());
    }
  }
  for (const auto& [name, tensor] : model.all_tensors()) {
    if (known.contains(tensor.unsafeGetTensorImpl())) {
      refuse(
          tessera::str("'", name, "'"),
          " was divided over pipeline ranks by a DistributedModel that is gone, so some ranks hold "
          "nothing of it; make the modules anew and load its state_dict");
    }
  }
  for (const ModelCore* other : models_) {
    known.clear();
    for (const auto& [name, tensor] : other->all_tensors()) {
      known.insert(tensor.unsafeGetTensorImpl());
    }
    for (const auto& module : other->root()->modules()) {
      known.insert(module.get());
    }
    const std::string why = tessera::str(
        " is part of the model '",
        other->label(),
        "' too; put what they share into one model, whose modules a step function may call "
        "one by one");
    for (const auto& [name, tensor] : model.all_tensors()) {
      if (known.contains(tensor.unsafeGetTensorImpl())) {
        refuse(tessera::str("'", name, "'"), why);
      }
    }
    for (const auto& item : model.root()->named_modules("the model")) {
      if (known.contains(item.value().get())) {
        refuse(tessera::str("module '", item.key(), "'"), why);
      }
    }
  }
}

void StepEngine::remove(ModelCore& model) {
  std::erase(models_, &model);
  std::erase_if(directories_, [&](const auto& claim) { return claim.second == &model; });
  ++revision_;
  std::erase_if(divided_, [](const auto& handle) { return handle.expired(); });
  if (!model.partitioned() || session().config.pipeline_parallel_degree == 1) {
    return;
  }
  directory_.remove(model.table());
  for (const auto& [name, tensor] : model.all_tensors()) {
    divided_.emplace_back(tensor.getIntrusivePtr());
  }
}

void StepEngine::serve(ModelCore& model) {
  ++revision_;
  if (session().config.pipeline_parallel_degree > 1) {
    directory_.add(model.table(), model.label());
  }
}

void StepEngine::claim_directory(const ModelCore& model, const std::string& directory) {
  const std::string path = (std::filesystem::path(directory) / "").lexically_normal().string();
  const ModelCore* owner = directories_.emplace(path, &model).first->second;
  if (owner != &model) {
    throw CheckpointError(tessera::str(
        "'",
        directory,
        "' holds checkpoints of the model '",
        owner->label(),
        "'; give the model '",
        model.label(),
        "' a folder of its own"));
  }
}

void StepEngine::start_server() {
  Session& s = session();
  schedule_ = plan::make_schedule(plan::plan_from_config(s.config, s.world->size()));
  if (s.order_transport != nullptr) {
    order_ = std::make_unique<runtime::OrderChannel>(s.group(s.order_group), *s.order_transport);
  }
  runtime::ServerContext context;
  context.modules = &directory_;
  context.transport = s.transport.get();
  context.pp_ranks = s.group(Group::kPP).ranks();
  context.schedule = schedule_.get();
  context.order = order_.get();
  context.recorder = s.recorder.get();
  context.timeout = s.world->options().timeout;
  context.seed = seed();
  context.rank = s.world->rank();
  context.reproducible = s.config.reproducible;
  context.failed = abandon_collectives;
  server_ = std::make_unique<runtime::Server>(std::move(context));
  if (s.config.static_mode) {
    runtime::StaticMode::Context around;
    around.modules = &directory_;
    around.world = s.world.get();
    around.all = &s.group(Group::kWorld);
    around.pipeline = &s.group(Group::kPP);
    around.ordered = order_ != nullptr ? &s.group(s.order_group) : nullptr;
    around.rank = s.world->rank();
    static_mode_ = std::make_unique<runtime::StaticMode>(
        runtime::StaticMode::Options{
            s.config.static_mode_steps, s.config.fast_mode, s.config.reproducible},
        std::move(around));
  }
}

std::vector<c10::IValue> StepEngine::run_step(
    const StepCall& call,
    const std::function<c10::IValue(int)>& run) {
  if (models_.empty()) {
    throw ConfigError("a step was called without a model; make a DistributedModel first");
  }
  if (server_ == nullptr && session().config.pipeline_parallel_degree > 1) {
    start_server();
  }
  directory_.admit_waiting();
  ensure_partitioned(call, run);
  for (ModelCore* model : models_) {
    model->begin_step(call.microbatches);
    if (!model->partitioned()) {
      directory_.refuse_waiting(*model->root(), model->label());
    }
  }
  std::vector<c10::IValue> results;
  std::optional<std::string> failure;
  const auto started = std::chrono::steady_clock::now();
  try {
    const Marked mark(in_step_);
    results = server_ != nullptr ? run_on_server(call, run) : run_alone(call.microbatches, run);
  } catch (const UserError& error) {
    failure = error.what();
    abandon_collectives(*failure);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - started;
  ++step_;
  diagnostics::activity::script(step_);
  finish(failure);
  if (static_mode_ != nullptr && call.static_mode) {
    static_mode_->completed(seconds.count());
  }
  for (ModelCore* model : models_) {
    model->after_step();
  }
  return results;
}

// A recorded step holds for the models there were, in the modes they had.
std::string StepEngine::modes_of_models() const {
  std::string text;
  for (const ModelCore* model : models_) {
    if (model->partitioned()) {
      text += tessera::str(model->number(), model->root()->is_training() ? "t" : "e", " ");
    }
  }
  return text;
}

// Every rank counts the passes of a model alike, although a pass may reach only
// some of its ranks.
void StepEngine::agree_on_passes() {
  std::vector<ModelCore*> counting;
  for (ModelCore* model : models_) {
    if (model->counts_passes()) {
      counting.push_back(model);
    }
  }
  if (counting.empty()) {
    return;
  }
  at::Tensor reached = at::zeros({static_cast<std::int64_t>(counting.size())}, at::kByte);
  auto* flags = reached.data_ptr<std::uint8_t>();
  for (std::size_t i = 0; i < counting.size(); ++i) {
    flags[i] = counting[i]->had_backward() ? 1 : 0;
  }
  session().group(Group::kWorld).all_reduce(reached, comm::ReduceOp::kMax);
  for (std::size_t i = 0; i < counting.size(); ++i) {
    if (flags[i] != 0) {
      counting[i]->expect_backward();
    }
  }
}

void StepEngine::finish(const std::optional<std::string>& failure) {
  agree_on_passes();
  std::optional<std::string> problem = failure;
  bool agreed = false; // a failure of any data-parallel rank is known to all
  for (const ModelCore* model : models_) {
    agreed = agreed || model->has_reducers();
    const std::string sparse = model->sparse_gradient();
    if (!problem && !sparse.empty()) {
      problem = sparse;
    }
  }
  if (!agreed && session().group(Group::kDP).size() > 1) {
    problem = first_problem(failure); // no model has reducers yet
    if (problem) {
      recover_collectives();
      throw UserError(*problem);
    }
    return;
  }
  // Every model's collectives run even after a failure, so that none is left
  // half done on another rank.
  std::optional<std::string> thrown = agreed ? std::nullopt : failure;
  for (ModelCore* model : models_) {
    try {
      model->finish_step(problem);
    } catch (const UserError& error) {
      thrown = thrown.value_or(error.what());
      problem = problem.value_or(error.what());
    }
  }
  if (!thrown) {
    return;
  }
  if (agreed) {
    recover_collectives(); // every rank of the DP_GROUP comes here
  }
  throw UserError(*thrown);
}

std::vector<c10::IValue> StepEngine::run_on_server(
    const StepCall& call,
    const std::function<c10::IValue(int)>& run) {
  runtime::StepWork work;
  work.step = step_;
  work.serial = ++steps_run_;
  work.microbatches = call.microbatches;
  const std::string modes = modes_of_models();
  const std::hash<std::string> hash;
  work.kind = runtime::mix(hash(call.function), hash(modes) + (at::GradMode::is_enabled() ? 1 : 0));
  work.run = run;
  work.script_stream = continues_script_stream(call.microbatches);
  if (static_mode_ != nullptr && call.static_mode) {
    static_mode_->begin({call.function, at::GradMode::is_enabled(), modes}, work);
  }
  return server_->run_step(work);
}

// One partition: each microbatch runs to its end on the calling thread.
std::vector<c10::IValue> StepEngine::run_alone(
    int microbatches,
    const std::function<c10::IValue(int)>& run) {
  std::vector<c10::IValue> results;
  const bool one_stream = continues_script_stream(microbatches);
  RestoredRandomState script;
  const WeightGradientScope in_place;
  timeline::Recorder& recorder = *session().recorder;
  for (int i = 0; i < microbatches; ++i) {
    diagnostics::activity::runs(step_, "", i, false);
    timeline::Event event;
    event.start_us = recorder.now_us();
    if (!one_stream) { // the streams that a server would use
      runtime::RandomState::seeded(
          runtime::stream_seed(seed(), step_, runtime::step_function_id(i)))
          .restore();
    }
    try {
      results.push_back(run(i));
    } catch (...) {
      throw UserError(runtime::error_text(
          std::current_exception(),
          session().world->rank(),
          tessera::str("the step function, microbatch ", i)));
    }
    if (recorder.enabled()) {
      event.end_us = recorder.now_us();
      event.name = "step function";
      event.category = "forward";
      event.microbatch = i;
      event.step = static_cast<int>(step_);
      recorder.add(std::move(event));
    }
  }
  if (one_stream) {
    script.keep_current();
  }
  return results;
}

void StepEngine::backward(
    const std::vector<at::Tensor>& tensors,
    const std::vector<at::Tensor>& gradients,
    double scale) {
  if (session().tracing) {
    return; // the tracing pass follows the forward only
  }
  if (!in_step_) {
    throw UserError("model.backward was called outside a step function");
  }
  if (!gradients.empty() && gradients.size() != tensors.size()) {
    throw UserError(tessera::str(
        "model.backward got ", tensors.size(), " tensors and ", gradients.size(), " gradients"));
  }
  std::vector<at::Tensor> scaled;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const bool given = !gradients.empty() && gradients[i].defined();
    if (!given && tensors[i].numel() != 1) {
      throw UserError(tessera::str(
          "model.backward got a tensor of shape ",
          tensors[i].sizes(),
          " without a gradient; reduce it to one number, or give its "
          "gradient"));
    }
    if (!tensors[i].requires_grad()) {
      throw UserError(
          "model.backward got a tensor that needs no gradient; is grad mode "
          "off, or was it detached?");
    }
    scaled.push_back(given ? gradients[i] * scale : at::full_like(tensors[i], scale));
  }
  if (server_ != nullptr) {
    server_->backward(tensors, scaled);
  } else {
    diagnostics::activity::turns_backward();
    const WeightGradientPass in_place(tensors);
    torch::autograd::backward(tensors, scaled);
  }
}

} // namespace tessera::train
