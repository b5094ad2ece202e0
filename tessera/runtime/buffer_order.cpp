#include "tessera/runtime/buffer_order.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "tessera/base/error.h"

namespace tessera::runtime {

BufferOrder::BufferOrder(std::vector<std::pair<std::string, at::Tensor>> buffers)
    : buffers_(std::move(buffers)) {
  std::erase_if(buffers_, [](const auto& buffer) { return !buffer.second.defined(); });
}

void BufferOrder::begin(std::uint64_t kind, std::vector<int> positions) {
  positions_ = std::move(positions);
  kind_ = {kind, positions_.size()};
  const auto found = kinds_.find(kind_);
  known_ = found == kinds_.end() ? nullptr : &found->second;
  shown_.clear();
  ended_.clear();
  copies_.clear();
  versions_.clear();
  for (const auto& [name, buffer] : buffers_) {
    versions_.push_back(buffer._version());
    if (known_ == nullptr) {
      // A kernel may write to a buffer past its version, as batch norm's does.
      copies_.push_back(buffer.detach().clone());
    }
  }
  expected_.assign(positions_.size(), std::vector<int>(buffers_.size(), 0));
  if (known_ != nullptr) {
    for (const auto& [turn, changes] : *known_) {
      for (const int buffer : changes.buffers) {
        ++expected_.at(positions_.at(changes.microbatch)).at(buffer);
      }
    }
  }
}

bool BufferOrder::may_start(int microbatch, const TurnId& turn) const {
  if (known_ == nullptr) {
    return true; // pp rank 0 starts the forwards one after the other
  }
  const auto found = known_->find(turn);
  if (found == known_->end()) {
    return true;
  }
  for (int earlier = 0; earlier < positions_.at(microbatch); ++earlier) {
    for (const int buffer : found->second.buffers) {
      if (expected_[earlier][buffer] > 0) {
        return false;
      }
    }
  }
  return true;
}

std::set<int> BufferOrder::changed_since_last() {
  std::set<int> changed;
  for (int i = 0; i < static_cast<int>(buffers_.size()); ++i) {
    const at::Tensor& buffer = buffers_[i].second;
    const auto version = static_cast<std::uint32_t>(buffer._version());
    if (std::exchange(versions_[i], version) != version) {
      changed.insert(i);
    }
    if (known_ == nullptr) {
      if (!buffer.is_same_size(copies_[i]) || !at::equal(buffer, copies_[i])) {
        changed.insert(i);
        copies_[i] = buffer.detach().clone();
      }
    }
  }
  return changed;
}

bool BufferOrder::turn_ends(int microbatch, const TurnId& turn, bool forward) {
  const std::set<int> changed = changed_since_last();
  if (positions_.size() < 2) {
    return !changed.empty(); // there is only one order
  }
  if (!forward && !changed.empty()) {
    throw UserError(
        str("the buffer '",
            buffers_[*changed.begin()].first,
            "' was changed in a backward or after model.backward, where the order "
            "of the microbatches depends on timing; change it in the forward or "
            "after the step, or write \"reproducible\": false"));
  }
  if (known_ == nullptr) {
    if (!changed.empty()) {
      Changes& changes = shown_[turn];
      changes.microbatch = microbatch;
      changes.buffers.insert(changed.begin(), changed.end());
    }
    return !changed.empty();
  }
  const auto found = known_->find(turn);
  for (const int buffer : changed) {
    if (found == known_->end() || !found->second.buffers.contains(buffer)) {
      throw UserError(
          str("the buffer '",
              buffers_[buffer].first,
              "' was changed in a part of the forward that did not change it in "
              "the first step of this kind, so its changes come in no fixed "
              "order; change it in every step alike, or write "
              "\"reproducible\": false"));
    }
  }
  if (found != known_->end() && ended_.insert(turn).second) {
    for (const int buffer : found->second.buffers) {
      --expected_.at(positions_.at(microbatch)).at(buffer);
    }
  }
  return !changed.empty() || found != known_->end();
}

void BufferOrder::forward_ended(int microbatch) {
  auto& expected = expected_.at(positions_.at(microbatch));
  std::fill(expected.begin(), expected.end(), 0);
}

void BufferOrder::completed() {
  if (known_ == nullptr) {
    kinds_[kind_] = std::move(shown_);
  }
  copies_.clear();
}

} // namespace tessera::runtime
