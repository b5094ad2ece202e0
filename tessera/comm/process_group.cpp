#include "tessera/comm/process_group.h"

#include "tessera/base/error.h"
#include "tessera/comm/caller.h"

namespace tessera::comm {

namespace {

constexpr std::pair<at::ScalarType, DataType> kDataTypes[] = {
    {at::kFloat, DataType::kF32},
    {at::kDouble, DataType::kF64},
    {at::kHalf, DataType::kF16},
    {at::kBFloat16, DataType::kBF16},
    {at::kInt, DataType::kI32},
    {at::kLong, DataType::kI64},
    {at::kByte, DataType::kU8},
};

DataType data_type_of(const at::Tensor& tensor, Collective kind, const GroupInfo& info) {
  for (const auto& [scalar_type, type] : kDataTypes) {
    if (tensor.scalar_type() == scalar_type) {
      return type;
    }
  }
  throw ShapeError(tessera::str(
      name_of(kind),
      " in ",
      info.text(),
      ": dtype ",
      tensor.scalar_type(),
      " is not supported; use f32, f64, f16, bf16, i32, i64 or u8"));
}

template <typename Call>
Call with(Call call, ReduceOp op) {
  call.operation.reduce = op;
  return call;
}

} // namespace

void ProcessGroup::check_tensor(const at::Tensor& tensor, Collective kind) const {
  const auto where = [&] { return tessera::str(name_of(kind), " in ", info_.text()); };
  if (!tensor.defined()) {
    throw ShapeError(where() + ": the tensor is undefined");
  }
  if (tensor.device().type() != device_) {
    throw ShapeError(tessera::str(
        where(),
        ": the tensor is on ",
        tensor.device().str(),
        "; this group moves ",
        c10::DeviceTypeName(device_),
        " tensors"));
  }
  if (!tensor.is_contiguous()) {
    throw ShapeError(tessera::str(
        where(),
        ": a tensor of sizes ",
        tensor.sizes(),
        " and strides ",
        tensor.strides(),
        " is not contiguous; pass tensor.contiguous()"));
  }
  if (tensor.numel() > 0 && tensor.storage().data() == nullptr) {
    throw ShapeError(tessera::str(
        where(),
        ": a tensor of sizes ",
        tensor.sizes(),
        " has no memory of its own, as a parameter of which each rank keeps a part, or a view of "
        "one (sharded_data_parallel_degree); pass tensor.clone()"));
  }
}

ProcessGroup::Call ProcessGroup::make_call(
    Collective kind,
    const at::Tensor& output,
    const at::Tensor& input,
    std::int64_t count) const {
  Call call;
  call.operation.kind = kind;
  call.operation.type = data_type_of(input, kind, info_);
  call.operation.input = input.data_ptr();
  call.operation.output = output.data_ptr();
  call.operation.count = count;
  call.operation.caller = current_caller();
  call.output = output;
  call.input = input;
  return call;
}

ProcessGroup::Call ProcessGroup::in_place(Collective kind, const at::Tensor& tensor) const {
  check_tensor(tensor, kind);
  return make_call(kind, tensor, tensor, tensor.numel());
}

ProcessGroup::Call
ProcessGroup::sliced(Collective kind, const at::Tensor& output, const at::Tensor& input) const {
  check_tensor(output, kind);
  check_tensor(input, kind);
  const std::int64_t out_slices = kind == Collective::kReduceScatter ? 1 : size();
  const std::int64_t in_slices = kind == Collective::kAllGather ? 1 : size();
  const auto where = [&] { return tessera::str(name_of(kind), " in ", info_.text()); };
  if (output.scalar_type() != input.scalar_type()) {
    throw ShapeError(tessera::str(
        where(),
        ": the output is ",
        output.scalar_type(),
        ", the input ",
        input.scalar_type(),
        "; give both one dtype"));
  }
  const bool divides = input.numel() % in_slices == 0;
  if (!divides || output.numel() != input.numel() / in_slices * out_slices) {
    throw ShapeError(tessera::str(
        where(),
        ": an input of ",
        input.numel(),
        " elements does not fit an output of ",
        output.numel(),
        "; expected ",
        in_slices,
        " slice(s) in and ",
        out_slices,
        " slice(s) out"));
  }
  return make_call(kind, output, input, input.numel() / in_slices);
}

ProcessGroup::Call ProcessGroup::scaled_sum(const at::Tensor& tensor, double scale) const {
  Call call = in_place(Collective::kAllReduce, tensor);
  if (!tensor.is_floating_point()) {
    throw ShapeError(tessera::str(
        info_.text(),
        ": a scaled sum of dtype ",
        tensor.scalar_type(),
        "; use f32, f64, f16 or bf16"));
  }
  call.operation.scale = scale;
  return call;
}

ProcessGroup::Call ProcessGroup::rooted(Call call, int root) const {
  if (root < 0 || root >= size()) {
    throw CommError(tessera::str(
        name_of(call.operation.kind),
        " in ",
        info_.text(),
        ": root ",
        root,
        " is not a rank of the group; expected 0 to ",
        size() - 1));
  }
  call.operation.root = root;
  return call;
}

void ProcessGroup::count(const Call& call) {
  traffic_.calls.fetch_add(1, std::memory_order_relaxed);
  traffic_.bytes.fetch_add(
      traffic_bytes(call.operation, size(), rank()), std::memory_order_relaxed);
}

WorkPtr ProcessGroup::counted_start(Call call) {
  count(call);
  return start(std::move(call));
}

void ProcessGroup::counted_run(Call call) {
  count(call);
  run(std::move(call));
}

WorkPtr ProcessGroup::all_reduce_async(at::Tensor tensor, ReduceOp op) {
  return counted_start(with(in_place(Collective::kAllReduce, tensor), op));
}

WorkPtr ProcessGroup::scaled_sum_async(at::Tensor tensor, double scale) {
  return counted_start(scaled_sum(tensor, scale));
}

WorkPtr ProcessGroup::all_gather_async(at::Tensor output, at::Tensor input) {
  return counted_start(sliced(Collective::kAllGather, output, input));
}

WorkPtr ProcessGroup::reduce_scatter_async(at::Tensor output, at::Tensor input, ReduceOp op) {
  return counted_start(with(sliced(Collective::kReduceScatter, output, input), op));
}

WorkPtr ProcessGroup::all_to_all_async(at::Tensor output, at::Tensor input) {
  return counted_start(sliced(Collective::kAllToAll, output, input));
}

WorkPtr ProcessGroup::broadcast_async(at::Tensor tensor, int root) {
  return counted_start(rooted(in_place(Collective::kBroadcast, tensor), root));
}

WorkPtr ProcessGroup::reduce_async(at::Tensor tensor, int root, ReduceOp op) {
  return counted_start(with(rooted(in_place(Collective::kReduce, tensor), root), op));
}

WorkPtr ProcessGroup::barrier_async() {
  return counted_start(Call());
}

void ProcessGroup::all_reduce(at::Tensor tensor, ReduceOp op) {
  counted_run(with(in_place(Collective::kAllReduce, tensor), op));
}

void ProcessGroup::all_gather(at::Tensor output, at::Tensor input) {
  counted_run(sliced(Collective::kAllGather, output, input));
}

void ProcessGroup::reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) {
  counted_run(with(sliced(Collective::kReduceScatter, output, input), op));
}

void ProcessGroup::all_to_all(at::Tensor output, at::Tensor input) {
  counted_run(sliced(Collective::kAllToAll, output, input));
}

void ProcessGroup::broadcast(at::Tensor tensor, int root) {
  counted_run(rooted(in_place(Collective::kBroadcast, tensor), root));
}

void ProcessGroup::reduce(at::Tensor tensor, int root, ReduceOp op) {
  counted_run(with(rooted(in_place(Collective::kReduce, tensor), root), op));
}

void ProcessGroup::barrier() {
  counted_run(Call());
}

} // namespace tessera::comm
