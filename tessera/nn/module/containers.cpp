#include "tessera/nn/module/containers.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/nn/module/recomputed_call.h"

namespace tessera::nn {

namespace {

const CallKey& range_key() {
  return tessera::detail::ModuleCall<SequentialImpl, torch::Tensor>::key;
}

} // namespace

std::shared_ptr<torch::nn::Module> SequentialImpl::clone(
    const tessera::TorchOptional<torch::Device>& device) const {
  auto copy = std::make_shared<SequentialImpl>();
  mark_interceptable(copy);
  const auto named = named_children();
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Child child = layers_[i];
    child.module = child.module->clone(device);
    mark_interceptable(child.module);
    copy->register_module(named[i].key(), child.module);
    copy->layers_.push_back(std::move(child));
  }
  return copy;
}

c10::IValue SequentialImpl::call_child(const Child& child, const c10::IValue& args) {
  // A predecessor's tuple is one argument unless the child takes its elements.
  c10::IValue values = args;
  const auto& elements = args.toTupleRef().elements();
  if (static_cast<int>(elements.size()) != child.arity) {
    TESSERA_CHECK(!elements.empty());
    const bool spread = elements.size() == 1 && elements[0].isTuple() &&
                        static_cast<int>(elements[0].toTupleRef().elements().size()) == child.arity;
    if (!spread) {
      throw ShapeError(
          str("Sequential: ",
              type_name(*child.module),
              " takes ",
              child.arity,
              " arguments, its predecessor gave ",
              elements.size()));
    }
    values = elements[0];
  }
  torch::nn::Module& target = replacement_of(*child.module);
  Interceptor* interceptor = current_interceptor();
  const c10::IValue result = interceptor != nullptr && interceptor->wants(target)
                                 ? interceptor->call(target, *child.key, values, -1, -1)
                                 : find_invoker(child.key->hash)(target, values, -1, -1);
  return tessera::detail::make_tuple_value({result});
}

c10::IValue SequentialImpl::run_range(const c10::IValue& args, int first, int last) {
  TESSERA_CHECK(
      first >= 0 && first <= last && last <= static_cast<int>(layers_.size()),
      "range ",
      first,
      " to ",
      last,
      " of ",
      layers_.size(),
      " children");
  const auto how = recomputation_of(*this);
  c10::IValue values = args;
  int at = first;
  while (at < last) {
    Interceptor* interceptor = current_interceptor();
    if (how) {
      const int here = interceptor == nullptr ? last : interceptor->local_end(*this, at);
      if (here > at) {
        values = run_recomputed_range(*how, values, at, std::min(here, last));
        at = std::min(here, last);
        continue;
      }
    }
    const int end =
        interceptor == nullptr ? at + 1 : std::min(last, interceptor->range_end(*this, at));
    // A child that is alone on its rank is called as a range too when it is recomputed: the
    // Sequential carries the flag, the child does not.
    if (end > at + 1 || how) {
      values = interceptor->call(*this, range_key(), values, at, end);
      at = end;
    } else {
      values = call_child(layers_[at], values);
      ++at;
    }
  }
  return values;
}

c10::IValue SequentialImpl::run_recomputed_range(
    const Recomputation& how,
    const c10::IValue& args,
    int first,
    int last) {
  c10::IValue values = args;
  for (int at = first; at < last;) {
    const int end = how.group < last - at ? at + how.group : last;
    std::vector<std::shared_ptr<torch::nn::Module>> modules;
    for (int i = at; i < end; ++i) {
      modules.push_back(replacement_of(*layers_[i].module).shared_from_this());
    }
    const auto run = [this, at, end](const c10::IValue& given) {
      c10::IValue result = given;
      for (int i = at; i < end; ++i) {
        result = call_child(layers_[i], result);
      }
      return result;
    };
    const std::string name =
        str(end == at + 1 ? str("child ", at) : str("children ", at, " to ", end - 1),
            " of ",
            how.path.empty() ? "a Sequential" : str("module '", how.path, "'"));
    values = run_recomputed(how, name, modules, run, values);
    at = end;
  }
  return values;
}

c10::IValue SequentialImpl::result_of(const c10::IValue& args) {
  const auto& elements = args.toTupleRef().elements();
  TESSERA_CHECK(elements.size() == 1, "a Sequential without children was run");
  return elements[0];
}

} // namespace tessera::nn
