#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "tessera/sharding/gatherer.h"

/// Parameters and gradients whose numbers several ranks hold together. Their handles stay in the
/// script's hands with shape and dtype but without memory, and every operator on one is seen,
/// whoever calls it: a module that calls pass the library by, an autograd node, the script itself.
namespace tessera::sharding {

/// Where the numbers of a divided parameter lie: its parts one after the other, in memory that the
/// ranks of a shard group map. Where these are on several nodes, the parts of other nodes are there
/// for as long as a gatherer keeps them. Values may not change while one of the ranks computes with
/// them: whoever writes parts waits for all ranks before and after.
struct Source {
  std::string name;
  std::shared_ptr<const void> memory; // keeps `numbers`
  std::byte* numbers = nullptr; // of the whole parameter, flattened
  std::shared_ptr<Gatherer> gatherer; // nullptr where all parts are on this node
  int index = 0; // of the parameter, for the gatherer
  int degree = 1;
};

/// Gradients of one parameter on this rank.
struct GradientSlot {
  std::string name; // of the parameter
  at::Tensor part; // of the parameter; its grad is the average over the replicas, unless `zero`
  /// The average is zero and takes no memory, since a step that reaches the parameter needs none of
  /// it; the grad of `part` is undefined then. An optimizer is given the zeros (fill_zero).
  bool zero = false;
  /// Of this part, over the ranks of the shard group, not averaged yet; of f16 in f32, because it
  /// is not scaled and may be out of f16's range.
  at::Tensor sum;
  bool reached = false; // some rank has added to what `sum` holds
  at::Tensor extra; // of the whole parameter, from a backward outside of steps
  bool f32_sums = false; // gradients of a 16-bit parameter are f32
  bool active() const {
    return zero || part.grad().defined() || (reached && sum.defined()) || extra.defined();
  }
};

/// Makes the average zero, or undefined where there is none, and gives its memory back.
void set_to_zero(GradientSlot& slot);
/// Makes a tensor of a zero average that has none.
void fill_zero(GradientSlot& slot);

/// Takes the parameter's memory away. From now on an operator that reads the parameter, or a view
/// of it, finds the memory of `source` there for its time, gathered where parts of it are on other
/// nodes. No rank's script is waited for, so a rank may read what the others never do. An operator
/// that writes to it is a UserError. Between operators the pointer of its data is null, so libtorch
/// throws where code asks for it.
void make_parted(const at::Tensor& parameter, std::shared_ptr<const Source> source);
/// Returns whether it is so still: false after set_data.
bool is_parted(const at::Tensor& parameter);

/// Returns what stands for the whole gradient in the script's hands: it can be set to zero, scaled
/// and added to; an operator that reads it is a UserError.
at::Tensor gradient_handle(const at::Tensor& parameter, std::shared_ptr<GradientSlot> slot);
bool is_gradient_handle(const at::Tensor& tensor);

} // namespace tessera::sharding
