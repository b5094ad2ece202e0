#include "tessera/checkpoint/writer.h"

#include <algorithm>
#include <exception>
#include <set>
#include <utility>

#include <sys/stat.h>

#include <ATen/ATen.h>
#include <torch/version.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/directory.h"
#include "tessera/checkpoint/merge.h"

namespace tessera::checkpoint {

namespace {

// One file of a rank and its records.
std::vector<TensorRecord> write_tensors(
    FileSystem& files,
    const std::string& directory,
    const std::string& name,
    const NamedTensors& tensors,
    const std::vector<Slice>& slices,
    RankFiles& result) {
  const std::string path = join(directory, name);
  const auto written = write_safetensors(files, path, tensors, {{"format", "pt"}});
  result.files.push_back({name, written.file.size_bytes, written.file.checksum});
  std::vector<TensorRecord> records;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    TensorRecord record;
    record.name = tensors[i].first;
    record.dtype = dtype_name(tensors[i].second.scalar_type(), record.name);
    record.shape = tensors[i].second.sizes().vec();
    record.slice = slices[i];
    record.file = name;
    record.hash = hash_of_tensor(record, written.data_checksums[i]);
    records.push_back(std::move(record));
  }
  return records;
}

Slice slice_of(const RankContent& content, const std::string& parameter, const at::Tensor& tensor) {
  const auto found = content.slices.find(parameter);
  if (found == content.slices.end()) {
    return {};
  }
  const Slice& slice = found->second;
  const auto dimensions = static_cast<std::size_t>(tensor.dim());
  bool fits = slice.global_shape.size() == dimensions && slice.offset.size() == dimensions;
  for (std::size_t i = 0; fits && i < dimensions; ++i) {
    fits = slice.offset[i] >= 0 && slice.offset[i] + tensor.sizes()[i] <= slice.global_shape[i];
  }
  if (!fits) {
    throw CheckpointError(
        str("the slice given for \"",
            parameter,
            "\" does not hold a tensor of its shape; global shape and offset "
            "need one number for each of its ",
            dimensions,
            " dimensions"));
  }
  return slice;
}

// A number as a tensor without dimension; the type comes back from the dtype.
at::Tensor number_tensor(const c10::IValue& value, const std::string& what) {
  if (value.isBool()) {
    return at::scalar_tensor(value.toBool(), at::kBool);
  }
  if (value.isInt()) {
    return at::scalar_tensor(value.toInt(), at::kLong);
  }
  if (value.isDouble()) {
    return at::scalar_tensor(value.toDouble(), at::kDouble);
  }
  throw CheckpointError(str(
      what, " is a ", value.tagKind(), "; optimizer state may hold tensors, numbers and booleans"));
}

void write_optimizer(
    FileSystem& files,
    const std::string& directory,
    const std::string& name,
    const RankContent& content,
    RankFiles& result) {
  const state::OptimizerState& state = *content.optimizer;
  NamedTensors tensors;
  std::vector<Slice> slices;
  std::set<std::string> numbers;
  std::set<std::string> not_numbers;
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const auto& [parameter, tensor] : content.model) {
    shapes[parameter] = tensor.sizes().vec();
  }
  for (const auto& [parameter, fields] : state.parameters) {
    for (const auto& [field, value] : fields) {
      const std::string full_name = parameter + "/" + field;
      if (!value.isTensor()) {
        numbers.insert(field);
        tensors.emplace_back(full_name, number_tensor(value, full_name));
        slices.emplace_back();
        continue;
      }
      not_numbers.insert(field);
      const at::Tensor tensor = value.toTensor();
      const auto shape = shapes.find(parameter);
      const bool as_parameter = shape != shapes.end() && shape->second == tensor.sizes().vec();
      tensors.emplace_back(full_name, tensor);
      slices.push_back(as_parameter ? slice_of(content, parameter, tensor) : Slice());
    }
  }
  for (const auto& field : numbers) {
    if (not_numbers.count(field) > 0) {
      throw CheckpointError(
          str("the field \"",
              field,
              "\" of the optimizer's state is a number for one parameter and a "
              "tensor for another"));
    }
  }
  result.optimizer = {state.kind, state.groups, {numbers.begin(), numbers.end()}};
  if (!tensors.empty()) {
    result.optimizer_tensors = write_tensors(files, directory, name, tensors, slices, result);
  }
}

} // namespace

Writer::Writer(std::string directory, std::string tag, FileSystem& files)
    : directory_(std::move(directory)),
      tag_(std::move(tag)),
      saving_(saving_directory(directory_, tag_)),
      files_(files) {
  check_tag(tag_);
}

void Writer::begin() {
  make_directories(files_, directory_);
  tidy(directory_, files_);
  try {
    make_directories(files_, saving_);
  } catch (const CheckpointError&) {
    abandon();
    throw;
  }
}

RankFiles Writer::write_rank_files(
    int rank,
    const topology::Coordinates& at,
    const RankContent& content,
    bool full) {
  RankFiles result;
  result.rank = rank;
  const std::string suffix = full ? "" : str("_", at.pp, "_", at.tp, "_", at.rdp);
  try {
    if (!content.model.empty()) {
      std::vector<Slice> slices;
      for (const auto& [name, tensor] : content.model) {
        slices.push_back(slice_of(content, name, tensor));
      }
      result.model = write_tensors(
          files_, saving_, str("model", suffix, ".safetensors"), content.model, slices, result);
    }
    if (content.optimizer) {
      write_optimizer(files_, saving_, str("optimizer", suffix, ".safetensors"), content, result);
    }
    if (!content.rank_tensors.empty()) {
      write_tensors(
          files_,
          saving_,
          str("rank_", rank, ".safetensors"),
          content.rank_tensors,
          std::vector<Slice>(content.rank_tensors.size()),
          result);
    }
  } catch (const std::exception& error) {
    result = RankFiles();
    result.rank = rank;
    result.error = error.what();
  }
  return result;
}

Meta Writer::merge(const std::vector<RankFiles>& ranks, const SaveInfo& info) const {
  std::string failures;
  for (const auto& rank : ranks) {
    if (!rank.error.empty()) {
      failures += str("\n  rank ", rank.rank, ": ", rank.error);
    }
  }
  if (!failures.empty()) {
    throw CheckpointError(str("the checkpoint \"", tag_, "\" was not saved:", failures));
  }
  Meta meta;
  meta.torch_version = TORCH_VERSION;
  meta.tag = tag_;
  meta.model = info.model;
  meta.degrees = info.degrees;
  meta.placement = info.placement;
  meta.partition = info.partition;
  meta.user_content = info.user_content;
  merge_ranks(ranks, meta);
  for (const auto& rank : ranks) {
    for (const auto& file : rank.files) {
      const std::string path = join(saving_, file.name);
      struct stat status {};
      if (::stat(path.c_str(), &status) != 0 ||
          static_cast<std::uint64_t>(status.st_size) != file.size_bytes) {
        throw CheckpointError(
            str("rank ",
                rank.rank,
                " wrote ",
                path,
                ", but the committing rank does not see it; checkpoints need "
                "a folder that all hosts share"));
      }
    }
  }
  for (const Saving& other : whole_in(directory_, files_)) {
    meta.sequence = std::max(meta.sequence, other.sequence);
    // A checkpoint that replaces a marked one keeps the mark.
    meta.for_good = meta.for_good || (other.tag == tag_ && other.for_good);
  }
  ++meta.sequence;
  const int every = info.retention.every;
  meta.for_good =
      meta.for_good || (every > 0 && meta.sequence % static_cast<std::uint64_t>(every) == 0);
  meta.score = info.score;
  return meta;
}

SaveResult Writer::commit(const std::vector<RankFiles>& ranks, const SaveInfo& info) {
  SaveResult result;
  try {
    const Meta meta = merge(ranks, info);
    write_file(files_, join(saving_, kMetaName), to_json(meta));
    result.sequence = meta.sequence;
    result.parameter_hash = meta.parameter_hash;
    result.optimizer_hash = meta.optimizer_hash;
    publish(directory_, tag_, files_);
  } catch (const CheckpointError&) {
    abandon();
    throw;
  }
  result.path = join(directory_, tag_);
  try {
    write_file(files_, join(directory_, kNewestName), tag_ + "\n");
  } catch (const CheckpointError& error) {
    throw CheckpointError(
        str("the checkpoint ",
            result.path,
            " is complete, but is not marked as the newest: ",
            error.what()));
  }
  if (!remove_tree(files_, replaced_directory(directory_, tag_))) {
    result.warnings.push_back(
        str("cannot remove the replaced checkpoint ",
            replaced_directory(directory_, tag_),
            ": ",
            system_reason()));
  }
  for (auto& warning : remove_oldest(info.retention)) {
    result.warnings.push_back(std::move(warning));
  }
  return result;
}

std::vector<std::string> Writer::remove_oldest(const Retention& retention) {
  if (retention.newest == 0) {
    return {};
  }
  std::vector<std::string> warnings;
  try {
    // Torn checkpoints are kept for inspection, and are not counted.
    for (const std::string& tag : tags_to_remove(whole_in(directory_, files_), retention)) {
      std::string problem = tag == tag_ ? "" : remove_tag(directory_, tag, files_);
      if (!problem.empty()) {
        warnings.push_back(std::move(problem));
      }
    }
  } catch (const CheckpointError& error) {
    return {error.what()};
  }
  return warnings;
}

void Writer::abandon() {
  remove_tree(files_, saving_);
}

} // namespace tessera::checkpoint
