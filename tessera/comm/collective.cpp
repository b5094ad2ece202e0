#include "tessera/comm/collective.h"

#include <algorithm>
#include <array>

#include "tessera/base/error.h"

namespace tessera::comm {

namespace {

constexpr std::array<std::size_t, 7> kTypeSizes = {4, 8, 2, 2, 4, 8, 1};
constexpr std::array<std::string_view, 7> kTypes =
    {"f32", "f64", "f16", "bf16", "i32", "i64", "u8"};
constexpr std::array<std::string_view, 7> kCollectives =
    {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "barrier"};
constexpr std::array<std::string_view, 3> kReduceOps = {"sum", "max", "min"};

/// "?" where the value is none of the enum's: it may have come from another rank.
template <std::size_t N, typename Enum>
std::string_view name_in(const std::array<std::string_view, N>& names, Enum value) {
  const auto index = static_cast<std::size_t>(value);
  return index < N ? names[index] : "?";
}

} // namespace

std::size_t size_of(DataType type) {
  return kTypeSizes.at(static_cast<std::size_t>(type));
}

std::string_view name_of(DataType type) {
  return name_in(kTypes, type);
}

std::string_view name_of(Collective kind) {
  return name_in(kCollectives, kind);
}

std::string_view name_of(ReduceOp reduce) {
  return name_in(kReduceOps, reduce);
}

Caller Caller::of(std::string_view name) {
  Caller caller;
  const std::size_t most = caller.text.size() - 1; // a zero ends it
  name.remove_prefix(name.size() - std::min(name.size(), most));
  std::copy(name.begin(), name.end(), caller.text.begin());
  return caller;
}

std::string_view Caller::name() const {
  const auto* end = std::find(text.begin(), text.end(), '\0');
  return {text.data(), static_cast<std::size_t>(end - text.begin())};
}

std::uint32_t Caller::hash() const {
  std::uint32_t hash = 2166136261U; // FNV-1a
  for (const char c : name()) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  }
  return hash;
}

bool Operation::is_same_call(const Operation& other) const {
  return kind == other.kind && type == other.type && reduce == other.reduce &&
         scale == other.scale && root == other.root && count == other.count &&
         caller == other.caller;
}

std::string Operation::text(std::uint32_t sequence) const {
  return str(
      name_of(kind),
      " #",
      sequence,
      " of ",
      count,
      " elements of ",
      name_of(type),
      ", ",
      name_of(reduce),
      ", scale ",
      scale,
      ", root ",
      root,
      caller.name().empty() ? "" : str(" for '", caller.name(), "'"));
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
