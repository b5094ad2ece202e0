#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/json/parse.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/directory.h"
#include "tessera/checkpoint/safetensors.h"

#include "cli/command.h"
#include "cli/weights/export.h"
#include "cli/weights/weights.h"

namespace tessera::cli {

namespace checkpoint_command {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string path;
  std::string file;
  bool json = false;
};

std::uint64_t bytes_of(const checkpoint::Meta& meta) {
  std::uint64_t bytes = 0;
  for (const checkpoint::FileEntry& file : meta.files) {
    bytes += file.size_bytes;
  }
  return bytes;
}

std::int64_t elements_of(const checkpoint::Meta& meta) {
  std::int64_t elements = 0;
  for (const checkpoint::TensorRecord& record : meta.tensors) {
    std::int64_t count = 1;
    for (const std::int64_t size : record.shape) {
      count *= size;
    }
    elements += count;
  }
  return elements;
}

/// What there is to say of one checkpoint; "error" alone for one that is not whole.
OrderedJson describe(const std::string& directory, const std::string& tag) {
  OrderedJson said;
  said["tag"] = tag;
  try {
    const auto opened = checkpoint::Checkpoint::open(directory, tag, checkpoint::Verify::kContent);
    check_pieces(opened);
    const checkpoint::Meta& meta = opened.meta();
    std::set<std::string> types;
    for (const checkpoint::TensorRecord& record : meta.tensors) {
      types.insert(record.dtype);
    }
    said["model"] = meta.model;
    said["tensors"] = opened.names().size();
    said["elements"] = elements_of(meta);
    said["types"] = types;
    said["optimizer"] = meta.optimizer.kind;
    said["pipeline_parallel_degree"] = meta.degrees.pipeline;
    said["tensor_parallel_degree"] = meta.degrees.tensor;
    said["reduced_data_parallel_degree"] = meta.degrees.reduced_data;
    said["files"] = meta.files.size();
    said["bytes"] = bytes_of(meta);
    said["state_hash"] = checkpoint::to_hex(meta.parameter_hash);
    said["for_good"] = meta.for_good;
    if (meta.score) {
      said["score"] = *meta.score;
    }
    const OrderedJson content = parse_json(meta.user_content, tag);
    if (content.is_object() && content.contains("user")) {
      said["user"] = content["user"]; // what save was given
    }
  } catch (const CheckpointError& error) {
    said["error"] = error.what();
  }
  return said;
}

std::string text_of(const OrderedJson& one) {
  if (one.contains("error")) {
    return str(one["tag"].get<std::string>(), ": not whole: ", one["error"].get<std::string>());
  }
  std::string types;
  for (const auto& type : one["types"]) {
    types += (types.empty() ? "" : ", ") + type.get<std::string>();
  }
  const std::string optimizer = one["optimizer"].get<std::string>();
  const auto number = [&](const char* key) { return one[key].get<std::int64_t>(); };
  return str(
      one["tag"].get<std::string>(),
      ": ",
      one["model"].get<std::string>(),
      ", ",
      number("tensors"),
      " tensors of ",
      number("elements"),
      " elements (",
      types,
      "), ",
      optimizer.empty() ? "no optimizer" : "optimizer " + optimizer,
      ", written by ",
      number("pipeline_parallel_degree"),
      " pipeline x ",
      number("tensor_parallel_degree"),
      " tensor x ",
      number("reduced_data_parallel_degree"),
      " replicas, ",
      number("files"),
      " files of ",
      number("bytes"),
      " bytes, whole",
      one.contains("score") ? str(", validation loss ", one["score"].get<double>()) : str(""),
      one["for_good"].get<bool>() ? ", kept for good" : "");
}

void show(const Options& options) {
  fs::path path = fs::weakly_canonical(with_best_found(options.path));
  if (!path.has_filename()) {
    path = path.parent_path();
  }
  if (!fs::is_directory(path)) {
    throw ConfigError(str("there is no folder '", options.path, "'"));
  }
  const bool one = fs::exists(path / checkpoint::kMetaName);
  const std::string directory = (one ? path.parent_path() : path).string();
  const std::vector<std::string> tags =
      one ? std::vector<std::string>{path.filename().string()} : checkpoint::tags_in(directory);
  if (tags.empty()) {
    throw ConfigError(str("'", options.path, "' holds no checkpoint"));
  }
  bool whole = true;
  std::optional<std::string> newest;
  try {
    newest = checkpoint::read_newest(directory);
  } catch (const CheckpointError& error) {
    log::warning(error.what());
    whole = false;
  }
  const auto best = checkpoint::find_best(directory);
  OrderedJson all = OrderedJson::array();
  for (const std::string& tag : tags) {
    OrderedJson said = describe(directory, tag);
    said["newest"] = newest == tag;
    said["best"] = best == tag;
    whole = whole && !said.contains("error");
    if (!options.json) {
      std::printf(
          "%s%s%s\n",
          text_of(said).c_str(),
          newest == tag ? " (the newest)" : "",
          best == tag ? " (the best)" : "");
    }
    all.push_back(std::move(said));
  }
  if (options.json) {
    std::printf("%s\n", indented(all, 2).c_str());
  }
  if (!whole) {
    throw CLI::RuntimeError(1); // which, and why, has been said
  }
}

void merge(const Options& options) {
  if (fs::exists(options.file)) {
    throw ConfigError(str("'", options.file, "' exists already; name another file"));
  }
  const Weights weights(options.path);
  if (!weights.checkpoint()) {
    throw ConfigError(str("'", options.path, "' is no checkpoint of this program"));
  }
  NamedTensors tensors;
  for (const auto& [name, tensor] : weights.tensors()) {
    tensors.emplace_back(name, tensor);
  }
  const auto written = checkpoint::write_safetensors(options.file, tensors, {{"format", "pt"}});
  std::printf(
      "%s: %zu tensors of %s, %llu bytes; every element was used once\n",
      options.file.c_str(),
      tensors.size(),
      weights.path().c_str(),
      static_cast<unsigned long long>(written.file.size_bytes));
}

void set_up(CLI::App& app) {
  auto options = std::make_shared<Options>();
  auto* showing = app.add_subcommand("show", "what a checkpoint holds, and whether it is whole");
  showing->add_option("path", options->path, "a checkpoint, or a folder of checkpoints")
      ->required();
  showing->add_flag("--json", options->json, "as JSON");
  showing->callback([options] { show(*options); });
  auto* merging =
      app.add_subcommand("merge", "put the pieces of all ranks together in one .safetensors file");
  merging->add_option("path", options->path, "a checkpoint, or a folder: its newest")->required();
  merging->add_option("file", options->file, "the .safetensors file to make")->required();
  merging->callback([options] { merge(*options); });
  set_up_export(*app.add_subcommand(
      "convert", "write it as a folder that transformers loads; the same as tessera export"));
  app.require_subcommand(1);
}

const RegisterCommand registered({
    "checkpoint",
    "look at checkpoints, put their pieces together, write them for others",
    set_up,
});

} // namespace
} // namespace checkpoint_command

} // namespace tessera::cli
