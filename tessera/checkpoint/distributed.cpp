#include "tessera/checkpoint/distributed.h"

#include <iomanip>
#include <sstream>

#include <ATen/CPUGeneratorImpl.h>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/json/parse.h"
#include "tessera/checkpoint/writer.h"
#include "tessera/runtime/error_text.h"
#include "tessera/state/optimizer_parts.h"
#include "tessera/state/sharded_state.h"
#include "tessera/tensor/value.h"

namespace tessera::checkpoint {

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
std::string on_first_rank(Context& context, Work work) {
  bool failed = false;
  std::string text;
  if (context.world->rank() == 0) {
    try {
      text = work();
    } catch (...) {
      failed = true;
      text = runtime::message_of(std::current_exception());
    }
  }
  const auto [any_failed, agreed] = unpack<std::tuple<bool, std::string>>(comm::broadcast_object(
      *context.world, context.group(Group::kWorld), pack(std::make_tuple(failed, text)), 0));
  if (any_failed) {
    throw CheckpointError(agreed);
  }
  return agreed;
}

at::Generator generator() {
  return at::detail::getDefaultCPUGenerator();
}

TensorMap tensors_of(const Subject& subject) {
  TensorMap tensors(subject.parameters.begin(), subject.parameters.end());
  tensors.insert(subject.buffers.begin(), subject.buffers.end());
  return tensors;
}

/// The whole replica on its first rank; others are left with nothing.
void gather_whole(Context& context, RankContent& content) {
  comm::ProcessGroup& group = context.group(Group::kMP);
  TensorMap tensors(content.model.begin(), content.model.end());
  const auto models = comm::gather_object(*context.world, group, pack(tensors), 0);
  std::vector<c10::IValue> states;
  const bool with_optimizer = content.optimizer.has_value();
  if (with_optimizer) {
    states = comm::gather_object(*context.world, group, state::pack_state(*content.optimizer), 0);
  }
  content.model.clear();
  content.optimizer.reset();
  if (group.rank() != 0) {
    return;
  }
  TensorMap whole;
  for (const auto& part : models) {
    whole.merge(unpack<TensorMap>(part));
  }
  content.model.assign(whole.begin(), whole.end());
  if (with_optimizer) {
    content.optimizer.emplace();
  }
  for (const auto& part : states) {
    state::merge_into(*content.optimizer, state::unpack_state(part));
  }
}

SaveInfo info_of(
    const Context& context,
    const Subject& subject,
    std::int64_t steps,
    const SaveOptions& options) {
  SaveInfo info;
  info.model = subject.model;
  info.degrees = context.layout->degrees();
  info.placement = context.config.placement_strategy;
  info.partition = subject.partition;
  info.num_kept_checkpoints = options.num_kept_checkpoints;
  Json content;
  content["steps"] = steps;
  if (!subject.fp16_states.empty()) {
    content["fp16_states"] = Json::parse(subject.fp16_states);
  }
  try {
    content["user"] = parse_json<Json>(options.user_content, "user_content");
  } catch (const JsonError& error) {
    throw CheckpointError(error.what());
  }
  info.user_content = content.dump();
  return info;
}

// Replicas hold the same state, so the first of them writes it. The ranks of a TP_GROUP assemble
// what they hold together and share it out; before it the ranks of a shard group do.
RankContent content_of(Context& context, const Subject& subject, bool writes, bool full) {
  RankContent content;
  Subject whole = subject;
  if (subject.divided != nullptr) {
    whole.parameters = state::whole_tensors(*subject.divided, subject.parameters, writes);
    whole.state = state::whole_state(*subject.divided, subject.state, writes);
  }
  if (writes) {
    const TensorMap share = subject.layout->whole_share(tensors_of(whole));
    content.model.assign(share.begin(), share.end());
    if (subject.optimizer != nullptr) {
      content.optimizer = subject.layout->whole_share(whole.state);
    }
    if (full) {
      gather_whole(context, content);
    }
  }
  content.rank_tensors.emplace_back("random_state", generator().get_state());
  return content;
}

} // namespace

Saved save(
    Context& context,
    const Subject& subject,
    std::int64_t steps,
    const std::string& directory,
    const std::string& tag,
    const SaveOptions& options) {
  const SaveInfo info = info_of(context, subject, steps, options);
  Writer writer(directory, tag);
  on_first_rank(context, [&] {
    writer.begin();
    return std::string();
  });
  const topology::Coordinates at = context.coordinates();
  const bool writes = at.rdp == 0 || subject.all_write;
  const RankContent content = content_of(context, subject, writes, options.full);
  const RankFiles mine = writer.write_rank_files(
      context.world->rank(), at, content, options.full && writes && at.pp == 0 && at.tp == 0);
  const auto all = comm::gather_object(
      *context.world, context.group(Group::kWorld), c10::IValue(to_text(mine)), 0);
  const Json result = Json::parse(on_first_rank(context, [&] {
    std::vector<RankFiles> files;
    for (const auto& text : all) {
      files.push_back(rank_files_from_text(text.toStringRef()));
    }
    const SaveResult saved = writer.commit(files, info);
    return Json({{"path", saved.path},
                 {"hash", hex(saved.parameter_hash, saved.optimizer_hash)},
                 {"warnings", saved.warnings}})
        .dump();
  }));
  return {result["path"], result["hash"], result["warnings"]};
}

std::optional<Opened>
open(Context& context, const std::string& directory, const LoadOptions& options) {
  // Rank 0 chooses, and reads all of it to see that it is whole.
  std::vector<std::string> warnings;
  const std::string tag = on_first_rank(context, [&] {
    if (!options.tag.empty()) {
      Checkpoint::open(directory, options.tag);
      return options.tag;
    }
    auto newest = open_newest(directory);
    warnings = newest.warnings;
    return newest.checkpoint ? newest.checkpoint->meta().tag : std::string();
  });
  if (tag.empty()) {
    return std::nullopt;
  }
  auto from = std::make_shared<Checkpoint>(Checkpoint::open(directory, tag, Verify::kSizes));
  const Json content = Json::parse(from->meta().user_content);
  if (!content.contains("steps") || !content.contains("user")) {
    throw CheckpointError(
        str(from->path(),
            " was not written by tessera::save; load its model with "
            "load_state_dict"));
  }
  Loaded loaded{
      from->path(),
      content["user"].dump(),
      hex(from->meta().parameter_hash, from->meta().optimizer_hash),
      std::move(warnings)};
  return Opened{
      std::move(from),
      content["steps"].get<std::int64_t>(),
      content.contains("fp16_states") ? content["fp16_states"].dump() : "",
      std::move(loaded)};
}

namespace {

// 16-bit parameters are saved, and wanted, as their f32 masters.
std::vector<Wanted> wanted_of(const state::StateLayout& layout, int part, bool parameters_only) {
  std::vector<Wanted> wanted;
  for (const state::StateLayout::Whole& tensor : layout.wanted(part)) {
    if (parameters_only && !tensor.parameter) {
      continue;
    }
    const bool is_short = tensor.dtype == at::kHalf || tensor.dtype == at::kBFloat16;
    wanted.push_back(
        {tensor.name, tensor.parameter && is_short ? at::kFloat : tensor.dtype, tensor.sizes, {}});
  }
  return wanted;
}

// Copies loaded tensors into this rank's, of a divided parameter its part.
void write_own(const Subject& subject, TensorMap& own, const TensorMap& loaded) {
  for (const auto& [name, tensor] : loaded) {
    const auto* parts = subject.divided == nullptr ? nullptr : subject.divided->find(name);
    own.at(name).detach().copy_(
        parts == nullptr ? tensor : subject.divided->part_of(*parts, tensor));
  }
}

} // namespace

void load_model(const Subject& subject, const Checkpoint& from) {
  const at::NoGradGuard no_grad;
  const state::StateLayout& layout = *subject.layout;
  TensorMap own = tensors_of(subject);
  ReadOptions options;
  options.model = subject.model;
  options.convert_dtypes = true; // a bf16 run may go on from an f32 one
  const auto names = layout.whole_names();
  options.all_names.assign(names.begin(), names.end());
  std::vector<Wanted> all;
  for (int part = 0; part < layout.parts(); ++part) {
    const auto wanted = wanted_of(layout, part, false);
    all.insert(all.end(), wanted.begin(), wanted.end());
  }
  from.check_model(all, options);
  // One distributed module at a time is whole here.
  for (int part = 0; part < layout.parts(); ++part) {
    const auto wanted = wanted_of(layout, part, false);
    const auto loaded = from.load_model(wanted, options);
    TensorMap whole;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      whole.emplace(wanted[i].name, loaded[i]);
    }
    write_own(subject, own, layout.to_local(part, whole));
  }
}

std::set<std::string> load_fitting(const Subject& subject, const Checkpoint& from) {
  const at::NoGradGuard no_grad;
  const state::StateLayout& layout = *subject.layout;
  TensorMap own = tensors_of(subject);
  ReadOptions options;
  options.convert_dtypes = true;
  std::set<std::string> passed_over;
  const std::set<std::string> saved = from.names();
  for (int part = 0; part < layout.parts(); ++part) {
    std::vector<Wanted> fitting;
    for (const Wanted& wanted : wanted_of(layout, part, false)) {
      try {
        from.check_model({wanted}, options);
        fitting.push_back(wanted);
      } catch (const CheckpointError&) {
        passed_over.insert(str(
            "'",
            wanted.name,
            saved.contains(wanted.name) ? "' has another shape" : "' is not in the checkpoint"));
      }
    }
    const auto loaded = from.load_model(fitting, options);
    TensorMap whole;
    for (std::size_t i = 0; i < fitting.size(); ++i) {
      whole.emplace(fitting[i].name, loaded[i]);
    }
    write_own(subject, own, layout.to_local(part, whole));
  }
  const std::set<std::string> known = layout.whole_names();
  for (const std::string& name : saved) {
    if (!known.contains(name)) {
      passed_over.insert(str("'", name, "' is not in the model"));
    }
  }
  return passed_over;
}

void load_optimizer(const Subject& subject, const Checkpoint& from) {
  const at::NoGradGuard no_grad;
  const state::StateLayout& layout = *subject.layout;
  state::OptimizerState local;
  for (int part = 0; part < layout.parts(); ++part) {
    const auto wanted = wanted_of(layout, part, true);
    auto loaded = layout.to_local(from.load_optimizer(wanted));
    if (subject.divided != nullptr) {
      loaded = state::part_state(*subject.divided, std::move(loaded));
    }
    state::merge_into(local, std::move(loaded));
  }
  state::restore(*subject.optimizer, std::move(local), subject.parameters);
}

void load_random_state(const Context& context, const Checkpoint& from) {
  if (from.meta().degrees != context.layout->degrees() ||
      from.meta().placement != context.config.placement_strategy) {
    return;
  }
  const auto own = from.load_rank_tensors(context.world->rank());
  const auto found = own.find("random_state");
  if (found != own.end()) {
    generator().set_state(found->second);
  }
}

} // namespace tessera::checkpoint
