#include "tessera/train/step_output.h"

namespace tessera {

namespace {

// libtorch joins a list of tensors past those that are nothing at all.
bool is_nothing(at::IntArrayRef sizes) {
  return sizes.size() == 1 && sizes[0] == 0;
}

} // namespace

void StepOutput::check_joinable(const char* asked, std::size_t first_axis) const {
  for (std::size_t i = 1; i < outputs_.size(); ++i) {
    const at::IntArrayRef first = outputs_[0].sizes();
    const at::IntArrayRef other = outputs_[i].sizes();
    if (first_axis > 0 && (is_nothing(first) || is_nothing(other))) {
      continue;
    }
    const std::size_t kept = std::min({first_axis, first.size(), other.size()});
    if (first.size() != other.size() || first.slice(kept) != other.slice(kept)) {
      throw ShapeError(tessera::str(
          asked,
          " of a tensor that the step function returned for each of ",
          outputs_.size(),
          " microbatches: it has shape ",
          other,
          " in microbatch ",
          i,
          " and ",
          first,
          " in microbatch 0; ",
          first_axis == 0 ? "shapes must be equal" : "all axes but the first must be equal",
          ". Read them one by one (outputs(), or result[i] of microbatch i), or bring them to "
          "one shape in the step function (at::constant_pad_nd)"));
    }
  }
}

at::Tensor StepOutput::accumulate(const std::string& method, at::Tensor into) const {
  if (method != "variable" && method != "add_n" && method != "accumulate_n") {
    throw UserError(tessera::str(
        "accumulate: found the method \"",
        method,
        "\"; write \"variable\", \"add_n\" or \"accumulate_n\""));
  }
  if (outputs_.empty()) {
    throw UserError("accumulate of a result without microbatches");
  }
  check_joinable("accumulate", 0);
  const at::Tensor& first = outputs_.front();
  if (!first.is_floating_point() && !first.is_complex()) {
    throw UserError(tessera::str(
        "accumulate of a tensor of ",
        first.dtype().name(),
        ", which has no mean; use reduce_sum(), or convert it in the step function"));
  }
  if (into.defined() && into.sizes() != first.sizes()) {
    throw ShapeError(tessera::str(
        "accumulate: results of shape ",
        first.sizes(),
        " are to be added to a tensor of shape ",
        into.sizes()));
  }
  at::Tensor sum = first.clone();
  for (std::size_t i = 1; i < outputs_.size(); ++i) {
    sum.add_(outputs_[i]);
  }
  sum.div_(static_cast<double>(outputs_.size()));
  return into.defined() ? into.add_(sum) : sum;
}

} // namespace tessera
