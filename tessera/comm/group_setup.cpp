#include "tessera/comm/group_setup.h"

#include <algorithm>
#include <random>

#include "tessera/base/error.h"

namespace tessera::comm {

GroupInfo
make_group_info(const World& world, const std::string& name, const std::vector<int>& ranks) {
  GroupInfo info;
  info.name = name;
  info.ranks = ranks;
  info.timeout = world.options().timeout;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const bool ascends = i == 0 || ranks[i - 1] < ranks[i];
    if (ranks[i] < 0 || ranks[i] >= world.size() || !ascends) {
      throw CommError(str(info.text(), ": expected ascending ranks of a world of ", world.size()));
    }
  }
  const auto me = std::find(ranks.begin(), ranks.end(), world.rank());
  if (me == ranks.end()) {
    throw CommError(
        str("rank ",
            world.rank(),
            " makes ",
            info.text(),
            " but is not in it; only members call new_group"));
  }
  info.rank = static_cast<int>(me - ranks.begin());
  return info;
}

void check_message(const World& world, int peer, int tag) {
  if (peer < 0 || peer >= world.size()) {
    throw CommError(str("an object for rank ", peer, ": the world has ", world.size(), " ranks"));
  }
  if (tag < 0) {
    throw CommError(str("tag ", tag, " is negative"));
  }
}

void check_options(const WorldOptions& options) {
  const std::string& kind = options.same_node;
  if (kind != "auto" && kind != "shm" && kind != "mpi") {
    throw ConfigError(str("same_node is '", kind, "'; expected 'auto', 'shm' or 'mpi'"));
  }
  if (options.timeout.count() <= 0) {
    throw ConfigError(str("the timeout is ", options.timeout.count(), " ms; expected more than 0"));
  }
}

std::uint64_t draw_nonce() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device() | 1U;
}

} // namespace tessera::comm
