#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace tessera::tracer {

struct Operation;

/// The location of a tensor in its storage.
struct Geometry {
  explicit Geometry(const at::Tensor& tensor);
  bool operator==(const Geometry&) const = default;

  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::int64_t offset;
  at::ScalarType dtype;
};

/// A tensor argument of a recorded operator: a view of a delayed storage in the state that
/// operation `after` left.
struct TensorRef {
  std::uint64_t storage;
  Geometry geometry;
  std::shared_ptr<Operation> after;
};

/// A result of a recorded operator that created a new storage.
struct ResultRef {
  std::uint64_t storage;
  Geometry geometry;
  std::size_t position; // among the tensors of all results
};

/// A large tensor with memory that a recorded operator reads. It is not copied, so it must not
/// change until the operator runs.
struct WatchedConstant {
  at::Tensor tensor;
  std::int64_t version;
};

/// An operator call whose execution is deferred. An operation refers to the earlier ones whose
/// results it needs and nothing refers to later ones, so operations that no tensor needs any more
/// are freed.
struct Operation {
  explicit Operation(const c10::OperatorHandle& op) : op(op) {}
  ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  c10::OperatorHandle op;
  std::uint64_t order = 0; // position among all operations of the program
  std::uint64_t seed = 0; // of the random generator during the call
  torch::jit::Stack arguments; // placeholders where a tensor is delayed
  std::vector<WatchedConstant> constants; // those among the arguments that were not copied
  std::vector<TensorRef> inputs; // in the order of the placeholders
  std::vector<ResultRef> results;
};

/// The state of a storage that delayed tensors share. The meta storage itself owns it, so it lives
/// as long as a tensor with that storage.
struct StorageState {
  std::uint64_t id = 0;
  std::shared_ptr<Operation> first; // the operation that created it
  std::shared_ptr<Operation> last; // the last operation that wrote it
  at::Tensor bytes; // after materialization, any tensor of the storage
};

/// Returns the state of a delayed tensor's storage, nullptr for any other tensor.
std::shared_ptr<StorageState> state_of(const at::Tensor& tensor);

/// Attaches the state to the storage of a new meta tensor.
void attach_state(const at::Tensor& tensor, std::shared_ptr<StorageState> state);

/// Executes on `device`, in order, the operations that the storage's present content needs, and
/// returns a tensor that holds the storage. It changes the state of the device's default random
/// generator; the caller saves and restores it.
/// Throws: ConfigError when a watched constant has changed.
at::Tensor replay(const StorageState& state, at::Device device);

/// Returns a view of the storage of `base`.
at::Tensor view_storage(const at::Tensor& base, const Geometry& geometry);

} // namespace tessera::tracer
