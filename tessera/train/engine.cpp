#include "tessera/train/engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/base/log.h"
#include "tessera/comm/world.h"
#include "tessera/context/agreement.h"
#include "tessera/deferred_init/delayed_init.h"
#include "tessera/diagnostics/activity.h"
#include "tessera/model/model_core.h"
#include "tessera/nn/module/interceptor.h"
#include "tessera/nn/module/recomputed_call.h"
#include "tessera/nn/replace/follow_mode.h"
#include "tessera/plan/from_config.h"
#include "tessera/recompute/attentions.h"
#include "tessera/tensor/value.h"
#include "tessera/train/make_runner.h"
#include "tessera/train/same_arguments.h"
#include "tessera/train/step_failure.h"

namespace tessera::train {

namespace {

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

/// The library cannot see where a script builds its model, so a scope of the script has to say it.
void warn_of_idle_delay(const Context& context, const torch::nn::Module& module) {
  if (context.config.delayed_parameter_initialization && context.world->rank() == 0 &&
      !tracer::has_delayed(module)) {
    log::warning(
        str("delayed_parameter_initialization has no effect on the model '",
            nn::type_name(module),
            "': its parameters have memory already; build it in a scope, `const "
            "tessera::delay_param_initialization "
            "delayed(tessera::config_in_force().delayed_parameter_initialization);`"));
  }
}

/// Throws: UserError where a part of a replaced module was told train() or eval() alone.
void check_modes(const ModelCore& model) {
  for (const nn::ReplacedModule& replaced : model.replacements().replaced) {
    nn::check_mode(*replaced.original, replaced.path);
  }
}

} // namespace

StepEngine::StepEngine(Context& context)
    : context_(context), models_(std::make_shared<model::ModelSet>(context)) {}

StepEngine::~StepEngine() = default;

std::shared_ptr<ModelCore> StepEngine::make_model(
    std::shared_ptr<torch::nn::Module> module,
    ModelOptions options) {
  warn_of_idle_delay(context_, *module);
  auto made = std::make_unique<ModelCore>(context_, std::move(module), std::move(options));
  if (in_step_) {
    throw ConfigError(str(
        "model '", made->name(), "' was made inside a step function; make models before the step"));
  }
  models_->add(*made);
  // From here to its destructor the model is one of the process's.
  std::shared_ptr<ModelCore> model(made.release(), [engine = weak_from_this()](ModelCore* pointer) {
    const std::unique_ptr<ModelCore> ended(pointer);
    if (const auto live = engine.lock()) {
      live->remove(*ended);
    }
  });
  if (context_.config.pipeline_parallel_degree == 1) {
    partition_whole(*model); // nothing has to be known of a run
  }
  return model;
}

void StepEngine::remove(ModelCore& model) {
  models_->remove(model);
  if (runner_ != nullptr && model.partitioned()) {
    runner_->remove(model);
  }
}

void StepEngine::release(ModelCore& model) {
  if (in_step_ || tracing_) {
    throw UserError(
        str("cpu() of the model '",
            model.label(),
            "' was called inside a step function; call it between steps"));
  }
  model.check_may_be_released();
  TensorMap state = model.state_dict(/*only_first=*/false);
  // Ranks may read parts in place until here.
  context_.group(Group::kWorld).barrier();
  if (runner_ != nullptr) {
    runner_->remove(model);
  }
  models_->release(model);
  model.release(std::move(state));
}

StepRunner& StepEngine::runner() {
  if (runner_ == nullptr) {
    runner_ = make_runner(context_);
  }
  return *runner_;
}

void StepEngine::check_call(const ModelCore& model) {
  if (model.released()) {
    if (in_step_ || tracing_) {
      throw UserError(
          str("the model '",
              model.label(),
              "' was called in a step, but it is an ordinary module since its cpu(): call it "
              "outside of steps, or make a DistributedModel of it anew"));
    }
    return;
  }
  // One of the tracing pass's runs has no interceptor: it only warms the machine up.
  if (context_.config.pipeline_parallel_degree > 1 && nn::current_interceptor() == nullptr &&
      !tracing_) {
    throw UserError(
        "the model was called outside a step function; with "
        "pipeline_parallel_degree > 1 its parts are on several ranks, so call "
        "it inside tessera::step");
  }
  check_modes(model);
  if (!model.partitioned()) {
    note_call(model);
  }
}

std::vector<c10::IValue> StepEngine::run_step(const StepCall& call, const StepFunction& run) {
  if (models().empty()) {
    throw ConfigError("a step was called without a model; make a DistributedModel first");
  }
  runner().admit_waiting();
  for (const ModelCore* model : models()) {
    check_modes(*model);
  }
  ensure_partitioned(call, run);
  for (ModelCore* model : models()) {
    model->begin_step(call.microbatches);
    if (!model->partitioned()) {
      runner().refuse_waiting(*model);
    }
  }
  const std::optional<tracer::MemberChanges> changes = watch_members(call);
  const std::optional<SampleBuffers> sample_buffers = watch_buffers(call);
  std::vector<c10::IValue> results;
  std::optional<std::string> failure;
  const auto started = std::chrono::steady_clock::now();
  const optim::Settings settings = optim::settings_of(models_->optimizers());
  const std::string modes = training_modes();
  try {
    const Marked mark(in_step_);
    asked_.clear();
    bool compared = false;
    const StepFunction each = [&](int microbatch) {
      models_->running().microbatch = microbatch;
      if (!std::exchange(compared, true)) {
        check_same_arguments(call.digests, context_.group(Group::kTP));
      }
      c10::IValue result = run(microbatch);
      check_rows(call);
      for (ModelCore* model : models()) {
        model->end_microbatch();
      }
      return result;
    };
    results = runner().run(
        {call, step_, numbers_.draws(learns(call)), modes_of_models(), each, settings});
  } catch (const UserError& error) {
    failure = error.what();
    abandon_collectives(*failure);
    if (changes) { // perhaps the reason
      const std::vector<std::string> found = changes->found();
      warn_of_shared_members({found.begin(), found.end()}, call.microbatches);
    }
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - started;
  ++step_;
  diagnostics::activity::script(step_);
  warn_of_idle_offloading();
  // Rows of pp rank 0 alone are the batch's.
  const std::int64_t rows = context_.group(Group::kPP).rank() == 0 ? call.rows : 0;
  for (const ModelCore* model : models()) {
    if (model->partitioned()) {
      model->gradients()->set_rows(rows);
      model->gradients()->set_agreed(hash_text(modes, optim::digest(settings)));
    }
  }
  finish(failure);
  check_replicas_alike(settings, modes);
  warn_of_unequal_batches(rows);
  if (!call.forward_only && at::GradMode::is_enabled() &&
      context_.config.pipeline_parallel_degree > 1) {
    for (const ModelCore* model : models()) {
      if (model->partitioned()) {
        model->table().show_remote_gradients();
      }
    }
  }
  runner().completed(call, seconds.count());
  for (ModelCore* model : models()) {
    model->after_step();
  }
  warn_of_idle_attentions();
  if (changes) {
    warn_of_shared_members(on_any_rank(changes->found()), call.microbatches);
  }
  if (sample_buffers) {
    warn_of_sample_buffers(on_any_rank(sample_buffers->changed()), call);
  }
  return results;
}

// Of a batch that is learnt from: the weights of gradients are those of the replicas' samples.
void StepEngine::check_rows(const StepCall& call) const {
  if (call.rows == 0 || !context_.shares.are_said()) {
    return;
  }
  const bool learns =
      !asked_.empty() || std::any_of(models().begin(), models().end(), [](const ModelCore* model) {
        return model->partitioned() && model->gradients()->had_backward();
      });
  const std::int64_t expected =
      context_.shares.rows_of(context_.data_rank(), context_.shares.all_samples()).count;
  if (learns && call.rows != expected) {
    throw UserError(
        str("the step was given a batch of ",
            call.rows,
            " rows; replica ",
            context_.coordinates().rdp,
            " takes ",
            expected,
            " on this rank (replica_samples): slice the batch of ",
            context_.shares.all_samples(),
            " rows with tessera::data_rows"));
  }
}

// Replicas count alike, so a sample of a small batch counts for more than one of a large batch.
void StepEngine::warn_of_unequal_batches(std::int64_t rows) {
  if (warned_of_rows_ || context_.shares.are_said() || context_.world->rank() != 0) {
    return;
  }
  for (const ModelCore* model : models()) {
    if (model->partitioned() && model->gradients()->rows_differ() &&
        model->replica_part().weight == 1) {
      warned_of_rows_ = true;
      log::warning(tessera::str(
          "replicas were given batches of different sizes in step ",
          step_ - 1,
          ", rank 0 one of ",
          rows,
          " rows. Their gradients count alike, so the average is not that of all samples; give "
          "every replica as many rows (drop the last incomplete batch), name unlike sizes with "
          "replica_samples, or use tessera::Join where replicas run out of batches"));
      return;
    }
  }
}

// Replicas that a script trains in different ways are no longer equal, which no loss shows.
void StepEngine::check_replicas_alike(const optim::Settings& settings, const std::string& modes)
    const {
  const bool differ = std::any_of(models().begin(), models().end(), [](const ModelCore* model) {
    return model->partitioned() && model->gradients()->agreed_differs();
  });
  if (!differ) { // alike on all ranks of the DP_GROUP
    return;
  }
  const comm::ProcessGroup& replicas = *context_.control;
  using Alike = std::pair<optim::Settings, std::string>;
  const auto all = comm::all_gather_object(*context_.world, replicas, pack(Alike(settings, modes)));
  const auto first = unpack<Alike>(all.front());
  for (std::size_t i = 1; i < all.size(); ++i) {
    const auto other = unpack<Alike>(all[i]);
    const int rank = replicas.ranks()[i];
    const std::string text = optim::difference(other.first, rank, first.first, replicas.ranks()[0]);
    if (!text.empty()) {
      throw UserError(tessera::str("in step ", step_ - 1, " ", text));
    }
    if (other.second != first.second) {
      throw UserError(tessera::str(
          "in step ",
          step_ - 1,
          " a model is in training mode on one of the ranks ",
          replicas.ranks()[0],
          " and ",
          rank,
          " and in evaluation mode on the other: call train() and eval() on every rank"));
    }
  }
}

// Without it nothing is moved, and the key is there to save memory.
void StepEngine::warn_of_idle_offloading() {
  if (context_.offloader == nullptr || warned_of_offloading_ || nn::recomputes() ||
      recompute::attentions_recomputed() || !at::GradMode::is_enabled() ||
      context_.world->rank() != 0) {
    return;
  }
  warned_of_offloading_ = true;
  log::warning(
      "offload_activations has no effect: it moves what modules with activation checkpointing "
      "keep, "
      "and there are none; flag some with set_activation_checkpointing");
}

// The ranks of a pipeline need not all have attentions.
void StepEngine::warn_of_idle_attentions() {
  if (!recompute::attentions_recomputed() || looked_for_attentions_ ||
      !at::GradMode::is_enabled()) {
    return;
  }
  looked_for_attentions_ = true;
  std::int64_t run = 0;
  for (const c10::IValue& of_rank : comm::all_gather_object(
           *context_.world, context_.group(Group::kWorld), pack(recompute::attentions_run()))) {
    run += of_rank.toInt();
  }
  if (run == 0 && context_.world->rank() == 0) {
    log::warning(
        "checkpoint_attentions has no effect: it recomputes attentions of the library's "
        "transformer layers and model families that keep a matrix of scores, and this step ran "
        "none; flag modules of your own with set_activation_checkpointing, or leave the key out");
  }
}

// Whether the step may change weights, as far as is known before it runs.
bool StepEngine::learns(const StepCall& call) const {
  return !call.forward_only && at::GradMode::is_enabled() &&
         std::any_of(models().begin(), models().end(), [](const ModelCore* model) {
           return model->partitioned() && model->root()->is_training();
         });
}

std::string StepEngine::training_modes() const {
  std::string text;
  for (const ModelCore* model : models()) {
    if (model->partitioned()) {
      text += tessera::str(model->number(), model->root()->is_training() ? "t" : "e", " ");
    }
  }
  return text;
}

// A recorded step holds for the models there were, in the modes they had, and for the parameters
// that needed gradients, which are this rank's.
std::string StepEngine::modes_of_models() const {
  std::string text = training_modes();
  for (const ModelCore* model : models()) {
    if (model->partitioned() && context_.config.static_mode) {
      for (const at::Tensor& parameter : model->root()->parameters()) {
        text += parameter.requires_grad() ? '1' : '0';
      }
    }
  }
  return text;
}

// Every rank counts the passes of a model alike, although a pass may reach only some of its ranks,
// or no parameter at all, where it is one of the models whose backward was called.
void StepEngine::agree_on_passes() {
  std::vector<data_parallel::GradientSync*> counting;
  std::vector<bool> asked;
  for (const ModelCore* model : models()) {
    if (model->partitioned() && model->gradients()->counts_passes()) {
      counting.push_back(model->gradients());
      asked.push_back(asked_.contains(model));
    }
  }
  if (counting.empty()) {
    return;
  }
  const std::size_t count = counting.size();
  at::Tensor flags = at::zeros({static_cast<std::int64_t>(2 * count)}, at::kByte);
  auto* reached = flags.data_ptr<std::uint8_t>();
  auto* called = reached + count;
  for (std::size_t i = 0; i < count; ++i) {
    reached[i] = counting[i]->had_backward() ? 1 : 0;
    called[i] = asked[i] ? 1 : 0;
  }
  context_.group(Group::kWorld).all_reduce(flags, comm::ReduceOp::kMax);
  const bool any = std::any_of(reached, called, [](std::uint8_t flag) { return flag != 0; });
  for (std::size_t i = 0; i < count; ++i) {
    if (any ? reached[i] != 0 : called[i] != 0) {
      counting[i]->expect_backward();
    }
  }
}

/// The first error of a hook, or parameter that was not reached, on any rank of the world: the
/// ranks that average together do not know of those of other parts of the model.
std::optional<std::string> StepEngine::problem_of_averages() const {
  bool any = false;
  std::optional<std::string> mine;
  for (const ModelCore* model : models()) {
    if (model->partitioned() && model->gradients()->may_have_problem()) {
      any = true;
      const auto problem = model->gradients()->take_problem();
      mine = mine ? mine : problem;
    }
  }
  return any ? first_problem(*context_.world, context_.group(Group::kWorld), mine) : std::nullopt;
}

void StepEngine::finish(const std::optional<std::string>& failure) {
  agree_on_passes();
  std::optional<std::string> problem = failure;
  bool agreed = false; // a failure of any data-parallel rank is known to all
  for (const ModelCore* model : models()) {
    if (!model->partitioned()) {
      continue;
    }
    agreed = agreed || model->gradients()->has_replicas();
  }
  if (!agreed && context_.group(Group::kDP).size() > 1) { // no model is partitioned yet
    problem = first_problem(*context_.world, *context_.control, failure);
    if (problem) {
      recover_collectives();
      throw UserError(*problem);
    }
    return;
  }
  // Every model's collectives run even after a failure, so that none is left
  // half done on another rank.
  std::optional<std::string> thrown = agreed ? std::nullopt : failure;
  for (const ModelCore* model : models()) {
    if (!model->partitioned()) {
      continue;
    }
    try {
      model->gradients()->finish(problem, step_ - 1);
    } catch (const UserError& error) {
      thrown = thrown.value_or(error.what());
      problem = problem.value_or(error.what());
    }
  }
  if (const auto of_averages = problem_of_averages()) {
    thrown = thrown.value_or(*of_averages);
  }
  if (!thrown) {
    return;
  }
  if (agreed) {
    recover_collectives(); // every rank of the DP_GROUP comes here
  }
  throw UserError(*thrown);
}

// Gradients are averaged over microbatches and replicas, which is right for a loss that is a mean.
void StepEngine::warn_of_sum(const at::Tensor& loss, double scale) {
  if (scale == 0) {
    return; // of a replica that is out of data
  }
  const auto parts = std::lround(context_.data_size() / scale);
  if (parts == 1 || warned_of_sum_ || context_.world->rank() != 0 || loss.grad_fn() == nullptr ||
      !loss.grad_fn()->name().starts_with("SumBackward")) {
    return;
  }
  warned_of_sum_ = true;
  if (context_.shares.are_said()) {
    log::warning(
        "the loss of model.backward ends in a sum, but with replica_samples a replica's gradients "
        "count as those of a mean over its samples; write a mean");
    return;
  }
  log::warning(tessera::str(
      "the loss of model.backward ends in a sum. Gradients are averaged over the ",
      parts,
      " microbatches and replicas of a step, so they are 1/",
      parts,
      " of those of the plain script; write a mean, or multiply the loss by ",
      parts));
}

void StepEngine::backward(
    const ModelCore& asked,
    const std::vector<at::Tensor>& tensors,
    const std::vector<at::Tensor>& gradients,
    double scale) {
  if (tracing_) {
    return; // the tracing pass follows the forward only
  }
  if (!in_step_) {
    throw UserError("model.backward was called outside a step function");
  }
  if (!gradients.empty() && gradients.size() != tensors.size()) {
    throw UserError(tessera::str(
        "model.backward got ", tensors.size(), " tensors and ", gradients.size(), " gradients"));
  }
  const auto loss_scale = models_->loss_scale(); // with fp16
  const double factor = loss_scale != nullptr ? scale * *loss_scale : scale;
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
    // In f16 a large scale is infinite, which the optimizer finds.
    scaled.push_back(
        given ? gradients[i] * factor
              : at::full_like(tensors[i], factor, at::dtype(at::kDouble)).to(tensors[i].dtype()));
    warn_of_sum(tensors[i], scale);
  }
  asked_.insert(&asked);
  runner_->backward(tensors, scaled);
}

} // namespace tessera::train
