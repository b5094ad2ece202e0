#include "tessera/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/checkpoint/json.h"

namespace tessera::checkpoint {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000; // the format's own limit
constexpr std::uint64_t kPrefixBytes = 8;
constexpr std::size_t kMaxDimensions = 64;
const char* const kMetadataKey = "__metadata__";

struct Dtype {
  const char* name;
  at::ScalarType type;
};
constexpr std::array<Dtype, 10> kDtypes = {
    {{"F64", at::kDouble},
     {"F32", at::kFloat},
     {"F16", at::kHalf},
     {"BF16", at::kBFloat16},
     {"I64", at::kLong},
     {"I32", at::kInt},
     {"I16", at::kShort},
     {"I8", at::kChar},
     {"U8", at::kByte},
     {"BOOL", at::kBool}}};

std::string all_dtypes() {
  std::string names;
  for (const auto& dtype : kDtypes) {
    names += names.empty() ? "" : ", ";
    names += dtype.name;
  }
  return names;
}

TensorInfo parse_entry(
    const json& entry,
    std::uint64_t data_begin,
    std::uint64_t data_bytes,
    const std::string& what) {
  if (!entry.is_object() || entry.size() != 3) {
    throw CheckpointError(
        str(what, ": expected an object of dtype, shape and data_offsets, found ", brief(entry)));
  }
  const JsonObject members(entry, what);
  TensorInfo info;
  info.dtype = dtype_of(members.string("dtype"), what);
  std::uint64_t bytes = c10::elementSize(info.dtype);
  const json& shape = members.list("shape");
  if (shape.size() > kMaxDimensions) {
    throw CheckpointError(
        str(what, ": ", shape.size(), " dimensions; libtorch handles ", kMaxDimensions));
  }
  bool overflow = false;
  bool empty = false;
  for (const auto& size : shape) {
    const std::uint64_t length = unsigned_of(size, what + ": shape");
    info.shape.push_back(static_cast<std::int64_t>(length));
    empty = empty || length == 0;
    // A size of 0 does not make the others harmless, because strides are products of all sizes.
    overflow = overflow ||
               __builtin_mul_overflow(bytes, std::max<std::uint64_t>(length, 1), &bytes) ||
               bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  }
  if (overflow) {
    throw CheckpointError(str(what, ": the shape is too large: ", brief(shape)));
  }
  bytes = empty ? 0 : bytes;
  const json& offsets = members.list("data_offsets");
  if (offsets.size() != 2) {
    throw CheckpointError(str(what, ": data_offsets must be two numbers, found ", brief(offsets)));
  }
  const std::uint64_t begin = unsigned_of(offsets[0], what + ": data_offsets");
  const std::uint64_t end = unsigned_of(offsets[1], what + ": data_offsets");
  if (begin > end || end > data_bytes) {
    throw CheckpointError(
        str(what,
            ": data_offsets ",
            brief(offsets),
            " do not lie in the ",
            data_bytes,
            " bytes of data that the file holds; it is torn or damaged"));
  }
  if (end - begin != bytes) {
    throw CheckpointError(
        str(what, ": dtype and shape need ", bytes, " bytes, data_offsets give ", end - begin));
  }
  info.begin = data_begin + begin;
  info.end = data_begin + end;
  return info;
}

void check_writable(const at::Tensor& tensor, const std::string& what) {
  if (!tensor.defined() || tensor.is_meta()) {
    throw CheckpointError(str(what, " has no data to write"));
  }
  if (tensor.layout() != at::kStrided) {
    throw CheckpointError(
        str(what, " is sparse, which the format cannot hold; write its to_dense()"));
  }
}

// Longest first, so that every tensor is aligned to its element size.
std::vector<std::size_t> data_order(const NamedTensors& tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return tensors[a].second.element_size() > tensors[b].second.element_size();
  });
  return order;
}

std::string make_header(
    const std::string& path,
    const NamedTensors& tensors,
    const std::vector<std::size_t>& order,
    const Metadata& metadata) {
  ordered_json header = ordered_json::object();
  if (!metadata.empty()) {
    header[kMetadataKey] = metadata;
  }
  std::set<std::string> names;
  std::uint64_t offset = 0;
  for (const std::size_t i : order) {
    const auto& [name, tensor] = tensors[i];
    const std::string what = str(path, ": tensor \"", name, "\"");
    if (name == kMetadataKey) {
      throw CheckpointError(str(what, " has a name that the format reserves"));
    }
    if (!names.insert(name).second) {
      throw CheckpointError(str(what, " is given twice"));
    }
    const std::uint64_t bytes = tensor.nbytes();
    header[name] = {
        {"dtype", dtype_name(tensor.scalar_type(), what)},
        {"shape", tensor.sizes().vec()},
        {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception& error) {
    throw CheckpointError(str("cannot write ", path, ": a name is not UTF-8: ", error.what()));
  }
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > kMaxHeaderBytes) {
    throw CheckpointError(
        str("cannot write ",
            path,
            ": ",
            tensors.size(),
            " tensors need a header of ",
            text.size(),
            " bytes, the format allows ",
            kMaxHeaderBytes));
  }
  return text;
}

} // namespace

std::string dtype_name(at::ScalarType type, const std::string& what) {
  for (const auto& dtype : kDtypes) {
    if (dtype.type == type) {
      return dtype.name;
    }
  }
  throw CheckpointError(
      str(what,
          " has dtype ",
          c10::toString(type),
          ", which a checkpoint cannot hold; convert it to one of ",
          all_dtypes()));
}

at::ScalarType dtype_of(const std::string& name, const std::string& what) {
  for (const auto& dtype : kDtypes) {
    if (dtype.name == name) {
      return dtype.type;
    }
  }
  throw CheckpointError(str(what, ": unknown dtype \"", name, "\"; known are ", all_dtypes()));
}

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  check_layout(read_header());
}

std::uint64_t SafetensorsFile::read_header() {
  std::uint64_t header_bytes = 0;
  if (file_.size_bytes() < kPrefixBytes) {
    throw CheckpointError(
        str(path(), " is no safetensors file or is torn: it has ", file_.size_bytes(), " bytes"));
  }
  file_.read(0, &header_bytes, sizeof(header_bytes));
  const std::uint64_t rest = file_.size_bytes() - kPrefixBytes;
  if (header_bytes > rest || header_bytes > kMaxHeaderBytes) {
    throw CheckpointError(
        str(path(),
            " is no safetensors file or is torn: it announces a header of ",
            header_bytes,
            " bytes, ",
            rest,
            " follow"));
  }
  std::string text(header_bytes, '\0');
  file_.read(kPrefixBytes, text.data(), text.size());
  if (text.empty() || text.front() != '{') {
    throw CheckpointError(str(path(), " is no safetensors file: its header is no JSON object"));
  }
  const json header = parse_json(text, path() + ": header");
  const std::uint64_t data_begin = kPrefixBytes + header_bytes;
  for (const auto& item : header.items()) {
    if (item.key() == kMetadataKey) {
      const std::string what = path() + ": " + kMetadataKey;
      if (!item.value().is_object()) {
        throw CheckpointError(str(what, " must be an object, found ", brief(item.value())));
      }
      for (const auto& entry : item.value().items()) {
        if (!entry.value().is_string()) {
          throw CheckpointError(
              str(what, ": \"", entry.key(), "\" must be a string, found ", brief(entry.value())));
        }
        metadata_[entry.key()] = entry.value().get<std::string>();
      }
      continue;
    }
    tensors_[item.key()] = parse_entry(
        item.value(),
        data_begin,
        rest - header_bytes,
        str(path(), ": tensor \"", item.key(), "\""));
  }
  return data_begin;
}

void SafetensorsFile::check_layout(std::uint64_t data_begin) const {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const auto& [name, info] : tensors_) {
    ranges.emplace_back(info.begin, info.end);
  }
  std::sort(ranges.begin(), ranges.end());
  std::uint64_t at = data_begin;
  for (const auto& [begin, end] : ranges) {
    if (begin != at) {
      throw CheckpointError(
          str(path(), ": tensors overlap or leave a hole at byte ", std::min(begin, at)));
    }
    at = end;
  }
  if (at != file_.size_bytes()) {
    throw CheckpointError(
        str(path(), ": ", file_.size_bytes() - at, " bytes after the last tensor belong to none"));
  }
}

at::Tensor SafetensorsFile::read(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    throw CheckpointError(str(path(), " holds no tensor \"", name, "\""));
  }
  const TensorInfo& info = found->second;
  at::Tensor tensor = at::empty(info.shape, at::TensorOptions().dtype(info.dtype));
  file_.read(info.begin, tensor.data_ptr(), info.end - info.begin);
  if (info.dtype == at::kBool) {
    // Bools are read as bytes and checked, because a bool of another value is undefined behaviour.
    const auto* bytes = static_cast<const unsigned char*>(tensor.data_ptr());
    const bool good =
        std::all_of(bytes, bytes + tensor.numel(), [](unsigned char byte) { return byte <= 1; });
    if (!good) {
      throw CheckpointError(
          str(path(), ": tensor \"", name, "\" is BOOL, but holds bytes other than 0 and 1"));
    }
  }
  return tensor;
}

std::map<std::string, at::Tensor> read_safetensors(const std::string& path) {
  const SafetensorsFile file(path);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, info] : file.tensors()) {
    tensors[name] = file.read(name);
  }
  return tensors;
}

std::map<std::string, at::Tensor> map_safetensors(const std::string& path) {
  const SafetensorsFile file(path);
  std::uint64_t bytes = 0;
  for (const auto& [name, info] : file.tensors()) {
    bytes = std::max(bytes, info.end);
  }
  at::Tensor mapped;
  if (bytes > 0) {
    const bool shared = false;
    mapped = at::from_file(path, shared, static_cast<std::int64_t>(bytes), at::kByte);
  }
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, info] : file.tensors()) {
    const bool aligned = info.begin % c10::elementSize(info.dtype) == 0;
    if (!aligned || info.dtype == at::kBool || info.begin == info.end) {
      tensors[name] = file.read(name);
      continue;
    }
    const auto length = static_cast<std::int64_t>(info.end - info.begin);
    tensors[name] = mapped.narrow(0, static_cast<std::int64_t>(info.begin), length)
                        .view(info.dtype)
                        .view(info.shape);
  }
  return tensors;
}

TensorsRecord write_safetensors(
    FileSystem& files,
    const std::string& path,
    const NamedTensors& tensors,
    const Metadata& metadata) {
  for (const auto& [name, tensor] : tensors) {
    check_writable(tensor, str(path, ": tensor \"", name, "\""));
  }
  const auto order = data_order(tensors);
  const std::string header = make_header(path, tensors, order, metadata);
  TensorsRecord record;
  record.data_checksums.resize(tensors.size());
  AtomicFile file(files, path);
  const std::uint64_t header_bytes = header.size();
  file.write(&header_bytes, sizeof(header_bytes));
  file.write(header);
  for (const std::size_t i : order) {
    const at::Tensor host = tensors[i].second.detach().resolve_neg().cpu().contiguous();
    Checksum checksum;
    constexpr std::size_t kChunkBytes = std::size_t{1} << 18U;
    const auto* data = static_cast<const char*>(host.data_ptr());
    for (std::size_t at = 0; at < host.nbytes(); at += kChunkBytes) {
      const std::size_t bytes = std::min(kChunkBytes, host.nbytes() - at);
      checksum.update(data + at, bytes);
      file.write(data + at, bytes);
    }
    record.data_checksums[i] = checksum.value();
  }
  record.file = file.commit();
  return record;
}

} // namespace tessera::checkpoint
