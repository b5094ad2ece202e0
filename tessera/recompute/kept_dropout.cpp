#include "tessera/recompute/kept_dropout.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/autograd/node_data.h"
#include "tessera/base/error.h"
#include "tessera/random/mask.h"
#include "tessera/random/stream.h"
#include "tessera/recompute/dropout_bits.h"
#include "tessera/recompute/kept_products.h"
#include "tessera/tensor/random_state.h"

namespace tessera::recompute {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct TimesMask : Function<TimesMask> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& bits) {
    context->set_materialize_grads(false);
    context->save_for_backward({bits});
    return times_mask(x, bits);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    require_first_order("dropout with a mask that is kept");
    if (!gradients[0].defined()) {
      return variable_list(2);
    }
    const at::Tensor bits = context->get_saved_variables()[0];
    const at::Tensor& gradient = gradients[0];
    if (gradient.is_contiguous()) {
      return {times_mask(gradient, bits), at::Tensor()};
    }
    // The product of tensors lies in memory as its first factor does.
    const auto like = gradient.options();
    return {gradient * times_mask(at::ones(gradient.sizes(), like), bits), at::Tensor()};
  }
};

bool can_be_kept(const at::Tensor& x) {
  const bool at_work = masks_are_kept() || masks_are_given();
  return at_work && x.device().is_cpu() && x.is_contiguous() && x.numel() > 0 &&
         x.is_floating_point();
}

} // namespace

MaskSource torch_mask(at::IntArrayRef sizes, const at::TensorOptions& options, double probability) {
  if (random::Stream* stream = random::current()) {
    const auto draw = [=, sizes = sizes.vec()] {
      const random::Place place = random::own_place(*stream, sizes.front(), "dropout");
      return random::dropout_mask(sizes, options, probability, random::next_use(*stream), place);
    };
    return {draw, [stream] { random::next_use(*stream); }};
  }
  const auto draw = [=, sizes = sizes.vec()] {
    return at::empty(sizes, options).bernoulli_(1 - probability);
  };
  return {draw, {}, /*takes_from_generator=*/true, /*divisor=*/1 - probability};
}

at::Tensor kept_bits(std::int64_t elements, const MaskSource& source) {
  const KeptMask given = given_mask();
  if (!given.bits.defined()) {
    KeptMask mask{bits_of_mask(source.draw(), source.divisor), at::Tensor()};
    if (source.takes_from_generator) {
      mask.generator = RandomState::capture().to_bytes();
    }
    keep_mask(mask);
    return mask.bits;
  }
  if (!are_bits_of(given.bits, elements)) {
    throw UserError(
        "a dropout found the mask of a tensor of other sizes when its region was recomputed: the "
        "region's flow depends on data that has changed; take its activation checkpointing away");
  }
  if (given.generator.defined()) {
    // What is drawn behind it must be the same in this run, which does not draw the mask.
    RandomState::from_bytes(given.generator).restore();
  }
  if (source.skip) {
    source.skip();
  }
  return given.bits;
}

at::Tensor kept_dropout(const at::Tensor& x, const MaskSource& source) {
  if (can_be_kept(x)) {
    return TimesMask::apply(x, kept_bits(x.numel(), source));
  }
  const at::Tensor mask = source.draw();
  return x * (source.divisor == 1 ? mask : mask / source.divisor);
}

at::Tensor kept_dropout(const at::Tensor& x, double probability) {
  const bool draws = probability > 0 && probability < 1 && x.dim() > 0;
  return draws && can_be_kept(x) ? kept_dropout(x, torch_mask(x.sizes(), x.options(), probability))
                                 : at::dropout(x, probability, /*train=*/true);
}

} // namespace tessera::recompute
