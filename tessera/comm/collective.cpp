#include "tessera/comm/collective.h"

#include "tessera/base/error.h"

namespace tessera::comm {

std::size_t size_of(DataType type) {
  switch (type) {
    case DataType::kF64:
    case DataType::kI64:
      return 8;
    case DataType::kF32:
    case DataType::kI32:
      return 4;
    case DataType::kF16:
    case DataType::kBF16:
      return 2;
    case DataType::kU8:
      return 1;
  }
  TESSERA_CHECK(false, "unknown data type ", static_cast<int>(type));
}

std::string_view name_of(DataType type) {
  switch (type) {
    case DataType::kF32:
      return "f32";
    case DataType::kF64:
      return "f64";
    case DataType::kF16:
      return "f16";
    case DataType::kBF16:
      return "bf16";
    case DataType::kI32:
      return "i32";
    case DataType::kI64:
      return "i64";
    case DataType::kU8:
      return "u8";
  }
  return "?";
}

std::string_view name_of(Collective kind) {
  switch (kind) {
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kAllToAll:
      return "all_to_all";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kReduce:
      return "reduce";
    case Collective::kBarrier:
      return "barrier";
  }
  return "?";
}

std::string_view name_of(ReduceOp reduce) {
  switch (reduce) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kMin:
      return "min";
  }
  return "?";
}

std::size_t Operation::bytes(std::int64_t elements) const {
  return static_cast<std::size_t>(elements) * size_of(type);
}

const std::byte* Operation::input_at(std::int64_t element) const {
  return static_cast<const std::byte*>(input) + bytes(element);
}

std::byte* Operation::output_at(std::int64_t element) const {
  return static_cast<std::byte*>(output) + bytes(element);
}

std::int64_t traffic_bytes(const Operation& operation, int size, int rank) {
  const std::int64_t bytes = operation.count * static_cast<std::int64_t>(size_of(operation.type));
  const std::int64_t peers = size - 1;
  switch (operation.kind) {
    case Collective::kAllReduce:
      return 2 * peers * bytes / size;
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
      return peers * bytes;
    case Collective::kBroadcast:
      return rank == operation.root ? peers * bytes : 0;
    case Collective::kReduce:
      return rank == operation.root ? 0 : bytes;
    case Collective::kBarrier:
      return 0;
  }
  TESSERA_CHECK(false, "unknown collective");
}

std::string GroupInfo::text() const {
  std::string text = str("group '", name, "' (ranks");
  for (const int member : ranks) {
    text += str(' ', member);
  }
  return text + ")";
}

} // namespace tessera::comm
