#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/checkpoint/file_system.h"
#include "tessera/tensor/named_tensors.h"

namespace tessera::checkpoint {

/// Returns the format's name of a type: "F64" "F32" "F16" "BF16" "I64" "I32" "I16" "I8" "U8"
/// "BOOL".
/// Throws: CheckpointError for any other type, naming `what`.
std::string dtype_name(at::ScalarType dtype, const std::string& what);
at::ScalarType dtype_of(const std::string& name, const std::string& what);

using Metadata = std::map<std::string, std::string>;

/// A file's description of one of its tensors.
struct TensorInfo {
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape;
  /// The bytes [begin, end) of the file that hold the data.
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// A safetensors file open for reading. The constructor reads and checks the header; data is read
/// when requested. Whatever the file holds, the outcome is its tensors or a CheckpointError that
/// names the file and what is wrong with it.
///
/// It is stricter than the format's text in one place: a boolean that is neither 0 nor 1 is an
/// error, because C++ gives such a value no meaning.
///
/// Threads: any thread. Not collective.
/// Source: the safetensors format, version 0.3 and later.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const {
    return file_.path();
  }
  const std::map<std::string, TensorInfo>& tensors() const {
    return tensors_;
  }
  const Metadata& metadata() const {
    return metadata_;
  }
  /// Returns a new tensor on the CPU. Throws: CheckpointError when the file has no such tensor.
  at::Tensor read(const std::string& name) const;

 private:
  // Returns where the data begins.
  std::uint64_t read_header();
  void check_layout(std::uint64_t data_begin) const;

  InputFile file_;
  std::map<std::string, TensorInfo> tensors_;
  Metadata metadata_;
};

/// Reads all tensors of a file.
std::map<std::string, at::Tensor> read_safetensors(const std::string& path);

/// Maps all tensors of a file into memory: opening it reads the header alone, a tensor's pages are
/// read when they are touched, and ranks of one machine share them. Writing into a tensor changes
/// this process's copy, never the file. A file that another program cuts short while it is mapped
/// ends the process.
/// Returns tensors on the CPU; those that the file does not align to their element, and booleans,
/// are read at once.
std::map<std::string, at::Tensor> map_safetensors(const std::string& path);

/// A file as it was written, and a checksum of each tensor's bytes in the order given.
struct TensorsRecord {
  FileRecord file;
  std::vector<std::uint64_t> data_checksums;
};

/// Writes tensors of any device, stride and dtype listed above. The file appears whole or not at
/// all. The same tensors in the same order and the same metadata give the same bytes. One tensor at
/// a time is copied, and only when it is not contiguous on the CPU already.
///
/// Data is ordered by falling element size, then as given, so that every tensor is aligned to its
/// element; the header is padded to 8 bytes.
///
/// Throws: CheckpointError naming file and tensor, for a type that the format lacks, a tensor
/// without data, a name given twice or not UTF-8, a full disk.
/// Threads: any thread. Not collective.
TensorsRecord write_safetensors(
    FileSystem& files,
    const std::string& path,
    const NamedTensors& tensors,
    const Metadata& metadata = {});

inline TensorsRecord write_safetensors(
    const std::string& path,
    const NamedTensors& tensors,
    const Metadata& metadata = {}) {
  return write_safetensors(real_file_system(), path, tensors, metadata);
}

} // namespace tessera::checkpoint
