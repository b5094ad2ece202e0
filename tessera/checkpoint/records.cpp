#include "tessera/checkpoint/records.h"

#include <utility>

#include "tessera/base/json/read.h"
#include "tessera/base/json/write.h"
#include "tessera/checkpoint/checksum.h"
#include "tessera/checkpoint/field_json.h"
#include "tessera/checkpoint/json.h"
#include "tessera/topology/degrees_json.h"

namespace tessera::state {

template <typename Visit>
void describe(Visit& visit, OptimizerState::Group& group) {
  visit.allow_unknown();
  visit({.name = "parameters"}, group.parameters);
  OrderedJson options(checkpoint::fields_to_json(group.options, "optimizer options"));
  visit({.name = "options"}, options);
  visit.check([&]() -> std::string {
    try {
      group.options = checkpoint::fields_from_json(nlohmann::json(options), "options");
      return "";
    } catch (const CheckpointError& error) {
      return error.what();
    }
  });
}

} // namespace tessera::state

namespace tessera::checkpoint {

/// A hash in the text form of the file.
struct HexDigits {
  std::uint64_t& hash;
};

} // namespace tessera::checkpoint

namespace tessera::form {

template <>
struct Custom<checkpoint::HexDigits> {
  static bool read(const OrderedJson& found, checkpoint::HexDigits& into) {
    try {
      into.hash = checkpoint::from_hex(found.is_string() ? found.get<std::string>() : "", "");
      return true;
    } catch (const CheckpointError&) {
      return false;
    }
  }
  static OrderedJson write(const checkpoint::HexDigits& digits) {
    return checkpoint::to_hex(digits.hash);
  }
  static std::string allowed() {
    return "a text of 16 hexadecimal digits";
  }
};

} // namespace tessera::form

namespace tessera::checkpoint {

namespace {

using nlohmann::json;

constexpr form::Bounds kNotNegative = form::at_least(0);

template <typename Visit>
void describe_hash(Visit& visit, const char* name, std::uint64_t& hash) {
  HexDigits digits{hash};
  visit({.name = name}, digits);
}

std::string fault_of_slice(const TensorRecord& tensor) {
  const Slice& slice = tensor.slice;
  if (slice.whole() && slice.offset.empty()) {
    return "";
  }
  bool good = slice.global_shape.size() == tensor.shape.size() &&
              slice.offset.size() == tensor.shape.size();
  for (std::size_t i = 0; good && i < tensor.shape.size(); ++i) {
    good = slice.offset[i] <= slice.global_shape[i] &&
           tensor.shape[i] <= slice.global_shape[i] - slice.offset[i];
  }
  return good ? "" : str("the slice of \"", tensor.name, "\" leaves the tensor");
}

// A name from a file must not lead out of the checkpoint's folder.
bool is_name_in_folder(const std::string& name) {
  return !name.empty() && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos && name != "." && name != "..";
}

} // namespace

template <typename Visit>
void describe(Visit& visit, TensorRecord& tensor) {
  visit.allow_unknown();
  visit({.name = "name"}, tensor.name);
  visit({.name = "dtype"}, tensor.dtype);
  visit({.name = "shape", .bounds = kNotNegative}, tensor.shape);
  visit({.name = "file"}, tensor.file);
  describe_hash(visit, "hash", tensor.hash);
  constexpr auto kIfSaid = form::Presence::kIfSaid;
  visit(
      {.name = "global_shape", .bounds = kNotNegative, .presence = kIfSaid},
      tensor.slice.global_shape);
  visit({.name = "offset", .bounds = kNotNegative, .presence = kIfSaid}, tensor.slice.offset);
  visit.check([&] { return fault_of_slice(tensor); });
}

template <typename Visit>
void describe(Visit& visit, FileEntry& file) {
  visit.allow_unknown();
  visit({.name = "name"}, file.name);
  visit({.name = "size_bytes", .bounds = kNotNegative}, file.size_bytes);
  describe_hash(visit, "checksum", file.checksum);
  visit.check([&] {
    return is_name_in_folder(file.name) ? "" : str("\"", file.name, "\" is no file of this folder");
  });
}

template <typename Visit>
void describe(Visit& visit, OptimizerRecord& optimizer) {
  visit.allow_unknown();
  visit({.name = "kind"}, optimizer.kind);
  visit({.name = "groups"}, optimizer.groups);
  visit({.name = "number_fields"}, optimizer.number_fields);
}

template <typename Visit>
void describe(Visit& visit, RankFiles& files) {
  visit.allow_unknown();
  visit({.name = "rank", .bounds = kNotNegative}, files.rank);
  visit({.name = "error"}, files.error);
  visit({.name = "files"}, files.files);
  visit({.name = "model"}, files.model);
  visit({.name = "optimizer_tensors"}, files.optimizer_tensors);
  visit({.name = "optimizer"}, files.optimizer);
}

template <typename Visit>
void describe(Visit& visit, Meta& meta) {
  visit.allow_unknown();
  visit.head("tessera checkpoint", Meta{}.version);
  visit({.name = "torch_version"}, meta.torch_version);
  visit({.name = "tag"}, meta.tag);
  visit({.name = "sequence", .bounds = kNotNegative}, meta.sequence);
  constexpr auto kIfSaid = form::Presence::kIfSaid;
  visit({.name = "for_good", .presence = kIfSaid}, meta.for_good);
  visit({.name = "score", .presence = kIfSaid}, meta.score);
  visit({.name = "model"}, meta.model);
  visit({.name = "degrees"}, meta.degrees);
  visit({.name = "placement"}, meta.placement);
  visit({.name = "partition", .bounds = kNotNegative}, meta.partition);
  OrderedJson content(parse_json(meta.user_content, "the user's content"));
  visit({.name = "user_content"}, content);
  visit({.name = "files"}, meta.files);
  visit({.name = "tensors"}, meta.tensors);
  visit({.name = "optimizer_tensors"}, meta.optimizer_tensors);
  visit({.name = "optimizer"}, meta.optimizer);
  describe_hash(visit, "parameter_hash", meta.parameter_hash);
  describe_hash(visit, "optimizer_hash", meta.optimizer_hash);
  if constexpr (Visit::kReads) {
    meta.user_content = json(content).dump();
  }
}

namespace {

template <typename Record>
Record unsealed(const std::string& text, const std::string& what) {
  const OrderedJson object(unseal(text, what));
  try {
    form::Faults faults("");
    Record record;
    form::read(object, record, faults);
    return record;
  } catch (const Error& error) {
    throw CheckpointError(str(what, ": ", error.what()));
  }
}

} // namespace

std::string to_text(const RankFiles& files) {
  return seal(json(form::write(files)));
}

RankFiles rank_files_from_text(const std::string& text) {
  return unsealed<RankFiles>(text, "a rank's part of a checkpoint");
}

std::string to_json(const Meta& meta) {
  return seal(json(form::write(meta)));
}

Meta meta_from_json(const std::string& text, const std::string& what) {
  return unsealed<Meta>(text, what);
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
