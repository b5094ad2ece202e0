#include "tessera/comm/group_setup.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::comm {

namespace {

/// Every rank gives a text to the first of them, which judges each and tells all the first verdict
/// that is not ""; throws it. Each wait is bounded by the world's timeout.
template <typename Judge>
void throw_verdict(
    World& world,
    const std::vector<int>& ranks,
    const std::string& text,
    int tag,
    const Judge& judge) {
  const int leader = ranks.front();
  std::string verdict;
  if (world.rank() == leader) {
    verdict = judge(leader, text);
    for (std::size_t i = 1; i < ranks.size(); ++i) {
      const std::string theirs = world.receive(ranks[i], tag).toStringRef();
      verdict = verdict.empty() ? judge(ranks[i], theirs) : verdict;
    }
    for (std::size_t i = 1; i < ranks.size(); ++i) {
      world.send(ranks[i], verdict, tag);
    }
  } else {
    world.send(leader, text, tag);
    verdict = world.receive(leader, tag).toStringRef();
  }
  if (!verdict.empty()) {
    throw CommError(verdict);
  }
}

} // namespace

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

void check_same_group(World& world, const GroupInfo& info) {
  const auto judge = [&](int rank, const std::string& theirs) {
    return theirs == info.text() ? std::string()
                                 : str("rank ",
                                       world.rank(),
                                       " makes ",
                                       info.text(),
                                       " while rank ",
                                       rank,
                                       " makes ",
                                       theirs,
                                       "; all members must make the same groups in the same order");
  };
  throw_verdict(world, info.ranks, info.text(), kGroupSetupTag, judge);
}

void throw_first_error(
    World& world,
    const std::vector<int>& ranks,
    const std::string& error,
    int tag) {
  throw_verdict(world, ranks, error, tag, [](int, const std::string& theirs) { return theirs; });
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

} // namespace tessera::comm
