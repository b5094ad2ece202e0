#include "tessera/runtime/shared_memory.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <numeric>
#include <sstream>
#include <utility>

#include <c10/core/StorageImpl.h>

#include "tessera/autograd/dispatch_mode.h"
#include "tessera/base/error.h"
#include "tessera/recompute/version.h"
#include "tessera/tensor/value.h"

namespace tessera::runtime {

namespace {

std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
  std::vector<at::Tensor> tensors;
  for_each_tensor(value, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

// Tensors that stand for others, such as those of recorded steps, are known by what owns their
// memory, and are left alone.
bool has_memory(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && tensor.numel() > 0 &&
         tensor.storage().data() != nullptr && !tensor.key_set().has(kModeKey);
}

// Of a tensor's elements, from the first to behind the last.
std::int64_t span(const at::Tensor& tensor) {
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    last += (tensor.size(d) - 1) * tensor.stride(d);
  }
  return last + 1;
}

// Returns whether two views of one tensor with the same strides have no element in common: parts of
// it side by side, as chunk() makes them.
bool lie_side_by_side(const at::Tensor& low, const at::Tensor& high, std::int64_t distance) {
  if (low.strides() != high.strides()) {
    return false;
  }
  std::vector<std::int64_t> dims(static_cast<std::size_t>(low.dim()));
  std::iota(dims.begin(), dims.end(), 0);
  std::sort(dims.begin(), dims.end(), [&](std::int64_t a, std::int64_t b) {
    return low.stride(a) > low.stride(b);
  });
  for (const std::int64_t d : dims) {
    if (low.stride(d) == 0) {
      continue;
    }
    const std::int64_t steps = distance / low.stride(d);
    distance -= steps * low.stride(d);
    if (steps >= low.size(d)) {
      return true;
    }
  }
  return distance != 0;
}

} // namespace

bool share_memory(const at::Tensor& a, const at::Tensor& b) {
  if (!has_memory(a) || !has_memory(b) || a.device() != b.device()) {
    return false;
  }
  const auto begin = [](const at::Tensor& tensor) {
    return reinterpret_cast<std::uintptr_t>(tensor.data_ptr());
  };
  const bool a_first = begin(a) <= begin(b);
  const at::Tensor& low = a_first ? a : b;
  const at::Tensor& high = a_first ? b : a;
  const std::uintptr_t distance = begin(high) - begin(low);
  if (distance >= static_cast<std::uintptr_t>(span(low)) * low.element_size()) {
    return false;
  }
  return low.dtype() != high.dtype() || distance % low.element_size() != 0 ||
         !lie_side_by_side(low, high, static_cast<std::int64_t>(distance / low.element_size()));
}

SharedMemory::SharedMemory(const c10::IValue& arguments, const c10::IValue& result) {
  std::vector<at::Tensor> before = tensors_of(arguments);
  for (const at::Tensor& tensor : tensors_of(result)) {
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (share_memory(tensor, before[i])) {
        pairs_.push_back({static_cast<std::int64_t>(before.size()), static_cast<std::int64_t>(i)});
      }
    }
    before.push_back(tensor);
  }
}

std::string SharedMemory::to_text() const {
  std::string text;
  for (const Pair& pair : pairs_) {
    text += str(text.empty() ? "" : " ", pair.result, ":", pair.other);
  }
  return text;
}

SharedMemory SharedMemory::from_text(const std::string& text) {
  SharedMemory shared;
  std::istringstream in(text);
  Pair pair;
  char colon = 0;
  while (in >> pair.result) {
    TESSERA_CHECK(in >> colon >> pair.other && colon == ':', "shared memory '", text, "'");
    shared.pairs_.push_back(pair);
  }
  TESSERA_CHECK(in.eof(), "shared memory '", text, "'");
  return shared;
}

struct SharedMemoryWatch::Watched {
  struct Copy {
    recompute::Version version;
    std::atomic<bool> changed_alone = false; // after the other's memory was given back
    bool changed() const {
      return version.changed() && !changed_alone;
    }
  };
  Watched(std::string module, bool with_argument, const at::Tensor& result, const at::Tensor& other)
      : module(std::move(module)),
        with_argument(with_argument),
        copies{{{recompute::Version(result)}, {recompute::Version(other)}}} {}

  /// The memory of one copy is given back: changes of the other do no harm from now on.
  void given_back(std::size_t copy) {
    Copy& left = copies.at(1 - copy);
    left.changed_alone = !left.version.changed();
  }

  std::string module;
  bool with_argument;
  std::array<Copy, 2> copies; // the result, and the other
};

namespace {

using Watched = SharedMemoryWatch::Watched;

/// Stands in the place of what owns a storage's memory, and says when that is given back.
struct Guard {
  at::DataPtr owner;
  std::vector<std::pair<std::weak_ptr<Watched>, std::size_t>> watched; // and which copy this is

  static void give_back(void* context) {
    const std::unique_ptr<Guard> guard(static_cast<Guard*>(context));
    for (const auto& [watched, copy] : guard->watched) {
      if (const auto alive = watched.lock()) {
        alive->given_back(copy);
      }
    }
  }
};

void guard(const at::Tensor& tensor, const std::shared_ptr<Watched>& watched, std::size_t copy) {
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  if (storage.data_ptr().get_deleter() != &Guard::give_back) {
    auto guard = std::make_unique<Guard>();
    void* const memory = storage.data_ptr().get();
    const at::Device device = storage.data_ptr().device();
    guard->owner = storage.set_data_ptr({memory, device});
    storage.set_data_ptr({memory, guard.release(), &Guard::give_back, device});
  }
  auto& all = static_cast<Guard*>(storage.data_ptr().get_context())->watched;
  std::erase_if(all, [](const auto& one) { return one.first.expired(); }); // of earlier steps
  all.emplace_back(watched, copy);
}

} // namespace

void SharedMemoryWatch::add(
    const std::string& module,
    const SharedMemory& shared,
    const c10::IValue& arguments,
    const c10::IValue& result) {
  if (shared.pairs().empty()) {
    return;
  }
  std::vector<at::Tensor> tensors = tensors_of(arguments);
  const auto count = static_cast<std::int64_t>(tensors.size());
  const std::vector<at::Tensor> results = tensors_of(result);
  tensors.insert(tensors.end(), results.begin(), results.end());
  for (const SharedMemory::Pair& pair : shared.pairs()) {
    const at::Tensor& mine = tensors.at(static_cast<std::size_t>(pair.result));
    const at::Tensor& other = tensors.at(static_cast<std::size_t>(pair.other));
    if (has_memory(mine) && has_memory(other) && mine.is_cpu() && other.is_cpu()) {
      watched_.push_back(std::make_shared<Watched>(module, pair.other < count, mine, other));
      guard(mine, watched_.back(), 0);
      guard(other, watched_.back(), 1);
    }
  }
}

void SharedMemoryWatch::check() const {
  for (const auto& watched : watched_) {
    if (!watched->copies[0].changed() && !watched->copies[1].changed()) {
      continue;
    }
    throw UserError(
        str(watched->module,
            watched->with_argument ? " returned memory of one of its arguments"
                                   : " returned the same memory twice",
            ", and one of the two was changed in place after the call, while the caller still had "
            "the other. In one process the other changes with it; across ranks each is a copy of "
            "its own. Write the out-of-place form (y = y + x for y += x), or let the module return "
            "a copy (clone())"));
  }
}

} // namespace tessera::runtime
