#include "tessera/sharding/divided_parameters.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/comm/shared_memory/shared_memory.h"
#include "tessera/sharding/parted_tensor.h"

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

// Keeps the window for as long as the tensor lives.
at::Tensor tensor_in(
    const std::shared_ptr<comm::Window>& window,
    std::byte* at,
    std::int64_t elements,
    const at::Tensor& like) {
  return at::from_blob(
      at, {elements}, [window](void*) {}, like.options().requires_grad(false));
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

DividedParameters::DividedParameters(
    comm::ProcessGroup& group,
    const NamedTensors& parameters,
    const Make& make)
    : group_(group) {
  if (parameters.empty()) {
    return;
  }
  comm::SharedMemory* memory = group.shared_memory();
  if (memory == nullptr) {
    throw ConfigError(
        str("sharded_data_parallel_degree is ",
            group.size(),
            ", but the ranks of ",
            group.info().text(),
            " share no memory, by which they read each other's parts; choose a degree whose shard "
            "groups lie inside a node, and leave same_node_backend \"auto\""));
  }
  const at::NoGradGuard no_grad;
  const int degree = group.size();
  std::size_t bytes = 0;
  for (const auto& [name, tensor] : parameters) {
    bytes += bytes_of_parts(tensor, degree);
  }
  // A parameter lies across the regions of the ranks, which follow one another.
  const std::shared_ptr<comm::Window> window =
      memory->make_window((bytes + degree - 1) / static_cast<std::size_t>(degree));
  std::byte* numbers = window->region(0);
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
    auto source = std::make_shared<Source>();
    source->name = name;
    source->window = window;
    source->numbers = numbers;
    source->degree = degree;
    const std::size_t part_bytes = made.per_rank * tensor.element_size();
    made.part = tensor_in(window, numbers + group.rank() * part_bytes, made.per_rank, tensor);
    made.part.copy_(part_of(made, tensor));
    made.part.set_requires_grad(tensor.requires_grad());
    numbers += bytes_of_parts(tensor, degree);
    made.source = source;
    make_parted(tensor, std::move(source));
  }
  after_writing();
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
  group_.barrier();
}

void DividedParameters::after_writing() {
  // A graph that was recorded with the values before must not go on with these.
  for (const DividedParameter& parameter : list_) {
    parameter.whole.unsafeGetTensorImpl()->bump_version();
  }
  group_.barrier();
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
