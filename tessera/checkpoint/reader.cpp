#include "tessera/checkpoint/reader.h"

#include <algorithm>
#include <set>
#include <utility>

#include <sys/stat.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/directory.h"

namespace tessera::checkpoint {

namespace {

std::vector<std::int64_t> global_shape_of(const TensorRecord& record) {
  return record.slice.whole() ? record.shape : record.slice.global_shape;
}

std::vector<std::int64_t> offset_of(const Slice& slice, const std::vector<std::int64_t>& shape) {
  return slice.whole() ? std::vector<std::int64_t>(shape.size(), 0) : slice.offset;
}

// Lists names for a message; a long list is shortened.
class Listing {
 public:
  explicit Listing(std::string title) : title_(std::move(title)) {}
  void add(const std::string& item) {
    constexpr int kShown = 20;
    if (count_++ < kShown) {
      text_ += "\n    " + item;
    }
  }
  std::string text() const {
    return count_ == 0
               ? ""
               : str("\n  ", title_, " (", count_, "):", text_) + (count_ > 20 ? "\n    ..." : "");
  }

 private:
  std::string title_;
  std::string text_;
  int count_ = 0;
};

at::Tensor allocate(const std::vector<std::int64_t>& shape, const TensorRecord& record) {
  const auto dtype = dtype_of(record.dtype, record.name);
  try {
    return at::empty(shape, at::TensorOptions().dtype(dtype));
  } catch (const c10::Error&) {
    // The shape may come from a damaged file, so this is no internal error.
    throw CheckpointError(
        tessera::str("no memory for \"", record.name, "\" of shape ", at::IntArrayRef(shape)));
  }
}

void verify_content(const Candidate& candidate) {
  for (const auto& entry : candidate.meta.files) {
    const FileRecord found = measure_file(join(candidate.path, entry.name));
    if (found.checksum != entry.checksum) {
      throw CheckpointError(
          str(candidate.path,
              " is damaged: ",
              entry.name,
              " has the checksum ",
              to_hex(found.checksum),
              ", meta.json says ",
              to_hex(entry.checksum)));
    }
  }
}

void verify_hashes(const Candidate& candidate) {
  const Meta& meta = candidate.meta;
  if (meta.parameter_hash != combined_hash(meta.tensors) ||
      meta.optimizer_hash != combined_hash(meta.optimizer_tensors, meta.optimizer)) {
    throw CheckpointError(
        str(candidate.path,
            " is damaged: the hashes of its tensors do not add up to that of "
            "the whole"));
  }
}

} // namespace

Checkpoint::Checkpoint(std::string path, Meta meta)
    : path_(std::move(path)), meta_(std::move(meta)) {
  for (const auto& record : meta_.tensors) {
    tensors_[record.name].push_back(&record);
  }
  for (const auto& record : meta_.optimizer_tensors) {
    const auto slash = record.name.find_last_of('/');
    if (slash == std::string::npos) {
      throw CheckpointError(str(
          path_, ": the optimizer's tensor \"", record.name, "\" is not named parameter/field"));
    }
    optimizer_tensors_[record.name.substr(0, slash)].push_back(&record);
  }
}

Checkpoint Checkpoint::open(const std::string& directory, const std::string& tag, Verify verify) {
  Candidate candidate = find_tag(directory, tag);
  verify_hashes(candidate);
  if (verify == Verify::kContent) {
    verify_content(candidate);
  }
  return {std::move(candidate.path), std::move(candidate.meta)};
}

const SafetensorsFile& Checkpoint::file(const std::string& name) const {
  auto& open = open_files_[name];
  if (open == nullptr) {
    open = std::make_unique<SafetensorsFile>(join(path_, name));
  }
  return *open;
}

at::Tensor Checkpoint::read(const TensorRecord& record) const {
  const SafetensorsFile& from = file(record.file);
  at::Tensor tensor = from.read(record.name);
  const bool as_recorded = tensor.sizes().vec() == record.shape &&
                           tensor.scalar_type() == dtype_of(record.dtype, record.name);
  Checksum data;
  data.update(tensor.data_ptr(), tensor.nbytes());
  if (!as_recorded || hash_of_tensor(record, data.value()) != record.hash) {
    throw CheckpointError(str(
        from.path(), " is damaged: tensor \"", record.name, "\" is not the one that was saved"));
  }
  return tensor;
}

at::Tensor Checkpoint::assemble(
    const std::vector<const TensorRecord*>& pieces,
    const std::vector<std::int64_t>& shape,
    const Slice& slice) const {
  const auto offset = offset_of(slice, shape);
  const TensorRecord& first = *pieces.front();
  for (const TensorRecord* piece : pieces) {
    if (piece->shape == shape && offset_of(piece->slice, shape) == offset) {
      return read(*piece);
    }
  }
  at::Tensor result = allocate(shape, first);
  std::int64_t filled = 0;
  for (const TensorRecord* piece : pieces) {
    const auto from = offset_of(piece->slice, piece->shape);
    // The intersection, in this rank's and in the piece's own coordinates.
    std::vector<std::int64_t> begin(shape.size());
    std::vector<std::int64_t> length(shape.size());
    bool overlaps = true;
    for (std::size_t i = 0; i < shape.size(); ++i) {
      begin[i] = std::max(offset[i], from[i]);
      length[i] = std::min(offset[i] + shape[i], from[i] + piece->shape[i]) - begin[i];
      overlaps = overlaps && length[i] > 0;
    }
    if (!overlaps) {
      continue;
    }
    at::Tensor source = read(*piece);
    at::Tensor target = result;
    for (std::size_t i = 0; i < shape.size(); ++i) {
      const auto dimension = static_cast<std::int64_t>(i);
      source = source.narrow(dimension, begin[i] - from[i], length[i]);
      target = target.narrow(dimension, begin[i] - offset[i], length[i]);
    }
    target.copy_(source);
    filled += target.numel();
  }
  if (filled != result.numel()) {
    throw CheckpointError(
        str(path_,
            ": the files hold ",
            filled,
            " of the ",
            result.numel(),
            " elements wanted of \"",
            first.name,
            "\""));
  }
  return result;
}

std::set<std::string> Checkpoint::names() const {
  std::set<std::string> names;
  for (const auto& [name, pieces] : tensors_) {
    names.insert(name);
  }
  return names;
}

std::map<std::string, at::Tensor> Checkpoint::load_all() const {
  std::map<std::string, at::Tensor> all;
  for (const auto& [name, pieces] : tensors_) {
    all.emplace(name, assemble(pieces, global_shape_of(*pieces.front()), {}));
  }
  return all;
}

std::string Checkpoint::mismatches(const std::vector<Wanted>& wanted, const ReadOptions& options)
    const {
  Listing missing("missing in the checkpoint");
  Listing shapes("other shape");
  Listing dtypes("other dtype (convert_dtypes loads them all the same)");
  Listing unexpected("only in the checkpoint");
  for (const auto& tensor : wanted) {
    const auto found = tensors_.find(tensor.name);
    if (found == tensors_.end()) {
      missing.add(tensor.name);
      continue;
    }
    const TensorRecord& record = *found->second.front();
    const auto shape = tensor.slice.whole() ? tensor.shape : tensor.slice.global_shape;
    if (global_shape_of(record) != shape) {
      shapes.add(tessera::str(
          tensor.name,
          ": saved ",
          at::IntArrayRef(global_shape_of(record)),
          ", wanted ",
          at::IntArrayRef(shape)));
    }
    const std::string dtype = dtype_name(tensor.dtype, tensor.name);
    if (record.dtype != dtype && !options.convert_dtypes) {
      dtypes.add(str(tensor.name, ": saved ", record.dtype, ", wanted ", dtype));
    }
  }
  if (!options.all_names.empty()) {
    const std::set<std::string> known(options.all_names.begin(), options.all_names.end());
    for (const auto& [name, pieces] : tensors_) {
      if (known.count(name) == 0) {
        unexpected.add(name);
      }
    }
  }
  std::string text;
  if (!options.model.empty() && !meta_.model.empty() && options.model != meta_.model) {
    text = str("\n  it is of the model \"", meta_.model, "\", this is \"", options.model, "\"");
  }
  return text + missing.text() + unexpected.text() + shapes.text() + dtypes.text();
}

void Checkpoint::check_model(const std::vector<Wanted>& wanted, const ReadOptions& options) const {
  const std::string problems = mismatches(wanted, options);
  if (!problems.empty()) {
    throw CheckpointError(str("the checkpoint ", path_, " does not fit the model:", problems));
  }
}

std::vector<at::Tensor> Checkpoint::load_model(
    const std::vector<Wanted>& wanted,
    const ReadOptions& options) const {
  check_model(wanted, options);
  std::vector<at::Tensor> loaded;
  loaded.reserve(wanted.size());
  for (const auto& tensor : wanted) {
    loaded.push_back(
        assemble(tensors_.at(tensor.name), tensor.shape, tensor.slice).to(tensor.dtype));
  }
  return loaded;
}

state::OptimizerState Checkpoint::load_optimizer(const std::vector<Wanted>& parameters, bool states)
    const {
  const OptimizerRecord& saved = meta_.optimizer;
  if (saved.kind.empty()) {
    throw CheckpointError(
        str("the checkpoint ", path_, " holds no optimizer state; load the model only"));
  }
  const std::set<std::string> number_fields(saved.number_fields.begin(), saved.number_fields.end());
  state::OptimizerState state;
  state.kind = saved.kind;
  std::set<std::string> names;
  for (const auto& parameter : parameters) {
    names.insert(parameter.name);
    const auto found = optimizer_tensors_.find(parameter.name);
    if (!states || found == optimizer_tensors_.end()) {
      continue;
    }
    std::map<std::string, std::vector<const TensorRecord*>> by_field;
    for (const TensorRecord* record : found->second) {
      by_field[record->name.substr(parameter.name.size() + 1)].push_back(record);
    }
    const auto global_shape =
        parameter.slice.whole() ? parameter.shape : parameter.slice.global_shape;
    state::Fields& fields = state.parameters[parameter.name];
    for (const auto& [field, pieces] : by_field) {
      if (number_fields.count(field) > 0) {
        const at::Tensor number = read(*pieces.front());
        if (number.dim() != 0) {
          throw CheckpointError(str(path_, ": \"", pieces.front()->name, "\" is no number"));
        }
        fields[field] = number.scalar_type() == at::kDouble ? c10::IValue(number.item<double>())
                        : number.scalar_type() == at::kBool
                            ? c10::IValue(number.item<bool>())
                            : c10::IValue(number.item<std::int64_t>());
        continue;
      }
      const auto saved_shape = global_shape_of(*pieces.front());
      fields[field] = saved_shape == global_shape
                          ? assemble(pieces, parameter.shape, parameter.slice)
                          : assemble(pieces, saved_shape, {});
    }
  }
  for (const auto& group : saved.groups) {
    auto& part = state.groups.emplace_back();
    part.options = group.options;
    for (const auto& name : group.parameters) {
      if (names.count(name) > 0) {
        part.parameters.push_back(name);
      }
    }
  }
  return state;
}

std::map<std::string, at::Tensor> Checkpoint::load_rank_tensors(int rank) const {
  std::map<std::string, at::Tensor> tensors;
  const std::string name = str("rank_", rank, ".safetensors");
  for (const auto& entry : meta_.files) {
    if (entry.name == name) {
      const FileRecord found = measure_file(join(path_, name));
      if (found.checksum != entry.checksum) {
        throw CheckpointError(str(join(path_, name), " is damaged"));
      }
      for (const auto& [tensor, info] : file(name).tensors()) {
        tensors[tensor] = file(name).read(tensor);
      }
    }
  }
  return tensors;
}

Newest open_newest(const std::string& directory, Verify verify) {
  Newest result;
  struct stat info {};
  if (::stat(directory.c_str(), &info) != 0) {
    return result;
  }
  std::string named;
  try {
    if (const auto tag = read_newest(directory)) {
      named = *tag;
      result.checkpoint = Checkpoint::open(directory, named, verify);
      return result;
    }
  } catch (const CheckpointError& error) {
    result.warnings.emplace_back(error.what());
  }
  std::vector<std::pair<std::uint64_t, std::string>> others;
  for (const auto& tag : tags_in(directory)) {
    if (tag == named) {
      continue;
    }
    try {
      others.emplace_back(find_tag(directory, tag).meta.sequence, tag);
    } catch (const CheckpointError& error) {
      result.warnings.emplace_back(error.what());
    }
  }
  std::sort(others.rbegin(), others.rend());
  for (const auto& [sequence, tag] : others) {
    try {
      result.checkpoint = Checkpoint::open(directory, tag, verify);
      return result;
    } catch (const CheckpointError& error) {
      result.warnings.emplace_back(error.what());
    }
  }
  if (!result.warnings.empty()) {
    std::string reasons;
    for (const auto& warning : result.warnings) {
      reasons += "\n  " + warning;
    }
    throw CheckpointError(str("no checkpoint in ", directory, " is whole:", reasons));
  }
  return result;
}

} // namespace tessera::checkpoint
