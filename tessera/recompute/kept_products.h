#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/recompute/version.h"

namespace tessera::half {
struct NormRows;
}

/// Selective recomputation: a region keeps the results of its products with weights, and its second
/// run computes the cheap rest, such as norms, activation functions, dropout and attention.
///
/// A product asks given_product() for its result. Where there is one, this is the second run of
/// such a region: it computes nothing, moves nothing for its result, and records what its backward
/// needs as ever. Otherwise it computes the result and passes it to keep_product().
/// Threads: as recompute::run.
namespace tessera::recompute {

/// Returns the result of this product, which is the one that the first run kept at this place, with
/// a history of its own; undefined outside of a second run that was given products. Throws:
/// UserError when the first run had no product here, or what it kept was changed in place.
at::Tensor given_product();

/// Keeps `result` for the second run, in the first run of a region that keeps products; else does
/// nothing.
void keep_product(const at::Tensor& result);

/// Returns whether given_product() would return a result.
bool product_is_given();

/// Returns the result of `compute`, or the kept one.
template <typename Compute>
at::Tensor product(const Compute& compute) {
  at::Tensor result = given_product();
  if (!result.defined()) {
    result = compute();
    keep_product(result);
  }
  return result;
}

/// A mask of dropout that a region that keeps products keeps beside them (kept_dropout.h), also for
/// what it returns.
struct KeptMask {
  at::Tensor bits;
  /// The default generator's state behind the mask (tensor/random_state.h); undefined: the mask was
  /// not drawn from it, or the second run does not draw the numbers of the first.
  at::Tensor generator;
};
bool masks_are_kept(); // in the first run of such a region
bool masks_are_given(); // in its second one
/// In that first run; else does nothing.
void keep_mask(const KeptMask& mask);
/// The mask of this place, in that second run; else an undefined one. Throws: as given_product().
KeptMask given_mask();

/// The same of a layer norm's rows, whose mean and deviation the second run takes over.
void keep_norm_rows(const half::NormRows& rows);
half::NormRows given_norm_rows();

/// A product x w + bias of libtorch whose value is `given`; its gradients have the bits of
/// libtorch's own.
/// Shapes: given_Ro, x_Ri, weight_io (any strides), bias_o or undefined -> y_Ro.
at::Tensor kept_linear(
    const at::Tensor& given,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias);

/// While it lives, what this thread calls is, but for sums and dropout, what the forward of
/// `module` returns, and `of` is given that result; with nullptr, or in a region of more than this
/// module, this is not assumed.
class ReturnedCall {
 public:
  explicit ReturnedCall(const void* module);
  ~ReturnedCall();
  ReturnedCall(const ReturnedCall&) = delete;
  ReturnedCall& operator=(const ReturnedCall&) = delete;

  /// Returns `result`, which the forward returns as it is.
  at::Tensor of(at::Tensor result) const;

 private:
  bool previous_;
  bool previously_said_;
};

/// While it lives, a product of this thread is, but for sums and dropout, what its call returns.
/// Where that is a ReturnedCall, and the region returns the tensor of that call and none that it
/// makes of it, no backward needs the product's values: the second run of any region has zeros in
/// their place, and none keeps them.
class ReturnedProduct {
 public:
  ReturnedProduct();
  ~ReturnedProduct();
  ReturnedProduct(const ReturnedProduct&) = delete;
  ReturnedProduct& operator=(const ReturnedProduct&) = delete;

 private:
  bool previous_;
  bool previously_said_;
};

/// Returns whether a product of this thread is what its call returns and that call what its module
/// does, whether or not these are a region: for who counts what a recomputation would leave out.
bool product_is_returned();

/// The products of one call of a region and the masks between them, in the order in which they are
/// computed.
class KeptProducts {
 public:
  /// Of `region`, a name for errors that lives as long. Without results only what returned products
  /// look like is kept.
  /// `restores_random`: the second run draws the random numbers of the first.
  KeptProducts(const std::string& region, bool with_results, bool restores_random)
      : region_(region), with_results_(with_results), restores_random_(restores_random) {}

  void keep(const at::Tensor& result);
  void keep_mask(const KeptMask& mask);
  KeptMask next_mask();
  void keep_norm_rows(const half::NormRows& rows);
  half::NormRows next_norm_rows();
  bool with_results() const {
    return with_results_;
  }
  /// Notes what the forward of the region's module returns, and, after the first run, whether that
  /// is what the region returns, beside arguments.
  void returns(const at::Tensor& result);
  void settle(const std::vector<at::Tensor>& results, const std::vector<at::Tensor>& args);
  at::Tensor next();
  bool gives() const;
  bool all_given() const;
  void start_over();

  /// Hand the tensors to a keeper, and take them back.
  std::vector<at::Tensor> hand_over();
  void take_back(std::vector<at::Tensor> results);
  /// Drops all tensors.
  void release();
  /// Returns what this holds in memory. Units: bytes.
  std::size_t held() const;

 private:
  struct Form {
    std::vector<std::int64_t> sizes;
    at::TensorOptions options;
    at::Tensor value; // only where it is needed
    Version version;
  };
  void check(const Version& version) const;
  void keep_result(const at::Tensor& result);
  at::Tensor next_result();
  [[noreturn]] void refuse_more() const;

  enum class Returned { kNotKnown, kNotNeeded, kNeeded };
  const std::string& region_;
  bool with_results_;
  bool restores_random_;
  std::vector<at::Tensor> results_;
  std::vector<Version> versions_; // also while a keeper has the results
  std::vector<Form> returned_;
  std::vector<at::Tensor> told_; // during the first run
  Returned state_ = Returned::kNotKnown;
  std::size_t next_ = 0;
  std::size_t next_returned_ = 0;
};

/// While it lives, this thread runs a region with these products, that of one call of `module`, or,
/// with nullptr, of something else.
class ProductScope {
 public:
  enum class Run { kFirst, kSecond };
  ProductScope(KeptProducts& products, const void* module, Run run);
  ~ProductScope();
  ProductScope(const ProductScope&) = delete;
  ProductScope& operator=(const ProductScope&) = delete;

 private:
  KeptProducts* previous_;
  const void* previous_module_;
  Run previous_run_;
};

} // namespace tessera::recompute
