#include "tessera/graph/operator_work.h"

#include "tessera/base/error.h"

namespace tessera::graph {

ForwardWork work_of_batch(const ForwardWork& one, const ForwardWork& two, double batch) {
  if (one.size() != two.size()) {
    throw PlanError(
        str("the forward of one sample runs ",
            one.size(),
            " operators, that of two samples ",
            two.size(),
            "; a model whose operators depend on the batch cannot be priced"));
  }
  ForwardWork result = one;
  for (std::size_t i = 0; i < one.size(); ++i) {
    if (one[i].name != two[i].name || one[i].module != two[i].module) {
      throw PlanError(
          str("operator ",
              i,
              " of the forward is ",
              one[i].name,
              " with one sample and ",
              two[i].name,
              " with two; a model whose operators depend on the batch cannot "
              "be priced"));
    }
    // An operator may return a view for one sample and a copy for two or more.
    result[i].kind = batch > 1 ? two[i].kind : one[i].kind;
    const auto at_batch = [&](double OperatorWork::*size) {
      result[i].*size = one[i].*size + (two[i].*size - one[i].*size) * (batch - 1);
    };
    for (const auto size :
         {&OperatorWork::count,
          &OperatorWork::rows,
          &OperatorWork::inner,
          &OperatorWork::columns,
          &OperatorWork::elements,
          &OperatorWork::bytes,
          &OperatorWork::kept_bytes,
          &OperatorWork::gradient_bytes,
          &OperatorWork::freed_bytes}) {
      at_batch(size);
    }
    for (std::size_t b = 0; b < result[i].buffer_bytes.size(); ++b) {
      const double of_one = one[i].buffer_bytes[b];
      result[i].buffer_bytes[b] = of_one + (two[i].buffer_bytes[b] - of_one) * (batch - 1);
    }
  }
  return result;
}

} // namespace tessera::graph
