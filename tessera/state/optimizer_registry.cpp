#include "tessera/state/optimizer_registry.h"

#include <list>
#include <mutex>
#include <sstream>
#include <typeinfo>

#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>

namespace tessera::state {

namespace detail {

namespace optim = torch::optim;

template <typename Visitor>
void visit_fields(optim::SGDOptions& options, Visitor& visit) {
  visit("lr", options.lr());
  visit("momentum", options.momentum());
  visit("dampening", options.dampening());
  visit("weight_decay", options.weight_decay());
  visit("nesterov", options.nesterov());
}

template <typename Visitor>
void visit_fields(optim::SGDParamState& state, Visitor& visit) {
  visit("momentum_buffer", state.momentum_buffer());
}

template <typename Options, typename Visitor>
void visit_adam_options(Options& options, Visitor& visit) {
  visit("lr", options.lr());
  visit("betas", options.betas());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("amsgrad", options.amsgrad());
}

template <typename State, typename Visitor>
void visit_adam_state(State& state, Visitor& visit) {
  visit("step", state.step());
  visit("exp_avg", state.exp_avg());
  visit("exp_avg_sq", state.exp_avg_sq());
  visit("max_exp_avg_sq", state.max_exp_avg_sq());
}

template <typename Visitor>
void visit_fields(optim::AdamOptions& options, Visitor& visit) {
  visit_adam_options(options, visit);
}

template <typename Visitor>
void visit_fields(optim::AdamParamState& state, Visitor& visit) {
  visit_adam_state(state, visit);
}

template <typename Visitor>
void visit_fields(optim::AdamWOptions& options, Visitor& visit) {
  visit_adam_options(options, visit);
}

template <typename Visitor>
void visit_fields(optim::AdamWParamState& state, Visitor& visit) {
  visit_adam_state(state, visit);
}

template <typename Visitor>
void visit_fields(optim::AdagradOptions& options, Visitor& visit) {
  visit("lr", options.lr());
  visit("lr_decay", options.lr_decay());
  visit("weight_decay", options.weight_decay());
  visit("initial_accumulator_value", options.initial_accumulator_value());
  visit("eps", options.eps());
}

template <typename Visitor>
void visit_fields(optim::AdagradParamState& state, Visitor& visit) {
  visit("sum", state.sum());
  visit("step", state.step());
}

template <typename Visitor>
void visit_fields(optim::RMSpropOptions& options, Visitor& visit) {
  visit("lr", options.lr());
  visit("alpha", options.alpha());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("momentum", options.momentum());
  visit("centered", options.centered());
}

template <typename Visitor>
void visit_fields(optim::RMSpropParamState& state, Visitor& visit) {
  visit("step", state.step());
  visit("square_avg", state.square_avg());
  visit("momentum_buffer", state.momentum_buffer());
  visit("grad_avg", state.grad_avg());
}

void refuse_unknown_fields(const Fields& fields, std::size_t used) {
  if (fields.size() == used) {
    return;
  }
  std::string names;
  for (const auto& [name, value] : fields) {
    names += (names.empty() ? "" : ", ") + name;
  }
  throw CheckpointError(str("of the fields ", names, " only ", used, " are known"));
}

Fields fields_from_archive(const std::function<void(torch::serialize::OutputArchive&)>& serialize) {
  torch::serialize::OutputArchive output;
  serialize(output);
  std::stringstream stream;
  output.save_to(stream);
  torch::serialize::InputArchive input;
  input.load_from(stream);
  Fields fields;
  for (const auto& name : input.keys()) {
    c10::IValue value;
    if (input.try_read(name, value) && !value.isNone()) {
      fields[name] = value;
    }
  }
  return fields;
}

void fields_to_archive(
    const Fields& fields,
    const std::function<void(torch::serialize::InputArchive&)>& serialize) {
  torch::serialize::OutputArchive output;
  for (const auto& [name, value] : fields) {
    if (value.isTensor()) {
      output.write(name, value.toTensor());
    } else {
      output.write(name, value);
    }
  }
  std::stringstream stream;
  output.save_to(stream);
  torch::serialize::InputArchive input;
  input.load_from(stream);
  serialize(input);
}

} // namespace detail

namespace {

struct Registry {
  std::mutex mutex;
  std::list<OptimizerCodec> codecs; // addresses stay
};

template <typename State, typename Options>
void add_own(Registry& registry, const char* kind) {
  registry.codecs.push_back(make_optimizer_codec<State, Options>(kind, true));
}

Registry& registry() {
  namespace optim = torch::optim;
  static Registry* all = [] {
    auto* made = new Registry; // never destroyed: used by other statics
    add_own<optim::SGDParamState, optim::SGDOptions>(*made, "SGD");
    add_own<optim::AdamParamState, optim::AdamOptions>(*made, "Adam");
    add_own<optim::AdamWParamState, optim::AdamWOptions>(*made, "AdamW");
    add_own<optim::AdagradParamState, optim::AdagradOptions>(*made, "Adagrad");
    add_own<optim::RMSpropParamState, optim::RMSpropOptions>(*made, "RMSprop");
    return made;
  }();
  return *all;
}

} // namespace

void register_optimizer_codec(OptimizerCodec codec) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (const auto& known : all.codecs) {
    if (known.kind == codec.kind || known.options_type == codec.options_type) {
      throw ConfigError(
          str("register_optimizer_state(\"",
              codec.kind,
              "\"): this name or its options type is taken by ",
              known.kind,
              "; register each kind once, with options of its own"));
    }
  }
  all.codecs.push_back(std::move(codec));
}

const OptimizerCodec* find_codec(const torch::optim::OptimizerOptions& options) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (const auto& codec : all.codecs) {
    if (codec.options_type == typeid(options)) {
      return &codec;
    }
  }
  return nullptr;
}

const OptimizerCodec& codec_of(const torch::optim::Optimizer& optimizer) {
  const auto& defaults = optimizer.defaults();
  const std::type_info& options = typeid(defaults);
  if (options == typeid(torch::optim::LBFGSOptions)) {
    throw CheckpointError(
        "the state of LBFGS cannot be saved by parameter: its history is one "
        "vector over all parameters of a process; save the model without "
        "the optimizer, or use another optimizer");
  }
  if (const OptimizerCodec* codec = find_codec(defaults)) {
    return *codec;
  }
  throw CheckpointError(
      str("the optimizer with options ",
          c10::demangle(options.name()),
          " is not known to checkpoints; call "
          "tessera::state::register_optimizer_state<State, Options>"
          "(name) at the start of the program"));
}

} // namespace tessera::state
