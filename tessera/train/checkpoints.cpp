#include "tessera/train/checkpoints.h"

#include <iomanip>
#include <sstream>

#include <ATen/CPUGeneratorImpl.h>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/json/parse.h"
#include "tessera/checkpoint/directory.h"
#include "tessera/checkpoint/optimizer_state.h"
#include "tessera/checkpoint/reader.h"
#include "tessera/checkpoint/writer.h"
#include "tessera/comm/activity.h"
#include "tessera/nn/module/interceptor.h"
#include "tessera/runtime/error_text.h"
#include "tessera/tensor/value.h"
#include "tessera/train/optimizer_parts.h"

namespace tessera {

bool checkpoint_exists(const std::string& directory) {
  return checkpoint::read_newest(directory).has_value();
}

namespace train {

namespace {

using Json = nlohmann::json;

std::string hex(std::uint64_t parameters, std::uint64_t optimizer) {
  std::ostringstream out;
  out << std::hex << std::setfill('0') << std::setw(16) << parameters << '-' << std::setw(16)
      << optimizer;
  return out.str();
}

/// Runs `work` on rank 0; its text or its error reaches every rank.
template <typename Work>
std::string on_first_rank(Work work) {
  Session& s = session();
  bool failed = false;
  std::string text;
  if (s.world->rank() == 0) {
    try {
      text = work();
    } catch (...) {
      failed = true;
      text = runtime::message_of(std::current_exception());
    }
  }
  const c10::IValue agreed = comm::broadcast_object(
      *s.world,
      s.group(Group::kWorld),
      c10::ivalue::Tuple::create({c10::IValue(failed), c10::IValue(text)}),
      0);
  const auto& parts = agreed.toTupleRef().elements();
  if (parts[0].toBool()) {
    throw CheckpointError(parts[1].toStringRef());
  }
  return parts[1].toStringRef();
}

/// Every rank did its part, or every rank throws what the first failing one
/// says.
void agree(const std::optional<std::string>& error) {
  Session& s = session();
  for (const auto& text :
       comm::all_gather_object(*s.world, s.group(Group::kWorld), c10::IValue(error.value_or("")))) {
    if (!text.toStringRef().empty()) {
      throw CheckpointError(text.toStringRef());
    }
  }
}

/// What this rank is seen to do meanwhile.
class Doing {
 public:
  Doing(const ModelCore& model, const std::string& what) : model_(model) {
    comm::activity::script(model_.step_number(), what);
  }
  ~Doing() {
    comm::activity::script(model_.step_number());
  }
  Doing(const Doing&) = delete;
  Doing& operator=(const Doing&) = delete;

 private:
  const ModelCore& model_;
};

at::Generator generator() {
  return at::detail::getDefaultCPUGenerator();
}

/// The whole replica on its first rank; others are left with nothing.
void gather_whole(checkpoint::RankContent& content) {
  Session& s = session();
  comm::ProcessGroup& group = s.group(Group::kMP);
  TensorMap tensors(content.model.begin(), content.model.end());
  const auto models = comm::gather_object(*s.world, group, pack(tensors), 0);
  std::vector<c10::IValue> states;
  if (content.optimizer) {
    states = comm::gather_object(*s.world, group, pack_state(*content.optimizer), 0);
  }
  content.model.clear();
  const bool had_optimizer = content.optimizer.has_value();
  content.optimizer.reset();
  if (group.rank() != 0) {
    return;
  }
  TensorMap whole;
  for (const auto& part : models) {
    whole.merge(unpack<TensorMap>(part));
  }
  content.model.assign(whole.begin(), whole.end());
  if (had_optimizer) {
    content.optimizer.emplace();
    for (const auto& part : states) {
      merge_into(*content.optimizer, unpack_state(part));
    }
  }
}

checkpoint::SaveInfo info_of(const ModelCore& model, const SaveOptions& options) {
  checkpoint::SaveInfo info;
  info.model = model.name();
  info.degrees = session().layout->degrees();
  info.placement = session().config.placement_strategy;
  info.partition = model.plan().partition;
  info.num_kept_checkpoints = options.num_kept_checkpoints;
  Json content;
  content["steps"] = model.step_number();
  try {
    content["user"] = parse_json<Json>(options.user_content, "user_content");
  } catch (const JsonError& error) {
    throw CheckpointError(error.what());
  }
  info.user_content = content.dump();
  return info;
}

} // namespace

namespace {

// A parameter of another model would be missing in both models' checkpoints.
void check_belongs(const ModelCore& model, const DistributedOptimizer* optimizer) {
  if (optimizer == nullptr) {
    return;
  }
  const ModelCore& of = optimizer->model();
  if (&of != &model) {
    throw CheckpointError(tessera::str(
        "the optimizer given has the parameters of the model '",
        of.label(),
        "', the model given is '",
        model.label(),
        "'"));
  }
}

} // namespace

Saved save(
    ModelCore& model,
    DistributedOptimizer* optimizer,
    const std::string& directory,
    const std::string& tag,
    const SaveOptions& options) {
  Session& s = session();
  check_belongs(model, optimizer);
  s.engine->claim_directory(model, directory);
  const Doing doing(model, tessera::str("saving checkpoint '", tag, "'"));
  const checkpoint::SaveInfo info = info_of(model, options);
  checkpoint::Writer writer(directory, tag);
  on_first_rank([&] {
    writer.begin();
    return std::string();
  });

  // Replicas hold the same; the first of them writes. What the ranks of a
  // TP_GROUP hold together they put together and share out.
  checkpoint::RankContent content;
  const topology::Coordinates at = s.layout->coordinates(s.world->rank());
  const bool writes = at.rdp == 0;
  if (writes) {
    if (optimizer != nullptr) {
      optimizer->prepare();
    }
    const NamedTensors parameters = updated_tensors(model, optimizer);
    TensorMap tensors(parameters.begin(), parameters.end());
    for (const auto& buffer : model.local_buffers()) {
      tensors.insert(buffer);
    }
    const TensorMap share = model.state_layout().whole_share(tensors);
    content.model.assign(share.begin(), share.end());
    if (optimizer != nullptr) {
      content.optimizer =
          model.state_layout().whole_share(checkpoint::capture(optimizer->inner(), parameters));
    }
    if (options.full) {
      gather_whole(content);
    }
  }
  content.rank_tensors.emplace_back("random_state", generator().get_state());
  const checkpoint::RankFiles mine = writer.write_rank_files(
      s.world->rank(), at, content, options.full && writes && at.pp == 0 && at.tp == 0);
  const auto all = comm::gather_object(
      *s.world, s.group(Group::kWorld), c10::IValue(checkpoint::to_text(mine)), 0);
  const std::string result = on_first_rank([&] {
    std::vector<checkpoint::RankFiles> files;
    for (const auto& text : all) {
      files.push_back(checkpoint::rank_files_from_text(text.toStringRef()));
    }
    const checkpoint::SaveResult saved = writer.commit(files, info);
    return Json({{"path", saved.path},
                 {"hash", hex(saved.parameter_hash, saved.optimizer_hash)},
                 {"warnings", saved.warnings}})
        .dump();
  });
  const Json json = Json::parse(result);
  return {json["path"], json["hash"], json["warnings"]};
}

namespace {

// `master`: 16-bit parameters are saved, and wanted, as their f32 masters.
std::vector<checkpoint::Wanted>
wanted_of(const std::vector<StateLayout::Whole>& tensors, bool master, bool parameters_only) {
  std::vector<checkpoint::Wanted> wanted;
  for (const StateLayout::Whole& tensor : tensors) {
    if (parameters_only && !tensor.parameter) {
      continue;
    }
    const bool is_short = tensor.dtype == at::kHalf || tensor.dtype == at::kBFloat16;
    wanted.push_back(
        {tensor.name,
         master && tensor.parameter && is_short ? at::kFloat : tensor.dtype,
         tensor.sizes,
         {}});
  }
  return wanted;
}

void apply(
    ModelCore& model,
    DistributedOptimizer* optimizer,
    const checkpoint::Checkpoint& from,
    bool with_optimizer) {
  const at::NoGradGuard no_grad;
  if (optimizer != nullptr) {
    optimizer->prepare();
  }
  const StateLayout& layout = model.state_layout();
  const NamedTensors parameters = updated_tensors(model, optimizer);
  TensorMap own(parameters.begin(), parameters.end());
  for (const auto& buffer : model.local_buffers()) {
    own.insert(buffer);
  }
  checkpoint::LoadOptions options;
  options.model = model.name();
  options.convert_dtypes = true; // a bf16 run may go on from an f32 one
  const auto names = layout.whole_names();
  options.all_names.assign(names.begin(), names.end());
  std::vector<checkpoint::Wanted> all;
  for (int part = 0; part < layout.parts(); ++part) {
    const auto wanted = wanted_of(layout.wanted(part), optimizer != nullptr, false);
    all.insert(all.end(), wanted.begin(), wanted.end());
  }
  from.check_model(all, options);
  // One distributed module at a time is whole here.
  for (int part = 0; part < layout.parts(); ++part) {
    const auto wanted = wanted_of(layout.wanted(part), optimizer != nullptr, false);
    const auto loaded = from.load_model(wanted, options);
    TensorMap whole;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      whole.emplace(wanted[i].name, loaded[i]);
    }
    for (const auto& [name, tensor] : layout.to_local(part, whole)) {
      own.at(name).detach().copy_(tensor);
    }
  }
  if (optimizer != nullptr) {
    optimizer->refresh_parameters();
    if (with_optimizer) {
      checkpoint::OptimizerState state;
      for (int part = 0; part < layout.parts(); ++part) {
        const auto wanted = wanted_of(layout.wanted(part), true, true);
        merge_into(state, layout.to_local(from.load_optimizer(wanted)));
      }
      checkpoint::restore(optimizer->inner(), std::move(state), parameters);
    }
  }
  const Session& s = session();
  if (from.meta().degrees == s.layout->degrees() &&
      from.meta().placement == s.config.placement_strategy) {
    const auto own = from.load_rank_tensors(s.world->rank());
    const auto found = own.find("random_state");
    if (found != own.end()) {
      generator().set_state(found->second);
    }
  }
}

} // namespace

std::optional<Loaded> load(
    const std::shared_ptr<ModelCore>& model,
    DistributedOptimizer* optimizer,
    const std::string& directory,
    const LoadOptions& options) {
  check_belongs(*model, optimizer);
  const Doing doing(*model, tessera::str("loading a checkpoint of '", directory, "'"));
  // Rank 0 chooses, and reads all of it to see that it is whole.
  std::vector<std::string> warnings;
  const std::string tag = on_first_rank([&] {
    if (!options.tag.empty()) {
      checkpoint::Checkpoint::open(directory, options.tag);
      return options.tag;
    }
    auto newest = checkpoint::open_newest(directory);
    warnings = newest.warnings;
    return newest.checkpoint ? newest.checkpoint->meta().tag : std::string();
  });
  if (tag.empty()) {
    return std::nullopt;
  }
  auto from = std::make_shared<checkpoint::Checkpoint>(
      checkpoint::Checkpoint::open(directory, tag, checkpoint::Verify::kSizes));
  const Json content = Json::parse(from->meta().user_content);
  if (!content.contains("steps") || !content.contains("user")) {
    throw CheckpointError(
        str(from->path(),
            " was not written by tessera::save; load its model with "
            "load_state_dict"));
  }
  model->set_step_number(content["steps"].get<std::int64_t>());
  ModelCore* target = model.get();
  const bool with_optimizer = options.optimizer;
  model->on_partition([target, optimizer, from, with_optimizer] {
    std::optional<std::string> error;
    try {
      apply(*target, optimizer, *from, with_optimizer);
    } catch (...) {
      error = str(
          "rank ", session().world->rank(), ": ", runtime::message_of(std::current_exception()));
    }
    agree(error);
  });
  return Loaded{
      from->path(),
      content["user"].dump(),
      hex(from->meta().parameter_hash, from->meta().optimizer_hash),
      warnings};
}

} // namespace train
} // namespace tessera
