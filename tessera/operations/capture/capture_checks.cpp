// What a forward must not have done, and whether it is the recorded one.
#include <torch/csrc/autograd/variable.h>

#include "tessera/base/error.h"
#include "tessera/nn/module/operation_scopes.h"
#include "tessera/operations/capture/capture.h"
#include "tessera/operations/capture/shape_tensor.h"

namespace tessera::operations {

/// The operators run after the forward, which must have left to them what it gave.
void Capture::check_given() const {
  for (std::size_t i = 0; i < given_.size(); ++i) {
    if (versions_[i] >= 0 && static_cast<std::int64_t>(given_[i]._version()) != versions_[i]) {
      throw UserError(
          str("partition_mode \"operations\": the model's forward changes a tensor in place that a "
              "recorded operator reads, and these run after the forward; make a new tensor, or "
              "register it as a buffer",
              kOtherMode));
    }
  }
}

// Gradients of such functions and hooks are no operators.
void Capture::check_autograd() const {
  for (const at::Tensor& tensor : tensors_) {
    if (!shape_only(tensor)) {
      continue;
    }
    if (const auto function = tensor.grad_fn()) {
      throw UserError(
          str("partition_mode \"operations\": the model's forward calls the autograd function ",
              function->name(),
              ", whose backward is not among the recorded operators",
              kOtherMode));
    }
    if (!torch::autograd::impl::hooks(tensor).empty()) {
      throw UserError(
          str("partition_mode \"operations\": the model's forward registers a hook on a tensor, "
              "which is not among the recorded operators",
              kOtherMode));
    }
  }
}

void Capture::check_difference(const Call& call) const {
  if (calls_ >= expected_->calls.size()) {
    throw UserError(
        str("partition_mode \"operations\": ",
            here(call.op),
            ", is one more than the recorded step had, whose arguments had the same shapes; the "
            "forward has to call the same operators whenever they have",
            kOtherMode));
  }
  const Call& known = expected_->calls[calls_];
  const bool other_operator = known.op != call.op || known.overload != call.overload;
  if (!other_operator && known.no_grad == call.no_grad && known.arguments == call.arguments) {
    check_scopes(call);
    return;
  }
  throw UserError(
      str("partition_mode \"operations\": ",
          here(call.op),
          other_operator ? str(", was ", name_of_call(*expected_, calls_), ",")
                         : std::string(", had other arguments"),
          " in the recorded step, whose arguments had the same shapes; the forward has to call the "
          "same operators with the same arguments whenever they have",
          kOtherMode));
}

void Capture::check_scopes(const Call& call) const {
  const nn::OperatorWish wish = nn::RecordedForward::wish();
  if (wish != expected_->wishes[calls_]) {
    throw UserError(str(
        "partition_mode \"operations\": ",
        here(call.op),
        ", is called ",
        nn::text_of(wish),
        ", and was ",
        nn::text_of(expected_->wishes[calls_]),
        " in the recorded step, whose arguments had the same shapes; scopes have to be the same "
        "whenever they have",
        kOtherMode));
  }
}

void Capture::check_length() const {
  if (calls_ < expected_->calls.size()) {
    throw UserError(
        str("partition_mode \"operations\": the model's forward ended before ",
            name_of_call(*expected_, calls_),
            " of the recorded step, whose arguments had the same shapes",
            kOtherMode));
  }
}

} // namespace tessera::operations
