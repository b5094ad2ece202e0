#include "tessera/nn/module/remote_tensor.h"

#include <memory>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/autograd/dispatch_mode.h"
#include "tessera/base/error.h"
#include "tessera/nn/module/intercepted.h"
#include "tessera/nn/module/script_class.h"

namespace tessera::nn {

namespace {

void delete_description(void* context) {
  delete static_cast<RemoteTensor*>(context);
}

// Returns a tensor without memory that has the shape of the remote one; no bounds are checked. Its
// storage claims to be on no real device, so that code which writes a tensor's bytes without an
// operator (torch::save) fails instead of writing nothing.
at::Tensor hollow(
    const at::TensorOptions& options,
    at::IntArrayRef sizes,
    at::IntArrayRef strides,
    RemoteTensor description) {
  at::Tensor made = at::empty({0}, options.requires_grad(false));
  made.storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr(
      nullptr,
      new RemoteTensor(std::move(description)),
      &delete_description,
      at::Device(at::kMeta)));
  made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return made;
}

} // namespace

void replace_by_handle(const at::Tensor& tensor, RemoteTensor description) {
  const at::NoGradGuard no_grad;
  tensor.mutable_grad() = at::Tensor();
  if (tensor.is_meta()) { // delayed: it never had memory, and forgets how it would be made
    tensor.storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr(
        nullptr, new RemoteTensor(std::move(description)), &delete_description, tensor.device()));
  } else {
    tensor.set_data(
        hollow(tensor.options(), tensor.sizes(), tensor.strides(), std::move(description)));
  }
  attract_mode(tensor);
}

void show_remote_gradient(const at::Tensor& parameter) {
  const RemoteTensor* remote = remote_tensor(parameter);
  if (remote == nullptr || remote->buffer || !parameter.requires_grad() ||
      parameter.grad().defined()) {
    return;
  }
  RemoteTensor description = *remote;
  description.gradient = true;
  // A delayed parameter is a meta tensor elsewhere, and its gradient would be taken for one.
  const at::Device device = parameter.is_meta() ? at::Device(at::kCPU) : parameter.device();
  const at::Tensor gradient = hollow(
      parameter.options().device(device),
      parameter.sizes(),
      parameter.strides(),
      std::move(description));
  attract_mode(gradient);
  parameter.mutable_grad() = gradient;
}

at::Tensor another_remote_gradient(const at::Tensor& gradient) {
  at::Tensor made =
      hollow(gradient.options(), gradient.sizes(), gradient.strides(), *remote_tensor(gradient));
  attract_mode(made);
  return made;
}

at::Tensor transpose_remote(const at::Tensor& matrix) {
  TESSERA_CHECK(matrix.dim() == 2, "t() of a tensor of ", matrix.dim(), " dimensions");
  RemoteTensor description = *remote_tensor(matrix);
  description.transposed = !description.transposed;
  at::Tensor made = hollow(
      matrix.options(),
      {matrix.size(1), matrix.size(0)},
      {matrix.stride(1), matrix.stride(0)},
      std::move(description));
  attract_mode(made);
  return made;
}

const RemoteTensor* remote_tensor(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.key_set().has(kModeKey) || !tensor.has_storage()) {
    return nullptr;
  }
  const at::DataPtr& pointer = tensor.storage().data_ptr();
  return pointer.get_deleter() == &delete_description
             ? static_cast<const RemoteTensor*>(pointer.get_context())
             : nullptr;
}

namespace {

const RemoteTensor* any_remote(const torch::nn::Module& module) {
  for (const auto& list : {module.parameters(), module.buffers()}) {
    for (const at::Tensor& tensor : list) {
      if (const RemoteTensor* remote = remote_tensor(tensor)) {
        return remote;
      }
    }
  }
  return nullptr;
}

} // namespace

bool has_remote_tensors(const torch::nn::Module& module) {
  return any_remote(module) != nullptr;
}

void refuse_remote(
    const torch::nn::Module& module,
    std::string_view asked,
    std::string_view instead) {
  // A sharded parameter has no storage of its own; this rank's part lies elsewhere.
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& tensor = item.value();
    if (tensor.defined() && !tensor.is_meta() && tensor.numel() > 0 && tensor.has_storage() &&
        remote_tensor(tensor) == nullptr && tensor.storage().data() == nullptr) {
      throw UserError(
          str(asked,
              " was called on a ",
              type_name(module),
              " whose '",
              item.key(),
              "' is kept in parts by several ranks since the DistributedModel was made; instead, ",
              instead));
    }
  }
  const RemoteTensor* remote = any_remote(module);
  if (remote == nullptr) {
    return;
  }
  if (!remote->replaced_by.empty()) {
    throw UserError(
        str(asked,
            " was called on a ",
            type_name(module),
            ", in whose place tensor parallelism has put a ",
            remote->replaced_by,
            "; instead, ",
            instead));
  }
  throw UserError(
      str(asked,
          " was called on a ",
          type_name(module),
          " whose '",
          remote->name,
          "' is on rank ",
          remote->rank,
          " and not on rank ",
          remote->here,
          " since the model was partitioned; instead, ",
          instead));
}

} // namespace tessera::nn
