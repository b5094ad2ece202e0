#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::optim {

/// A tensor whose norm is asked for, and the parameter of the optimizer whose shape it has.
struct NormOf {
  at::Tensor parameter;
  at::Tensor tensor;
};

/// L2 norms.
struct Norms {
  std::vector<double> each; // in the order that was asked for
  double all = 0; // of everything that any rank has asked for
};

/// Returns the norms of whole tensors, of which a rank has its parts: those of the parameters that
/// several ranks divide, or that ranks hold together. Collective over the world where the model is
/// not whole on every rank: every rank asks equally often, also for nothing.
using WholeNorms = std::function<Norms(const std::vector<NormOf>&)>;

/// An optimizer whose update of a parameter needs a norm of all of it.
/// Threads: step thread only.
class NeedsNorms {
 public:
  virtual ~NeedsNorms() = default;
  /// From a DistributedOptimizer, for its step; nullptr: this process holds the whole.
  void take_norms_from(WholeNorms norms) {
    norms_ = std::move(norms);
  }

 protected:
  /// Throws: UserError for a sparse tensor, on every rank.
  Norms norms_of(const std::vector<NormOf>& asked) const;

 private:
  WholeNorms norms_;
};

/// Says of an optimizer of a script's own that a parameter's update depends on that parameter alone
/// and that its state is found by the parameter, so that a rank may update the part of a model that
/// it holds: no warning asks for it.
class UpdatesByParameter {
 public:
  virtual ~UpdatesByParameter() = default;
};

/// Returns the root of a sum that does not depend on the order of the numbers.
double root_of_sum(std::vector<double> squares);

/// What is wrong with a sparse tensor, "" for another one.
std::string sparse_problem(const NormOf& of);

/// Returns the sum of squares of the tensors' elements, in f64: those of 16 bits are squared in f32
/// at least, those of f64 in f64. Of a sparse tensor its values. Not collective.
double sum_of_squares(const std::vector<at::Tensor>& tensors);

} // namespace tessera::optim
