#include "tessera/checkpoint/pending_save.h"

#include <chrono>
#include <cmath>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <sys/resource.h>

#include <nlohmann/json.hpp>

#include "tessera/base/json/parse.h"
#include "tessera/checkpoint/rank_parts.h"
#include "tessera/state/optimizer_parts.h"
#include "tessera/state/sharded_state.h"

namespace tessera::checkpoint {

namespace {

using Json = nlohmann::json;

/// Gathers the whole replica on its first rank; the others keep nothing.
void gather_whole(Context& context, RankContent& content) {
  comm::ProcessGroup& group = context.group(Group::kMP);
  TensorMap tensors(content.model.begin(), content.model.end());
  const auto models = comm::gather_object(*context.world, group, pack(tensors), 0);
  std::vector<c10::IValue> states;
  const bool with_optimizer = content.optimizer.has_value();
  if (with_optimizer) {
    states = comm::gather_object(*context.world, group, state::pack_state(*content.optimizer), 0);
  }
  content.model.clear();
  content.optimizer.reset();
  if (group.rank() != 0) {
    return;
  }
  TensorMap whole;
  for (const auto& part : models) {
    whole.merge(unpack<TensorMap>(part));
  }
  content.model.assign(whole.begin(), whole.end());
  if (with_optimizer) {
    content.optimizer.emplace();
  }
  for (const auto& part : states) {
    state::merge_into(*content.optimizer, state::unpack_state(part));
  }
}

SaveInfo info_of(
    const Context& context,
    const Subject& subject,
    std::int64_t steps,
    const SaveOptions& options) {
  SaveInfo info;
  info.model = subject.model;
  info.degrees = context.layout->degrees();
  info.placement = context.config.placement_strategy;
  info.partition = subject.partition;
  info.retention = {options.num_kept_checkpoints, options.keep_every, options.keep_best};
  if (options.score && std::isfinite(*options.score)) {
    info.score = options.score;
  }
  Json content;
  content["steps"] = steps;
  if (!subject.fp16_states.empty()) {
    content["fp16_states"] = Json::parse(subject.fp16_states);
  }
  try {
    content["user"] = tessera::parse_json<Json>(options.user_content, "user_content");
  } catch (const JsonError& error) {
    throw CheckpointError(error.what());
  }
  info.user_content = content.dump();
  return info;
}

// Replicas hold the same state, so the first of them writes it. The ranks of a TP_GROUP assemble
// what they hold together and share it out; before it the ranks of a shard group do.
RankContent content_of(Context& context, const Subject& subject, bool writes, bool full) {
  RankContent content;
  Subject whole = subject;
  if (subject.divided != nullptr) {
    whole.parameters = state::whole_tensors(*subject.divided, subject.parameters, writes);
    whole.state = state::whole_state(*subject.divided, subject.state, writes);
  }
  if (writes) {
    const TensorMap share = subject.layout->whole_share(tensors_of(whole));
    content.model.assign(share.begin(), share.end());
    if (subject.optimizer != nullptr) {
      content.optimizer = subject.layout->whole_share(whole.state);
    }
    if (full) {
      gather_whole(context, content);
    }
  }
  content.rank_tensors.emplace_back("random_state", generator().get_state());
  return content;
}

/// Folders with a background save that has not finished. Step thread only.
std::set<std::string>& busy_folders() {
  static std::set<std::string> folders;
  return folders;
}

/// Copies all tensors; two names of one tensor share one copy.
class Copies {
 public:
  void take(RankContent& content) {
    take(content.model);
    take(content.rank_tensors);
    if (!content.optimizer) {
      return;
    }
    for (auto& [name, fields] : content.optimizer->parameters) {
      for (auto& [field, value] : fields) {
        value = map_tensors(value, [this](const at::Tensor& tensor) { return of(tensor); });
      }
    }
  }

 private:
  void take(NamedTensors& tensors) {
    for (auto& [name, tensor] : tensors) {
      tensor = of(tensor);
    }
  }
  at::Tensor of(const at::Tensor& tensor) {
    at::Tensor& copy = copies_[tensor.unsafeGetTensorImpl()];
    if (!copy.defined()) {
      copy = tensor.detach().clone();
    }
    return copy;
  }

  std::map<const void*, at::Tensor> copies_;
};

/// Where ranks have a thread on every core, one that writes takes a share from training; this far
/// down it is a thirtieth. Linux keeps a priority for each thread, so nothing else is slowed down,
/// and who waits for the end of the save leaves the core to it.
void let_training_go_first() {
  constexpr int kNice = 15;
  ::setpriority(PRIO_PROCESS, 0, kNice); // 0: this thread
}

} // namespace

PendingSave::PendingSave(
    Context& context,
    const Subject& subject,
    std::int64_t steps,
    const std::string& directory,
    const std::string& tag,
    const SaveOptions& options,
    Writes writes)
    : context_(context), info_(info_of(context, subject, steps, options)), writer_(directory, tag) {
  if (busy_folders().contains(directory)) { // on all ranks alike
    throw CheckpointError(
        str("a save into '", directory, "' is still being written; call its finish() first"));
  }
  // A rank that aborted an earlier save may still be writing its files.
  context.group(Group::kWorld).barrier();
  on_first_rank(context, [&] {
    writer_.begin();
    return std::string();
  });
  const topology::Coordinates at = context.coordinates();
  const bool has_files = at.rdp == 0 || subject.all_write;
  content_ = content_of(context, subject, has_files, options.full);
  const bool full = options.full && has_files && at.pp == 0 && at.tp == 0;
  const int rank = context.world->rank();
  const auto write = [this, rank, at, full] {
    const at::NoGradGuard no_grad;
    RankFiles files = writer_.write_rank_files(rank, at, content_, full);
    content_ = {};
    return files;
  };
  if (writes == Writes::kInBackground) {
    try {
      Copies().take(content_);
      files_ = std::async(std::launch::async, [write] {
        let_training_go_first();
        return write();
      });
    } catch (const std::exception& error) { // `finish` reports it on all ranks
      content_ = {};
      RankFiles failed;
      failed.rank = rank;
      failed.error = error.what();
      std::promise<RankFiles> told;
      told.set_value(std::move(failed));
      files_ = told.get_future();
    }
    folder_ = directory;
    busy_folders().insert(folder_);
  } else {
    std::promise<RankFiles> written;
    written.set_value(write());
    files_ = written.get_future();
  }
}

PendingSave::~PendingSave() {
  busy_folders().erase(folder_);
  if (files_.valid()) {
    files_.wait();
  }
}

bool PendingSave::written() const {
  return !files_.valid() || files_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

Saved PendingSave::finish() {
  TESSERA_CHECK(files_.valid(), "a save is finished once");
  const RankFiles mine = files_.get();
  busy_folders().erase(std::exchange(folder_, {}));
  const auto all = comm::gather_object(
      *context_.world, context_.group(Group::kWorld), c10::IValue(to_text(mine)), 0);
  const Json result = Json::parse(on_first_rank(context_, [&] {
    std::vector<RankFiles> files;
    for (const auto& text : all) {
      files.push_back(rank_files_from_text(text.toStringRef()));
    }
    const SaveResult saved = writer_.commit(files, info_);
    return Json({{"path", saved.path},
                 {"hash", hex(saved.parameter_hash, saved.optimizer_hash)},
                 {"warnings", saved.warnings}})
        .dump();
  }));
  return {result["path"], result["hash"], result["warnings"]};
}

} // namespace tessera::checkpoint
