#include "cli/weights/weights.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/json/parse.h"
#include "tessera/checkpoint/directory.h"
#include "tessera/checkpoint/safetensors.h"

#include "models/data/data_hashes.h"
#include "models/published_config.h"

namespace tessera::cli {

namespace {

namespace fs = std::filesystem;

const char* const kFile = "model.safetensors";
const char* const kIndex = "model.safetensors.index.json";

/// {"weight_map": {"tensor": "file"}}
std::map<std::string, std::string> read_index(const fs::path& path) {
  const std::string origin = path.string();
  const OrderedJson index = parse_json(read_file(origin), origin);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw CheckpointError(str(origin, " has no object \"weight_map\""));
  }
  std::map<std::string, std::string> files;
  for (const auto& item : index["weight_map"].items()) {
    const std::string file = item.value().is_string() ? item.value().get<std::string>() : "";
    if (file.empty() || fs::path(file).filename() != file) {
      throw CheckpointError(
          str(origin, ": \"", item.key(), "\" names ", item.value().dump(), ", no file beside it"));
    }
    files[item.key()] = file;
  }
  return files;
}

/// The shape of the whole tensor.
const std::vector<std::int64_t>& whole_shape(const checkpoint::TensorRecord& record) {
  return record.slice.whole() ? record.shape : record.slice.global_shape;
}

bool overlap(const checkpoint::TensorRecord& a, const checkpoint::TensorRecord& b) {
  if (a.slice.whole() || b.slice.whole()) {
    return true;
  }
  for (std::size_t i = 0; i < a.shape.size(); ++i) {
    const std::int64_t from = std::max(a.slice.offset[i], b.slice.offset[i]);
    const std::int64_t to =
        std::min(a.slice.offset[i] + a.shape[i], b.slice.offset[i] + b.shape[i]);
    if (from >= to) {
      return false;
    }
  }
  return true;
}

std::int64_t elements(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    count *= size;
  }
  return count;
}

using Pieces = std::map<std::string, std::vector<const checkpoint::TensorRecord*>>;

Pieces pieces_of(const checkpoint::Checkpoint& from) {
  Pieces pieces;
  for (const checkpoint::TensorRecord& record : from.meta().tensors) {
    pieces[record.name].push_back(&record);
  }
  return pieces;
}

/// None in a folder without checkpoints. An older one than the newest is not what was asked for.
std::optional<checkpoint::Checkpoint> newest_in(const std::string& folder) {
  const bool any = std::any_of(
      fs::directory_iterator(folder), fs::directory_iterator(), [](const fs::directory_entry& in) {
        return fs::exists(in.path() / checkpoint::kMetaName);
      });
  if (!any && !fs::exists(fs::path(folder) / checkpoint::kNewestName)) {
    return std::nullopt;
  }
  checkpoint::Newest newest = checkpoint::open_newest(folder, checkpoint::Verify::kSizes);
  if (!newest.warnings.empty()) {
    throw CheckpointError(
        str(newest.warnings.front(),
            newest.checkpoint ? str("; name ", newest.checkpoint->path(), " to take that one")
                              : str("")));
  }
  return std::move(newest.checkpoint);
}

} // namespace

std::string with_best_found(const std::string& path) {
  const fs::path at(path);
  const std::string folder = at.has_parent_path() ? at.parent_path().string() : ".";
  if (at.filename() != "best" || fs::exists(at) || !fs::is_directory(folder)) {
    return path;
  }
  const auto tag = checkpoint::find_best(folder);
  if (!tag) {
    throw ConfigError(
        str("'",
            path,
            "': no whole checkpoint in '",
            folder,
            "' has a validation loss; train with validation.every and checkpoint.keep_best"));
  }
  return (fs::path(folder) / *tag).string();
}

Weights::Weights(const std::string& asked) : path_(with_best_found(asked)), folder_(path_) {
  const std::string path = path_;
  const fs::path at(path);
  if (fs::is_regular_file(at)) {
    folder_ = at.parent_path().string();
    if (at.extension() != ".safetensors") {
      throw ConfigError(
          str("'",
              path,
              "' is no .safetensors file; name one, a folder that holds one, or a "
              "checkpoint"));
    }
    return;
  }
  if (!fs::is_directory(at)) {
    throw ConfigError(
        str("there is no '",
            path,
            "'; name a folder that holds weights, a .safetensors file, or a checkpoint"));
  }
  fs::path whole = fs::weakly_canonical(at);
  if (!whole.has_filename()) {
    whole = whole.parent_path();
  }
  if (fs::exists(whole / checkpoint::kMetaName)) {
    checkpoint_ = checkpoint::Checkpoint::open(
        whole.parent_path().string(), whole.filename().string(), checkpoint::Verify::kSizes);
  } else if (fs::exists(whole / kIndex)) {
    file_of_ = read_index(whole / kIndex);
  } else if (fs::exists(whole / kFile)) {
    path_ = (at / kFile).string();
  } else {
    checkpoint_ = newest_in(whole.string());
  }
  if (checkpoint_) {
    path_ = folder_ = checkpoint_->path();
  } else if (file_of_.empty() && path_ == path) {
    throw ConfigError(
        str("'",
            path,
            "' holds no weights: there is no ",
            kFile,
            ", no ",
            kIndex,
            ", and no checkpoint (",
            checkpoint::kMetaName,
            ")"));
  }
}

std::map<std::string, at::Tensor> Weights::tensors() const {
  if (checkpoint_) {
    check_pieces(*checkpoint_);
    std::vector<checkpoint::Wanted> wanted;
    for (const auto& [name, pieces] : pieces_of(*checkpoint_)) {
      const checkpoint::TensorRecord& first = *pieces.front();
      wanted.push_back({name, checkpoint::dtype_of(first.dtype, name), whole_shape(first), {}});
    }
    const std::vector<at::Tensor> loaded = checkpoint_->load_model(wanted);
    std::map<std::string, at::Tensor> tensors;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      tensors[wanted[i].name] = loaded[i];
    }
    return tensors;
  }
  if (file_of_.empty()) {
    return checkpoint::map_safetensors(path_);
  }
  std::set<std::string> files;
  for (const auto& [name, file] : file_of_) {
    files.insert(file);
  }
  std::map<std::string, at::Tensor> tensors;
  for (const std::string& file : files) {
    for (auto& [name, tensor] : checkpoint::map_safetensors((fs::path(path_) / file).string())) {
      const auto said = file_of_.find(name);
      if (said == file_of_.end() || said->second != file) {
        throw CheckpointError(
            str(path_, ": ", file, " holds ", name, ", which ", kIndex, " does not say"));
      }
      tensors[name] = tensor;
    }
  }
  for (const auto& [name, file] : file_of_) {
    if (!tensors.contains(name)) {
      throw CheckpointError(
          str(path_, ": ", kIndex, " says that ", file, " holds ", name, "; it does not"));
    }
  }
  return tensors;
}

models::Preset preset_beside(const Weights& weights) {
  return preset_in(weights.folder());
}

models::Preset preset_in(const std::string& folder) {
  const std::string config = (fs::path(folder) / "config.json").string();
  if (!fs::exists(config)) {
    throw ConfigError(
        str("there is no ",
            config,
            " beside the weights, so the model they are of is not known; copy the config.json of "
            "their checkpoint into this folder, or name the checkpoint or what tessera export "
            "makes of it"));
  }
  return models::preset_of_options(
      config, models::options_from_published(read_file(config), config));
}

std::optional<std::string> tokenizer_hash_of(const Weights& weights) {
  if (!weights.checkpoint()) {
    return std::nullopt;
  }
  const std::string& content = weights.checkpoint()->meta().user_content;
  const OrderedJson said = content.empty() ? OrderedJson() : parse_json(content, weights.path());
  // The folders of a mixture have one tokenizer.
  for (const char* place : {"/user/data/tokenizer", "/user/data/0/hashes/tokenizer"}) {
    const OrderedJson::json_pointer pointer(place);
    if (said.contains(pointer) && said.at(pointer).is_string()) {
      return said.at(pointer).get<std::string>();
    }
  }
  return std::nullopt;
}

std::string tokenizer_difference(
    const Weights& weights,
    const std::string& tokenizer_file,
    const std::string& from) {
  const auto trained = tokenizer_hash_of(weights);
  if (!trained || !fs::exists(tokenizer_file)) {
    return "";
  }
  const std::string found = data::hash_of_tokenizer(tokenizer_file);
  return found == *trained ? ""
                           : str("the weights of '",
                                 weights.path(),
                                 "' were trained with the tokenizer ",
                                 *trained,
                                 ", '",
                                 from,
                                 "' has the tokenizer ",
                                 found,
                                 ": its ids are other words to them");
}

void check_pieces(const checkpoint::Checkpoint& from) {
  for (const auto& [name, pieces] : pieces_of(from)) {
    const auto& whole = whole_shape(*pieces.front());
    std::int64_t held = 0;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      held += elements(pieces[i]->shape);
      for (std::size_t j = 0; j < i; ++j) {
        if (elements(pieces[i]->shape) > 0 && overlap(*pieces[i], *pieces[j])) {
          throw CheckpointError(
              str(from.path(),
                  ": ",
                  pieces[j]->file,
                  " and ",
                  pieces[i]->file,
                  " both hold elements of ",
                  name));
        }
      }
    }
    if (held != elements(whole)) {
      throw CheckpointError(
          str(from.path(),
              ": the files hold ",
              held,
              " of the ",
              elements(whole),
              " elements of ",
              name));
    }
  }
}

} // namespace tessera::cli
