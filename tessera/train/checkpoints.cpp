#include "tessera/train/checkpoints.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/directory.h"
#include "tessera/checkpoint/distributed.h"
#include "tessera/checkpoint/pending_save.h"
#include "tessera/context/agreement.h"
#include "tessera/diagnostics/activity.h"
#include "tessera/model/files.h"
#include "tessera/model/model_core.h"
#include "tessera/optim/optimizer_access.h"
#include "tessera/runtime/error_text.h"
#include "tessera/train/engine.h"
#include "tessera/train/model_access.h"
#include "tessera/train/session.h"

namespace tessera {

namespace {

using model::ModelCore;
using optim::OptimizerAccess;

/// Publishes what this rank does while the object lives, for the diagnostics of other ranks.
class Doing {
 public:
  Doing(const train::StepEngine& engine, const std::string& what) : engine_(engine) {
    diagnostics::activity::script(engine_.step_number(), what);
  }
  ~Doing() {
    diagnostics::activity::script(engine_.step_number());
  }
  Doing(const Doing&) = delete;
  Doing& operator=(const Doing&) = delete;

 private:
  const train::StepEngine& engine_;
};

// Throws where the optimizer is another model's: its parameters would be missing in the checkpoints
// of both models.
void check_belongs(const ModelCore& model, const DistributedOptimizer& optimizer) {
  const ModelCore& of = OptimizerAccess::model(optimizer);
  if (&of != &model) {
    throw CheckpointError(
        str("the optimizer given has the parameters of the model '",
            of.label(),
            "', the model given is '",
            model.label(),
            "'"));
  }
}

// Without an optimizer there are no masters, so parameters are saved as they are.
NamedTensors own_parts(const ModelCore& model) {
  NamedTensors tensors = model.local_parameters();
  if (model.shards() != nullptr) {
    for (auto& [name, tensor] : tensors) {
      tensor = model.shards()->updated_part(tensor);
    }
  }
  return tensors;
}

checkpoint::Subject subject_of(const ModelCore& model, DistributedOptimizer* optimizer) {
  if (optimizer != nullptr) {
    OptimizerAccess::prepare(*optimizer);
  }
  return {
      model.name(),
      model.plan().partition,
      &model.state_layout(),
      optimizer != nullptr ? OptimizerAccess::updated_tensors(*optimizer) : own_parts(model),
      model.local_buffers(),
      optimizer != nullptr ? &optimizer->inner() : nullptr,
      {},
      false,
      optimizer != nullptr ? optimizer->fp16_states() : std::string(),
      model.shards() == nullptr ? nullptr : &model.shards()->parameters()};
}

/// Loads model, optimizer and random state. Returns the names that the checkpoint and the model do
/// not both have, which only `strict` false allows.
std::set<std::string> apply(
    ModelCore& model,
    DistributedOptimizer* optimizer,
    const checkpoint::Opened& opened,
    const LoadOptions& options,
    const std::optional<checkpoint::Translated>& translated) {
  const checkpoint::Checkpoint& from = *opened.from;
  const checkpoint::Subject subject = subject_of(model, optimizer);
  std::set<std::string> passed_over;
  if (translated) {
    checkpoint::load_translated(subject, *translated);
    passed_over = translated->unfit;
  } else if (options.strict) {
    checkpoint::load_model(subject, from);
  } else {
    passed_over = checkpoint::load_fitting(subject, from);
  }
  if (optimizer != nullptr) {
    OptimizerAccess::refresh_parameters(*optimizer);
    if (options.optimizer) {
      checkpoint::load_optimizer(subject, from);
      // A run that was not in fp16 leaves the scale as it begins.
      if (!opened.fp16_states.empty()) {
        optimizer->load_fp16_states(opened.fp16_states, from.path());
      }
    }
  }
  if (options.progress) {
    checkpoint::load_random_state(model.context(), from);
  }
  return passed_over;
}

std::unique_ptr<checkpoint::PendingSave> begin_save(
    const ModelCore& model,
    DistributedOptimizer* optimizer,
    const std::string& directory,
    const std::string& tag,
    const SaveOptions& options,
    checkpoint::PendingSave::Writes writes) {
  const train::StepEngine& engine = train::engine();
  engine.model_set()->claim_directory(model, directory);
  model.share_buffers_of_others();
  checkpoint::Subject subject = subject_of(model, optimizer);
  if (optimizer != nullptr) {
    auto content = OptimizerAccess::content(*optimizer, options.full);
    subject.parameters = std::move(content.parameters);
    subject.state = std::move(content.state);
    subject.all_write = content.all_write;
  }
  if (subject.all_write && engine.context().coordinates().rdp > 0) {
    subject.buffers.clear(); // replicas have the same
  }
  return std::make_unique<checkpoint::PendingSave>(
      engine.context(), subject, engine.steps_learnt(), directory, tag, options, writes);
}

Saved save_checkpoint(
    const ModelCore& model,
    DistributedOptimizer* optimizer,
    const std::string& directory,
    const std::string& tag,
    const SaveOptions& options) {
  const Doing doing(train::engine(), str("saving checkpoint '", tag, "'"));
  using Writes = checkpoint::PendingSave::Writes;
  return begin_save(model, optimizer, directory, tag, options, Writes::kHere)->finish();
}

/// What the script's function makes of the checkpoint, if there is one. Before anything is written
/// all ranks know what fits. Collective over the world. Throws: CheckpointError on every rank.
std::optional<checkpoint::Translated> translate(
    const ModelCore& model,
    DistributedOptimizer* optimizer,
    const checkpoint::Opened& opened,
    const LoadOptions& options) {
  if (!options.translate_function) {
    return std::nullopt;
  }
  const Context& context = model.context();
  comm::ProcessGroup& world = context.group(Group::kWorld);
  std::optional<checkpoint::Translated> translated;
  std::optional<std::string> error;
  try {
    translated = checkpoint::translate(subject_of(model, optimizer), *opened.from, options);
  } catch (...) {
    error =
        str("rank ", context.world->rank(), ": ", runtime::message_of(std::current_exception()));
  }
  throw_first_problem<CheckpointError>(*context.world, world, error);
  if (options.strict) {
    const auto unfit = all_problems(*context.world, world, translated->unfit);
    if (!unfit.empty()) {
      throw CheckpointError(listed(
          str("the checkpoint ", opened.from->path(), " does not fit the model, translated:"),
          unfit));
    }
  }
  return translated;
}

/// Runs `act`, which writes parameters. Collective over the world.
/// Throws: CheckpointError on every rank when it fails on one of them.
void write_on_all_ranks(ModelCore& model, const std::function<void()>& act) {
  const Context& context = model.context();
  std::optional<std::string> error;
  if (model.shards() != nullptr) {
    model.shards()->before_writing();
  }
  try {
    act();
  } catch (...) {
    error =
        str("rank ", context.world->rank(), ": ", runtime::message_of(std::current_exception()));
  }
  if (model.shards() != nullptr) {
    model.shards()->after_writing();
  }
  throw_first_problem<CheckpointError>(*context.world, context.group(Group::kWorld), error);
}

/// Loads into a model that `with_values` lets write. Collective over the world.
/// Throws: CheckpointError on every rank when one of them cannot load.
void load_opened(
    ModelCore& model,
    DistributedOptimizer* optimizer,
    const checkpoint::Opened& opened,
    const LoadOptions& options) {
  const Context& context = model.context();
  std::set<std::string> passed_over;
  const auto translated = translate(model, optimizer, opened, options);
  write_on_all_ranks(
      model, [&] { passed_over = apply(model, optimizer, opened, options, translated); });
  if (options.strict) {
    return;
  }
  passed_over = all_problems(*context.world, context.group(Group::kWorld), std::move(passed_over));
  if (!passed_over.empty() && context.world->rank() == 0) {
    log::warning(
        listed(str("the checkpoint ", opened.from->path(), " was loaded but for:"), passed_over));
  }
}

/// Of a model that holds all modules yet: values, options of the optimizer and random state, so
/// that what the script does behind `load` acts on them. Collective over the world. Returns false,
/// and has loaded nothing, where tensors have no memory yet.
bool load_whole(
    ModelCore& model,
    DistributedOptimizer* optimizer,
    const checkpoint::Opened& opened,
    const LoadOptions& options) {
  return model.with_values([&] {
    load_opened(model, nullptr, opened, options);
    if (optimizer == nullptr || !options.optimizer) {
      return;
    }
    write_on_all_ranks(model, [&] {
      checkpoint::Subject subject = subject_of(model, nullptr);
      subject.optimizer = &optimizer->inner();
      checkpoint::load_optimizer(subject, *opened.from, checkpoint::OptimizerPart::kOptions);
    });
  });
}

/// What `load_whole` leaves for the partition: state of the optimizer, and f32 masters of values of
/// 16 bits, but for those that the script has changed meanwhile. Not collective.
void apply_rest(
    ModelCore& model,
    DistributedOptimizer& optimizer,
    const checkpoint::Opened& opened,
    const LoadOptions& options,
    const std::optional<checkpoint::Translated>& translated) {
  const checkpoint::Subject subject = subject_of(model, &optimizer);
  std::map<std::string, at::ScalarType> types;
  for (const auto& [name, tensor] : model.local_parameters()) {
    types.emplace(name, tensor.scalar_type());
  }
  const at::NoGradGuard no_grad;
  std::vector<std::pair<at::Tensor, at::Tensor>> masters; // and what they were
  std::vector<at::ScalarType> rounded;
  for (const auto& [name, tensor] : subject.parameters) {
    const auto type = types.find(name);
    if (type != types.end() && type->second != tensor.scalar_type()) {
      masters.emplace_back(tensor, tensor.detach().clone());
      rounded.push_back(type->second);
    }
  }
  if (!masters.empty()) {
    LoadOptions values = options;
    values.optimizer = values.progress = false;
    apply(model, &optimizer, opened, values, translated);
    for (std::size_t i = 0; i < masters.size(); ++i) {
      const auto& [loaded, before] = masters[i];
      const at::Tensor same = loaded.to(rounded[i]).eq(before.to(rounded[i]));
      loaded.detach().copy_(at::where(same, loaded, before));
    }
    OptimizerAccess::refresh_parameters(optimizer);
  }
  if (options.optimizer) {
    checkpoint::load_optimizer(subject, *opened.from, checkpoint::OptimizerPart::kStates);
    if (!opened.fp16_states.empty()) {
      optimizer.load_fp16_states(opened.fp16_states, opened.from->path());
    }
  }
}

/// Whether values have f32 masters: alike on all ranks, since handles keep their type.
bool has_narrow_parameters(const ModelCore& model) {
  const auto parameters = model.all_parameters();
  return std::any_of(parameters.begin(), parameters.end(), [](const at::Tensor& parameter) {
    return parameter.scalar_type() == at::kHalf || parameter.scalar_type() == at::kBFloat16;
  });
}

void load_rest(
    ModelCore& model,
    DistributedOptimizer& optimizer,
    const checkpoint::Opened& opened,
    const LoadOptions& options) {
  const auto translated = has_narrow_parameters(model)
                              ? translate(model, &optimizer, opened, options)
                              : std::nullopt; // values are there
  write_on_all_ranks(model, [&] { apply_rest(model, optimizer, opened, options, translated); });
}

std::optional<Loaded> load_checkpoint(
    ModelCore& model,
    DistributedOptimizer* optimizer,
    const std::string& directory,
    const LoadOptions& options) {
  train::StepEngine& engine = train::engine();
  const Doing doing(engine, str("loading a checkpoint of '", directory, "'"));
  auto opened = checkpoint::open(engine.context(), directory, options);
  if (!opened) {
    return std::nullopt;
  }
  if (options.progress) {
    engine.set_steps_learnt(opened->steps);
  }
  const Loaded loaded = opened->loaded;
  if (!model.partitioned() && load_whole(model, optimizer, *opened, options)) {
    if (optimizer != nullptr) {
      model.on_partition([&model, optimizer, opened = std::move(*opened), options] {
        load_rest(model, *optimizer, opened, options);
      });
    }
    return loaded;
  }
  model.on_partition([&model, optimizer, opened = std::move(*opened), options] {
    load_opened(model, optimizer, opened, options);
  });
  return loaded;
}

} // namespace

bool checkpoint_exists(const std::string& directory) {
  std::error_code unreadable; // then it is no folder
  try {
    return checkpoint::read_newest(directory).has_value() ||
           (std::filesystem::is_directory(directory, unreadable) &&
            !checkpoint::tags_in(directory).empty());
  } catch (const CheckpointError&) {
    return true; // `newest` is damaged, or the folder cannot be read
  }
}

Saved save(
    const Model& given,
    DistributedOptimizer& optimizer,
    const std::string& directory,
    const std::string& tag,
    const SaveOptions& options) {
  check_belongs(*train::ModelAccess::core(given), optimizer);
  return save_checkpoint(*train::ModelAccess::core(given), &optimizer, directory, tag, options);
}

Saved save(
    const Model& given,
    const std::string& directory,
    const std::string& tag,
    const SaveOptions& options) {
  return save_checkpoint(*train::ModelAccess::core(given), nullptr, directory, tag, options);
}

BackgroundSave::BackgroundSave(std::unique_ptr<checkpoint::PendingSave> pending)
    : pending_(std::move(pending)) {}
BackgroundSave::~BackgroundSave() = default;
BackgroundSave::BackgroundSave(BackgroundSave&& other) noexcept = default;
BackgroundSave& BackgroundSave::operator=(BackgroundSave&& other) noexcept = default;

bool BackgroundSave::written() const {
  return pending_->written();
}

Saved BackgroundSave::finish() {
  const Doing doing(train::engine(), "finishing a checkpoint");
  return pending_->finish();
}

BackgroundSave save_in_background(
    const Model& given,
    DistributedOptimizer& optimizer,
    const std::string& directory,
    const std::string& tag,
    const SaveOptions& options) {
  check_belongs(*train::ModelAccess::core(given), optimizer);
  const Doing doing(train::engine(), str("copying what checkpoint '", tag, "' holds"));
  using Writes = checkpoint::PendingSave::Writes;
  return BackgroundSave(begin_save(
      *train::ModelAccess::core(given),
      &optimizer,
      directory,
      tag,
      options,
      Writes::kInBackground));
}

std::optional<Loaded> load(
    const Model& given,
    DistributedOptimizer& optimizer,
    const std::string& directory,
    const LoadOptions& options) {
  check_belongs(*train::ModelAccess::core(given), optimizer);
  return load_checkpoint(*train::ModelAccess::core(given), &optimizer, directory, options);
}

std::optional<Loaded>
load(const Model& given, const std::string& directory, const LoadOptions& options) {
  return load_checkpoint(*train::ModelAccess::core(given), nullptr, directory, options);
}

void save_module(const Model& model, const std::string& path) {
  model::save_module(*train::ModelAccess::core(model), path);
}

void load_module(const Model& model, const std::string& path) {
  model::load_module(*train::ModelAccess::core(model), path);
}

} // namespace tessera
