#include "tessera/sharding/read_order.h"

#include <algorithm>
#include <utility>

namespace tessera::sharding {

void ReadOrder::begin_step() {
  if (!learning_.empty()) {
    order_ = std::exchange(learning_, {});
  }
  next_ = 0;
}

void ReadOrder::read(int parameter) {
  if (learning_.size() < kLongest && (learning_.empty() || learning_.back() != parameter)) {
    learning_.push_back(parameter);
  }
  const auto begin = order_.begin() + static_cast<std::ptrdiff_t>(next_);
  const auto found = std::find(begin, order_.end(), parameter);
  if (found != order_.end()) {
    next_ = static_cast<std::size_t>(found - order_.begin()) + 1;
  }
}

std::vector<int> ReadOrder::next(std::size_t count, const std::vector<int>& besides) const {
  const auto has = [](const std::vector<int>& list, int parameter) {
    return std::find(list.begin(), list.end(), parameter) != list.end();
  };
  std::vector<int> found;
  for (std::size_t i = next_; i < order_.size() && found.size() < count; ++i) {
    if (!has(found, order_[i]) && !has(besides, order_[i])) {
      found.push_back(order_[i]);
    }
  }
  return found;
}

} // namespace tessera::sharding
