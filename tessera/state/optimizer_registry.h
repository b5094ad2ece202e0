#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <typeindex>
#include <utility>

#include <torch/optim/optimizer.h>

#include "tessera/base/error.h"
#include "tessera/state/fields.h"
#include "tessera/tensor/value.h"

namespace tessera::state {

/// How one kind of optimizer turns its state and options into fields and back.
struct OptimizerCodec {
  using State = torch::optim::OptimizerParamState;
  using Options = torch::optim::OptimizerOptions;

  std::string kind;
  std::type_index state_type = typeid(void);
  std::type_index options_type = typeid(void);
  /// Every state tensor with a dimension has the shape of its parameter.
  bool state_has_parameter_shape = false;
  /// Options name their members (visit_fields); others go through an archive in memory, which costs
  /// too much for every step.
  bool options_are_visited = false;
  std::function<Fields(const State&)> state_fields;
  std::function<std::unique_ptr<State>(const Fields&)> make_state;
  std::function<Fields(const Options&)> option_fields;
  std::function<void(Options&, const Fields&)> set_options;
};

/// Throws: ConfigError when another optimizer has this name or options type.
/// Threads: any thread, before checkpoints are made.
void register_optimizer_codec(OptimizerCodec codec);

namespace detail {

/// Called by visit_fields with each member of a state or of options.
struct WriteFields {
  Fields& fields;
  template <typename T>
  void operator()(const char* name, const T& value) {
    c10::IValue packed = tessera::pack(value);
    if (!packed.isNone()) {
      fields[name] = std::move(packed);
    }
  }
};

/// What has no field becomes T(): an undefined tensor, an empty optional.
/// Throws: CheckpointError for a number that is missing.
struct ReadFields {
  const Fields& fields;
  std::size_t used = 0;
  template <typename T>
  void operator()(const char* name, T& value) {
    const auto found = fields.find(name);
    if (found != fields.end()) {
      value = tessera::unpack<T>(found->second);
      ++used;
    } else if (tessera::pack(T()).isNone()) {
      value = T();
    } else {
      throw CheckpointError(str("the field \"", name, "\" is missing"));
    }
  }
};

void refuse_unknown_fields(const Fields& fields, std::size_t used);

// Through the type's own serialize: one archive in memory for each call.
Fields fields_from_archive(const std::function<void(torch::serialize::OutputArchive&)>& serialize);
void fields_to_archive(
    const Fields& fields,
    const std::function<void(torch::serialize::InputArchive&)>& serialize);

template <typename T>
concept HasVisitableFields = requires(T& object, WriteFields& write, ReadFields& read) {
  visit_fields(object, write);
  visit_fields(object, read);
};

template <typename T>
Fields to_fields(const T& object) {
  if constexpr (HasVisitableFields<T>) {
    Fields fields;
    WriteFields write{fields};
    // One visit_fields serves both ways; writing changes nothing.
    visit_fields(const_cast<T&>(object), write);
    return fields;
  } else {
    return fields_from_archive([&](auto& archive) { object.serialize(archive); });
  }
}

template <typename T>
void from_fields(const Fields& fields, T& object) {
  if constexpr (HasVisitableFields<T>) {
    ReadFields read{fields};
    visit_fields(object, read);
    refuse_unknown_fields(fields, read.used);
  } else {
    fields_to_archive(fields, [&](auto& archive) { object.serialize(archive); });
  }
}

} // namespace detail

/// The codec of an optimizer whose state and options name their members, see
/// `register_optimizer_state`.
template <typename State, typename Options>
OptimizerCodec make_optimizer_codec(std::string kind, bool state_has_parameter_shape) {
  static_assert(std::is_base_of_v<OptimizerCodec::State, State>);
  static_assert(std::is_base_of_v<OptimizerCodec::Options, Options>);
  OptimizerCodec codec;
  codec.kind = std::move(kind);
  codec.state_type = typeid(State);
  codec.options_type = typeid(Options);
  codec.state_has_parameter_shape = state_has_parameter_shape;
  codec.options_are_visited = detail::HasVisitableFields<Options>;
  codec.state_fields = [](const OptimizerCodec::State& state) {
    return detail::to_fields(static_cast<const State&>(state));
  };
  codec.make_state = [](const Fields& fields) {
    auto state = std::make_unique<State>();
    detail::from_fields(fields, *state);
    return state;
  };
  codec.option_fields = [](const OptimizerCodec::Options& options) {
    return detail::to_fields(static_cast<const Options&>(options));
  };
  codec.set_options = [](OptimizerCodec::Options& options, const Fields& fields) {
    detail::from_fields(fields, static_cast<Options&>(options));
  };
  return codec;
}

/// Makes an optimizer of the user's own known to checkpoints:
///
///     state::register_optimizer_state<LionState, LionOptions>("Lion");
///
/// `State` and `Options` derive from libtorch's OptimizerParamState and
/// OptimizerOptions, and either have both `serialize` members as libtorch's
/// do, or, much faster, a function beside them that names their members:
///
///     template <typename Visitor>
///     void visit_fields(LionState& state, Visitor& visit) {
///       visit("momentum", state.momentum);
///     }
///
/// `state_has_parameter_shape` lets loading check shapes, and a checkpoint of
/// sliced parameters divide the state as its parameter.
/// Throws: ConfigError when the name or `Options` is taken already.
template <typename State, typename Options>
void register_optimizer_state(std::string kind, bool state_has_parameter_shape = true) {
  register_optimizer_codec(
      make_optimizer_codec<State, Options>(std::move(kind), state_has_parameter_shape));
}

/// Returns the codec of the optimizers that have such options, nullptr where there is none.
const OptimizerCodec* find_codec(const torch::optim::OptimizerOptions& options);

/// The codec of an optimizer. Throws: CheckpointError when there is none.
const OptimizerCodec& codec_of(const torch::optim::Optimizer& optimizer);

} // namespace tessera::state
