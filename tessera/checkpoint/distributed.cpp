#include "tessera/checkpoint/distributed.h"

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/json/parse.h"
#include "tessera/checkpoint/rank_parts.h"
#include "tessera/state/optimizer_parts.h"
#include "tessera/state/sharded_state.h"

namespace tessera::checkpoint {

namespace {
using Json = nlohmann::json;
} // namespace

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

// 16-bit parameters are saved and loaded as their f32 masters.
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

// Copies loaded tensors into this rank's; of a divided parameter only this rank's part.
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
  options.convert_dtypes = true; // a bf16 run may continue an f32 one
  const auto names = layout.whole_names();
  options.all_names.assign(names.begin(), names.end());
  std::vector<Wanted> all;
  for (int part = 0; part < layout.parts(); ++part) {
    const auto wanted = wanted_of(layout, part, false);
    all.insert(all.end(), wanted.begin(), wanted.end());
  }
  from.check_model(all, options);
  // Only one distributed module at a time is assembled whole.
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

Translated translate(const Subject& subject, const Checkpoint& from, const LoadOptions& options) {
  const at::NoGradGuard no_grad;
  const state::StateLayout& layout = *subject.layout;
  const TensorMap state = options.translate_function(from.load_all());
  Translated made;
  for (int part = 0; part < layout.parts(); ++part) {
    TensorMap& fitting = made.parts.emplace_back();
    for (const Wanted& wanted : wanted_of(layout, part, false)) {
      const auto found = state.find(wanted.name);
      if (found == state.end()) {
        made.unfit.insert(str("'", wanted.name, "' is missing"));
      } else if (!found->second.defined() || found->second.sizes() != wanted.shape) {
        made.unfit.insert(str("'", wanted.name, "' has another shape"));
      } else {
        fitting.emplace(wanted.name, found->second.detach().cpu().to(wanted.dtype));
      }
    }
  }
  const std::set<std::string> known = layout.whole_names();
  for (const auto& [name, tensor] : state) {
    if (!known.contains(name)) {
      made.unfit.insert(str("'", name, "' is not in the model"));
    }
  }
  return made;
}

void load_translated(const Subject& subject, const Translated& translated) {
  const at::NoGradGuard no_grad;
  TensorMap own = tensors_of(subject);
  for (std::size_t part = 0; part < translated.parts.size(); ++part) {
    write_own(
        subject, own, subject.layout->to_local(static_cast<int>(part), translated.parts[part]));
  }
}

void load_optimizer(const Subject& subject, const Checkpoint& from, OptimizerPart which) {
  const at::NoGradGuard no_grad;
  auto& groups = subject.optimizer->param_groups();
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options;
  for (std::size_t i = 0; which == OptimizerPart::kStates && i < groups.size(); ++i) {
    options.push_back(groups[i].options().clone());
  }
  const state::StateLayout& layout = *subject.layout;
  state::OptimizerState local;
  for (int part = 0; part < layout.parts(); ++part) {
    const auto wanted = wanted_of(layout, part, true);
    auto loaded = layout.to_local(from.load_optimizer(wanted, which != OptimizerPart::kOptions));
    if (subject.divided != nullptr) {
      loaded = state::part_state(*subject.divided, std::move(loaded));
    }
    state::merge_into(local, std::move(loaded));
  }
  state::restore(*subject.optimizer, std::move(local), subject.parameters);
  for (std::size_t i = 0; i < options.size(); ++i) {
    groups[i].set_options(std::move(options[i]));
  }
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
