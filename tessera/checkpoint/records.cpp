#include "tessera/checkpoint/records.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checksum.h"
#include "tessera/checkpoint/field_json.h"
#include "tessera/checkpoint/json.h"

namespace tessera::checkpoint {

namespace {

using nlohmann::json;

const char* const kFormat = "tessera checkpoint";
constexpr int kVersion = 1;

json tensors_to_json(const std::vector<TensorRecord>& tensors) {
  json list = json::array();
  for (const auto& tensor : tensors) {
    json entry = {
        {"name", tensor.name},
        {"dtype", tensor.dtype},
        {"shape", tensor.shape},
        {"file", tensor.file},
        {"hash", to_hex(tensor.hash)}};
    if (!tensor.slice.whole()) {
      entry["global_shape"] = tensor.slice.global_shape;
      entry["offset"] = tensor.slice.offset;
    }
    list.push_back(std::move(entry));
  }
  return list;
}

void check_slice(const TensorRecord& tensor, const std::string& what) {
  const Slice& slice = tensor.slice;
  bool good = slice.global_shape.size() == tensor.shape.size() &&
              slice.offset.size() == tensor.shape.size();
  for (std::size_t i = 0; good && i < tensor.shape.size(); ++i) {
    good = slice.offset[i] <= slice.global_shape[i] &&
           tensor.shape[i] <= slice.global_shape[i] - slice.offset[i];
  }
  if (!good) {
    throw CheckpointError(str(what, ": the slice of \"", tensor.name, "\" leaves the tensor"));
  }
}

std::vector<TensorRecord> tensors_from_json(const json& list, const std::string& what) {
  std::vector<TensorRecord> tensors;
  for (const auto& element : list) {
    const JsonObject entry(element, what);
    TensorRecord tensor;
    tensor.name = entry.string("name");
    tensor.dtype = entry.string("dtype");
    tensor.shape = entry.sizes("shape");
    tensor.file = entry.string("file");
    tensor.hash = entry.hash("hash");
    if (element.contains("global_shape")) {
      tensor.slice.global_shape = entry.sizes("global_shape");
      tensor.slice.offset = entry.sizes("offset");
      check_slice(tensor, what);
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

json files_to_json(const std::vector<FileEntry>& files) {
  json list = json::array();
  for (const auto& file : files) {
    list.push_back(
        {{"name", file.name},
         {"size_bytes", file.size_bytes},
         {"checksum", to_hex(file.checksum)}});
  }
  return list;
}

std::vector<FileEntry> files_from_json(const json& list, const std::string& what) {
  std::vector<FileEntry> files;
  for (const auto& element : list) {
    const JsonObject entry(element, what);
    FileEntry file;
    file.name = entry.string("name");
    // A name from a file must not lead out of the checkpoint's folder.
    if (file.name.empty() || file.name.find('/') != std::string::npos ||
        file.name.find('\0') != std::string::npos || file.name == "." || file.name == "..") {
      throw CheckpointError(str(what, ": \"", file.name, "\" is no file of this folder"));
    }
    file.size_bytes = entry.number("size_bytes");
    file.checksum = entry.hash("checksum");
    files.push_back(std::move(file));
  }
  return files;
}

json optimizer_to_json(const OptimizerRecord& optimizer) {
  json groups = json::array();
  for (const auto& group : optimizer.groups) {
    groups.push_back(
        {{"parameters", group.parameters},
         {"options", fields_to_json(group.options, "optimizer options")}});
  }
  return {
      {"kind", optimizer.kind},
      {"groups", std::move(groups)},
      {"number_fields", optimizer.number_fields}};
}

OptimizerRecord optimizer_from_json(const JsonObject& entry) {
  OptimizerRecord optimizer;
  optimizer.kind = entry.string("kind");
  optimizer.number_fields = entry.strings("number_fields");
  for (const auto& element : entry.list("groups")) {
    const JsonObject group(element, entry.what("groups"));
    optimizer.groups.push_back(
        {group.strings("parameters"),
         fields_from_json(group.at("options"), group.what("options"))});
  }
  return optimizer;
}

} // namespace

std::string to_text(const RankFiles& files) {
  return seal(
      {{"rank", files.rank},
       {"error", files.error},
       {"files", files_to_json(files.files)},
       {"model", tensors_to_json(files.model)},
       {"optimizer_tensors", tensors_to_json(files.optimizer_tensors)},
       {"optimizer", optimizer_to_json(files.optimizer)}});
}

RankFiles rank_files_from_text(const std::string& text) {
  const std::string what = "a rank's part of a checkpoint";
  const json parsed = unseal(text, what);
  const JsonObject entry(parsed, what);
  RankFiles files;
  files.rank = entry.small_number("rank");
  files.error = entry.string("error");
  files.files = files_from_json(entry.list("files"), entry.what("files"));
  files.model = tensors_from_json(entry.list("model"), entry.what("model"));
  files.optimizer_tensors =
      tensors_from_json(entry.list("optimizer_tensors"), entry.what("optimizer_tensors"));
  files.optimizer = optimizer_from_json(entry.object("optimizer"));
  return files;
}

std::string to_json(const Meta& meta) {
  return seal(
      {{"format", kFormat},
       {"version", meta.version},
       {"torch_version", meta.torch_version},
       {"tag", meta.tag},
       {"sequence", meta.sequence},
       {"model", meta.model},
       {"degrees",
        {{"pipeline", meta.degrees.pipeline},
         {"tensor", meta.degrees.tensor},
         {"reduced_data", meta.degrees.reduced_data}}},
       {"placement", meta.placement},
       {"partition", meta.partition},
       {"user_content", parse_json(meta.user_content, "the user's content")},
       {"files", files_to_json(meta.files)},
       {"tensors", tensors_to_json(meta.tensors)},
       {"optimizer_tensors", tensors_to_json(meta.optimizer_tensors)},
       {"optimizer", optimizer_to_json(meta.optimizer)},
       {"parameter_hash", to_hex(meta.parameter_hash)},
       {"optimizer_hash", to_hex(meta.optimizer_hash)}});
}

Meta meta_from_json(const std::string& text, const std::string& what) {
  const json parsed = unseal(text, what);
  const JsonObject entry(parsed, what);
  if (entry.string("format") != kFormat) {
    throw CheckpointError(str(
        entry.what("format"), " is \"", entry.string("format"), "\", expected \"", kFormat, "\""));
  }
  Meta meta;
  meta.version = entry.small_number("version");
  if (meta.version != kVersion) {
    throw CheckpointError(
        str(entry.what("version"),
            " is ",
            meta.version,
            "; this library reads version ",
            kVersion,
            ", use the one that wrote it"));
  }
  meta.torch_version = entry.string("torch_version");
  meta.tag = entry.string("tag");
  meta.sequence = entry.number("sequence");
  meta.model = entry.string("model");
  const JsonObject degrees = entry.object("degrees");
  meta.degrees.pipeline = degrees.small_number("pipeline");
  meta.degrees.tensor = degrees.small_number("tensor");
  meta.degrees.reduced_data = degrees.small_number("reduced_data");
  meta.placement = entry.string("placement");
  const JsonObject partition = entry.object("partition");
  for (const auto& item : partition.members().items()) {
    meta.partition[item.key()] = partition.small_number(item.key().c_str());
  }
  meta.user_content = entry.at("user_content").dump();
  meta.files = files_from_json(entry.list("files"), entry.what("files"));
  meta.tensors = tensors_from_json(entry.list("tensors"), entry.what("tensors"));
  meta.optimizer_tensors =
      tensors_from_json(entry.list("optimizer_tensors"), entry.what("optimizer_tensors"));
  meta.optimizer = optimizer_from_json(entry.object("optimizer"));
  meta.parameter_hash = entry.hash("parameter_hash");
  meta.optimizer_hash = entry.hash("optimizer_hash");
  return meta;
}

std::uint64_t hash_of_tensor(const TensorRecord& record, std::uint64_t data_checksum) {
  Checksum hash;
  const auto add_text = [&](const std::string& text) {
    hash.update_number(text.size());
    hash.update(text);
  };
  const auto add_sizes = [&](const std::vector<std::int64_t>& sizes) {
    hash.update_number(sizes.size());
    for (const std::int64_t size : sizes) {
      hash.update_number(static_cast<std::uint64_t>(size));
    }
  };
  add_text(record.name);
  add_text(record.dtype);
  add_sizes(record.shape);
  add_sizes(record.slice.global_shape);
  add_sizes(record.slice.offset);
  hash.update_number(data_checksum);
  return hash.value();
}

std::uint64_t combined_hash(const std::vector<TensorRecord>& tensors) {
  std::uint64_t sum = 0;
  for (const auto& tensor : tensors) {
    sum += tensor.hash; // modulo 2^64
  }
  return sum;
}

std::uint64_t combined_hash(
    const std::vector<TensorRecord>& tensors,
    const OptimizerRecord& optimizer) {
  std::uint64_t sum = combined_hash(tensors);
  for (const auto& group : optimizer.groups) {
    const std::string options = fields_to_json(group.options, "optimizer options").dump();
    for (const auto& name : group.parameters) {
      sum += checksum_of(json::array({optimizer.kind, name, options})
                             .dump(-1, ' ', false, json::error_handler_t::replace));
    }
  }
  return sum;
}

} // namespace tessera::checkpoint
