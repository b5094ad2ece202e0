#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace tessera::tracer {

struct Operation;

/// Where a tensor lies in its storage.
struct Geometry {
  explicit Geometry(const at::Tensor& tensor);
  bool operator==(const Geometry&) const = default;

  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::int64_t offset;
  at::ScalarType dtype;
};

/// A tensor argument of a recorded operator: a view of a delayed storage as
/// operation `after` left it.
struct TensorRef {
  std::uint64_t storage;
  Geometry geometry;
  std::shared_ptr<Operation> after;
};

/// A result of a recorded operator that made a new storage.
struct ResultRef {
  std::uint64_t storage;
  Geometry geometry;
  std::size_t position; // among the tensors of all results
};

/// A large tensor with memory that a recorded operator reads: not copied, so it
/// must not change until then.
struct WatchedConstant {
  at::Tensor tensor;
  std::int64_t version;
};

/// One operator call whose execution was put off. Operations refer to the
/// earlier ones whose results they need, and nothing refers to later ones: what
/// no tensor needs any more is freed.
struct Operation {
  explicit Operation(const c10::OperatorHandle& op) : op(op) {}
  ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  c10::OperatorHandle op;
  std::uint64_t order = 0; // of all operations of the program
  std::uint64_t seed = 0; // of the random generator during the call
  torch::jit::Stack arguments; // placeholders where a tensor is delayed
  std::vector<WatchedConstant> constants;
  std::vector<TensorRef> inputs; // in the order of the placeholders
  std::vector<ResultRef> results;
};

/// What is known of the memory that delayed tensors share: kept by the meta
/// storage itself, so it lives as long as a tensor with that storage.
struct StorageState {
  std::uint64_t id = 0;
  std::shared_ptr<Operation> first; // made it
  std::shared_ptr<Operation> last; // wrote it last
  at::Tensor bytes; // once materialized: any tensor of the storage
};

/// The state of a delayed tensor's storage, nullptr for any other tensor.
std::shared_ptr<StorageState> state_of(const at::Tensor& tensor);

/// Ties the state to the storage of a new meta tensor.
void attach_state(const at::Tensor& tensor, std::shared_ptr<StorageState> state);

/// Executes on `device`, in order, what the storage's present content needs.
/// Gives a tensor that holds the storage. The default random generator of the
/// device is changed: callers keep its state.
at::Tensor replay(const StorageState& state, at::Device device);

/// A view of the storage of `base`.
at::Tensor view_storage(const at::Tensor& base, const Geometry& geometry);

} // namespace tessera::tracer
