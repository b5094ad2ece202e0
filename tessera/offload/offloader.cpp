#include "tessera/offload/offloader.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"

namespace tessera::offload {

namespace {

/// Returns whether the bytes of this tensor can and should leave.
bool is_movable(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_meta()) { // fast mode: the bytes never came here
    return false;
  }
  if (!tensor.is_cpu()) {
    throw ConfigError(tessera::str(
        "offload_activations moves activations of a processor in this version, and a "
        "recomputed module got a tensor on ",
        tensor.device(),
        "; write false"));
  }
  const bool plain = tensor.layout() == at::kStrided && !tensor.is_quantized() &&
                     !tensor.is_nested() && !tensor.is_inference() && !tensor.is_conj() &&
                     !tensor.is_neg() && tensor.has_storage();
  const bool is_parameter = tensor.is_leaf() && tensor.requires_grad();
  // A sharded parameter and its views have no memory; operators find their numbers elsewhere.
  return plain && !is_parameter &&
         static_cast<std::int64_t>(tensor.nbytes()) >= Offloader::kSmallest &&
         tensor.storage().data() != nullptr;
}

} // namespace

struct Offloader::Group {
  struct Item {
    at::Tensor tensor; // that stays
    std::shared_ptr<Entry> entry; // of one that leaves
  };
  std::vector<Item> items;

  void fetch() const {
    for (const Item& item : items) {
      if (item.entry != nullptr) {
        item.entry->fetch();
      }
    }
  }
};

class Offloader::Kept : public recompute::KeptTensors {
 public:
  Kept(std::shared_ptr<Group> group, std::shared_ptr<Offloader*> owner, int region)
      : group_(std::move(group)), owner_(std::move(owner)), region_(region) {}

  std::vector<at::Tensor> get() override {
    group_->fetch(); // before those that are needed later
    if (*owner_ != nullptr) {
      (*owner_)->region_runs_again(region_);
    }
    std::vector<at::Tensor> tensors;
    for (const Group::Item& item : group_->items) {
      tensors.push_back(item.entry != nullptr ? item.entry->get() : item.tensor);
    }
    return tensors;
  }

 private:
  std::shared_ptr<Group> group_;
  std::shared_ptr<Offloader*> owner_;
  int region_;
};

Offloader::Offloader(std::shared_ptr<Host> host, Options options)
    : host_(std::move(host)), options_(options) {}

Offloader::~Offloader() {
  *self_ = nullptr;
}

std::unique_ptr<recompute::KeptTensors> Offloader::keep(
    std::vector<at::Tensor> tensors,
    int microbatch) {
  settle();
  throw_failure();
  const int group = options_.by_region ? regions_++ : microbatch;
  if (options_.by_region) {
    order_.task_begins({group, false});
  }
  const bool stay = stays(group);
  auto kept = std::make_shared<Group>();
  for (at::Tensor& tensor : tensors) {
    if (!stay && is_movable(tensor)) {
      kept->items.push_back({at::Tensor(), entry_of(tensor)});
    } else {
      kept->items.push_back({std::move(tensor), nullptr});
    }
  }
  groups_[group].push_back(kept);
  return std::make_unique<Kept>(std::move(kept), self_, group);
}

bool Offloader::stays(int group) const {
  const auto soon = order_.backwards_within(options_.horizon);
  return std::find(soon.begin(), soon.end(), group) != soon.end();
}

std::shared_ptr<Entry> Offloader::entry_of(const at::Tensor& tensor) {
  auto& same_storage = entries_[tensor.storage().unsafeGetStorageImpl()];
  for (const auto& weak : same_storage) {
    const auto entry = weak.lock();
    if (entry != nullptr && entry->is(tensor)) {
      return entry;
    }
  }
  auto entry = std::make_shared<Entry>(tensor, host_, counters_);
  same_storage.push_back(entry);
  leaving_.push_back(entry);
  return entry;
}

// Copies out end in their order. A failure is told where a task can throw it.
void Offloader::settle() noexcept {
  while (!leaving_.empty()) {
    const auto entry = leaving_.front().lock();
    try {
      if (entry != nullptr && !entry->settle()) {
        return;
      }
    } catch (...) {
      failure_ = std::current_exception();
    }
    leaving_.pop_front();
  }
}

void Offloader::throw_failure() {
  if (failure_) {
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }
}

void Offloader::step_begins(std::uint64_t kind) {
  kind_ = kind;
  regions_ = 0;
  backward_ = false;
  in_backward_.clear();
  runs_again_ = -1;
  groups_.clear();
  for (auto of_storage = entries_.begin(); of_storage != entries_.end();) {
    std::erase_if(of_storage->second, [](const auto& entry) { return entry.expired(); });
    of_storage = of_storage->second.empty() ? entries_.erase(of_storage) : std::next(of_storage);
  }
  failure_ = nullptr;
  order_.step_begins(kind);
}

void Offloader::step_ended() {
  order_.step_ended();
  settle();
}

void Offloader::task_begins(recompute::PipelineTask task) {
  settle();
  if (!options_.by_region) {
    order_.task_begins(task);
    if (!waits_for_a_backward(task.microbatch)) {
      if (task.backward) {
        fetch(task.microbatch);
      }
      fetch_all(order_.backwards_within(options_.horizon));
    }
    if (task.backward) {
      in_backward_.insert(task.microbatch);
    }
    return;
  }
  if (task.backward) {
    turn_backward();
    fetch_all(order_.backwards_within(options_.horizon));
    return;
  }
  if (regions_ > 0) { // the microbatch before tells what this one does
    order_.step_ended();
    order_.step_begins(kind_);
  }
  regions_ = 0;
  backward_ = false;
  groups_.clear();
}

void Offloader::region_runs_again(int region) {
  settle();
  throw_failure();
  if (options_.by_region) {
    turn_backward();
    order_.task_begins({region, true});
    fetch_all(order_.backwards_within(options_.horizon));
    return;
  }
  const int microbatch = region;
  if (std::exchange(runs_again_, microbatch) != microbatch) {
    fetch(microbatch);
    fetch_all(order_.backwards_behind(microbatch, options_.horizon));
  }
}

/// Whether the backward of another microbatch has begun and still needs what it has kept.
bool Offloader::waits_for_a_backward(int microbatch) {
  std::erase_if(in_backward_, [&](int other) { return !is_kept(other); });
  return std::any_of(
      in_backward_.begin(), in_backward_.end(), [&](int other) { return other != microbatch; });
}

bool Offloader::is_kept(int group) const {
  const auto found = groups_.find(group);
  return found != groups_.end() &&
         std::any_of(found->second.begin(), found->second.end(), [](const auto& kept) {
           return !kept.expired();
         });
}

// Regions run backward in the opposite order, so what to expect is known.
void Offloader::turn_backward() {
  if (std::exchange(backward_, true)) {
    return;
  }
  std::vector<recompute::PipelineTask> expected;
  for (int region = regions_ - 1; region >= 0; --region) {
    expected.push_back({region, true});
  }
  order_.expect(std::move(expected));
}

void Offloader::fetch_all(const std::vector<int>& groups) {
  for (const int group : groups) {
    fetch(group);
  }
}

// What was kept last is needed first.
void Offloader::fetch(int group) {
  const auto found = groups_.find(group);
  if (found == groups_.end()) {
    return;
  }
  auto& kept = found->second;
  for (auto region = kept.rbegin(); region != kept.rend(); ++region) {
    if (const auto alive = region->lock()) {
      alive->fetch();
    }
  }
}

} // namespace tessera::offload
