#include "tessera/checkpoint/retention.h"

#include <algorithm>
#include <tuple>

namespace tessera::checkpoint {

std::optional<Saving> best_of(const std::vector<Saving>& all) {
  const Saving* best = nullptr;
  for (const Saving& one : all) {
    if (one.score && (best == nullptr || std::tie(*one.score, one.sequence) <
                                             std::tie(*best->score, best->sequence))) {
      best = &one;
    }
  }
  return best == nullptr ? std::nullopt : std::optional(*best);
}

std::vector<std::string> tags_to_remove(std::vector<Saving> all, const Retention& retention) {
  const auto stay = static_cast<std::size_t>(std::max(retention.newest, 0));
  if (stay == 0 || all.size() <= stay) {
    return {};
  }
  const auto best = retention.best ? best_of(all) : std::nullopt;
  std::sort(all.begin(), all.end(), [](const Saving& a, const Saving& b) {
    return std::tie(a.sequence, a.tag) < std::tie(b.sequence, b.tag);
  });
  all.resize(all.size() - stay);
  std::vector<std::string> going;
  for (const Saving& one : all) {
    if (!one.for_good && (!best || best->tag != one.tag)) {
      going.push_back(one.tag);
    }
  }
  return going;
}

} // namespace tessera::checkpoint
