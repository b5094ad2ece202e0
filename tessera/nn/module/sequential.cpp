#include "tessera/nn/module/sequential.h"

#include "tessera/base/error.h"

namespace tessera::nn {

namespace {

const CallKey& range_key() {
  return tessera::detail::ModuleCall<SequentialImpl, torch::Tensor>::key;
}

} // namespace

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
  c10::IValue values = args;
  int at = first;
  while (at < last) {
    Interceptor* interceptor = current_interceptor();
    const int end =
        interceptor == nullptr ? at + 1 : std::min(last, interceptor->range_end(*this, at));
    if (end > at + 1) {
      values = interceptor->call(*this, range_key(), values, at, end);
      at = end;
    } else {
      values = call_child(layers_[at], values);
      ++at;
    }
  }
  return values;
}

c10::IValue SequentialImpl::result_of(const c10::IValue& args) {
  const auto& elements = args.toTupleRef().elements();
  TESSERA_CHECK(elements.size() == 1, "a Sequential without children was run");
  return elements[0];
}

} // namespace tessera::nn
