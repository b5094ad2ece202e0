#include "tessera/sharding/divided_parameters.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/sharding/pages.h"
#include "tessera/sharding/parted_tensor.h"
#include "tessera/tensor/mapped_bytes.h"

namespace tessera::sharding {

namespace {

constexpr std::size_t kAlignment = 64;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::int64_t elements_of_rank(const at::Tensor& parameter, int degree) {
  return (parameter.numel() + degree - 1) / degree;
}

/// Of all ranks' parts.
std::size_t bytes_of_parts(const at::Tensor& parameter, int degree) {
  return aligned(
      static_cast<std::size_t>(elements_of_rank(parameter, degree) * degree) *
      parameter.element_size());
}

// Keeps the memory for as long as the tensor lives, and counts it as this rank's.
at::Tensor tensor_in(
    const std::shared_ptr<const void>& memory,
    std::byte* at,
    std::int64_t elements,
    const at::Tensor& like) {
  const auto bytes = elements * static_cast<std::int64_t>(like.element_size());
  return at::from_blob(
      at,
      {elements},
      [memory, counted = std::make_shared<MappedBytes>(bytes)](void*) {},
      like.options().requires_grad(false));
}

} // namespace

bool can_be_divided(const at::Tensor& parameter) {
  const auto type = parameter.scalar_type();
  const bool kind =
      type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf;
  return kind && parameter.layout() == at::kStrided && parameter.device().is_cpu() &&
         parameter.is_contiguous() && parameter.storage_offset() == 0 && parameter.numel() > 0 &&
         parameter.storage().nbytes() == parameter.nbytes() && parameter.storage().use_count() == 1;
}

/// Wholes of all parameters, one behind the other. In `parts` the parts of this node's ranks are at
/// their places; those of other nodes are gathered into `wholes`, the same memory or a rank's own.
struct DividedParameters::Memory {
  std::shared_ptr<Pages> parts;
  std::shared_ptr<Pages> wholes;
  std::shared_ptr<Pages> table; // LiveTable's; nullptr on one node
  std::size_t begin = 0; // of the first parameter in `parts` and `wholes`
  std::size_t end = 0;
};

DividedParameters::Memory DividedParameters::memory_for(
    comm::ProcessGroup& group,
    const Gathering& gathering,
    const NamedTensors& parameters) {
  Memory memory;
  const bool gathers = !gathering.nodes.is_one();
  memory.begin = gathers ? LiveTable::bytes_for(parameters.size()) : 0;
  memory.end = memory.begin;
  for (const auto& [name, tensor] : parameters) {
    memory.end += bytes_of_parts(tensor, group.size());
  }
  memory.parts = Pages::of_node(gathering.node, memory.end);
  const bool together = !gathers || gathering.hierarchical;
  memory.wholes = together ? memory.parts : Pages::of_process(memory.end);
  memory.table = gathers ? memory.wholes : nullptr;
  return memory;
}

DividedParameters::DividedParameters(
    comm::ProcessGroup& group,
    const Gathering& gathering,
    const NamedTensors& parameters,
    const Make& make)
    : group_(group) {
  if (parameters.empty()) {
    return;
  }
  const at::NoGradGuard no_grad;
  const int degree = group.size();
  const Memory memory = memory_for(group, gathering, parameters);
  std::size_t place = memory.begin;
  for (const auto& [name, tensor] : parameters) {
    make(name, tensor);
    if (!can_be_divided(tensor)) {
      throw ConfigError(str(
          "the parameter '",
          name,
          "' is made without memory and then shares its memory with another tensor, so it cannot "
          "be divided; build it without delay_param_initialization, or write a "
          "sdp_param_persistence_threshold above its ",
          tensor.numel(),
          " elements"));
    }
    DividedParameter& made = list_.emplace_back();
    made.name = name;
    made.whole = tensor;
    made.per_rank = elements_of_rank(tensor, degree);
    made.source = std::make_shared<Source>();
    made.source->name = name;
    made.source->memory = memory.wholes;
    made.source->numbers = memory.wholes->data() + place;
    made.source->index = static_cast<int>(list_.size()) - 1;
    made.source->degree = degree;
    const std::size_t part_bytes = made.per_rank * tensor.element_size();
    made.part = tensor_in(
        memory.parts,
        memory.parts->data() + place + group.rank() * part_bytes,
        made.per_rank,
        tensor);
    made.part.copy_(part_of(made, tensor));
    made.part.set_requires_grad(tensor.requires_grad());
    place += bytes_of_parts(tensor, degree);
    make_parted(tensor, made.source);
  }
  if (memory.table != nullptr) {
    make_gatherer(gathering, memory);
  }
  after_writing();
}

/// What a rank has gathered into memory of its own goes as a whole; in memory of a node the parts
/// of its ranks stay.
void DividedParameters::make_gatherer(const Gathering& gathering, const Memory& memory) {
  PartService::Model model;
  model.memory = std::make_shared<Memory>(memory);
  model.nodes = gathering.nodes;
  model.by_node = gathering.hierarchical;
  std::vector<std::string> names;
  std::vector<std::int64_t> elements;
  for (const DividedParameter& parameter : list_) {
    PartService::Parameter& added = model.parameters.emplace_back();
    added.name = parameter.name;
    added.whole = parameter.source->numbers;
    added.parts = memory.parts->data() + (added.whole - memory.wholes->data());
    added.part_bytes = parameter.part.nbytes();
    names.push_back(parameter.name);
    elements.push_back(parameter.whole.numel());
  }
  const bool of_node = memory.wholes == memory.parts;
  const std::vector<int>& members = gathering.nodes.members[gathering.nodes.own];
  const auto release = [pages = memory.wholes,
                        parameters = model.parameters,
                        size = group_.size(),
                        kept = of_node ? members : std::vector<int>()](int index) {
    const PartService::Parameter& parameter = parameters[static_cast<std::size_t>(index)];
    int begin = 0; // of a run of parts that go
    for (int rank = 0; rank <= size; ++rank) {
      if (rank == size || std::binary_search(kept.begin(), kept.end(), rank)) {
        pages->give_back(
            parameter.whole + begin * parameter.part_bytes,
            parameter.whole + rank * parameter.part_bytes);
        begin = rank + 1;
      }
    }
  };
  auto table = std::make_shared<LiveTable>(
      memory.table->data(), std::move(elements), gathering.most_elements, release);
  const bool owns_table = !of_node || gathering.node.rank() == 0;
  if (owns_table) {
    table->make();
  }
  model.arrived = [table](int parameter) { table->arrived(parameter); };
  const int number = gathering.service->add(std::move(model));
  gatherer_ = std::make_shared<Gatherer>(
      gathering.service, number, table, owns_table, std::move(names), group_.info().timeout);
  for (const DividedParameter& parameter : list_) {
    parameter.source->gatherer = gatherer_;
  }
}

const DividedParameter* DividedParameters::find(const at::Tensor& whole) const {
  const auto found = std::find_if(
      list_.begin(), list_.end(), [&](const auto& entry) { return entry.whole.is_same(whole); });
  return found == list_.end() ? nullptr : &*found;
}

const DividedParameter* DividedParameters::find(const std::string& name) const {
  const auto found = std::find_if(
      list_.begin(), list_.end(), [&](const auto& entry) { return entry.name == name; });
  return found == list_.end() ? nullptr : &*found;
}

at::Tensor DividedParameters::part_of(const DividedParameter& parameter, const at::Tensor& whole)
    const {
  const at::NoGradGuard no_grad;
  const at::Tensor flat = whole.detach().reshape({-1});
  const std::int64_t begin = std::min(parameter.per_rank * group_.rank(), flat.numel());
  const std::int64_t count = std::min(parameter.per_rank, flat.numel() - begin);
  at::Tensor part = at::zeros({parameter.per_rank}, flat.options());
  part.narrow(0, 0, count).copy_(flat.narrow(0, begin, count));
  return part;
}

at::Tensor DividedParameters::whole_of(const DividedParameter& parameter, const at::Tensor& part)
    const {
  const at::NoGradGuard no_grad;
  const at::Tensor given = part.detach().contiguous();
  at::Tensor flat = at::empty({parameter.per_rank * group_.size()}, given.options());
  group_.all_gather(flat, given);
  return flat.narrow(0, 0, parameter.whole.numel()).view(parameter.whole.sizes()).clone();
}

void DividedParameters::before_writing() {
  if (gatherer_ != nullptr) {
    gatherer_->pause();
  }
  group_.barrier();
  if (gatherer_ != nullptr) {
    gatherer_->forget();
  }
}

void DividedParameters::after_writing() {
  // A graph that was recorded with the values before must not go on with these.
  for (const DividedParameter& parameter : list_) {
    parameter.whole.unsafeGetTensorImpl()->bump_version();
  }
  group_.barrier();
  if (gatherer_ != nullptr) {
    gatherer_->go_on();
  }
}

void DividedParameters::check_handles() const {
  for (const DividedParameter& parameter : list_) {
    if (!is_parted(parameter.whole)) {
      throw UserError(
          str("the parameter '",
              parameter.name,
              "' was given other memory (set_data, to()), but its numbers are in the parts that ",
              group_.size(),
              " ranks keep (sharded_data_parallel_degree); convert the module before the "
              "DistributedModel is made, or use model.load_state_dict"));
    }
  }
}

} // namespace tessera::sharding
