#include "tessera/simulator/alike.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <utility>

#include "tessera/base/index.h"

namespace tessera::simulator {

namespace {

using Signature = std::vector<std::int64_t>;

// Numbers what is described: equal signatures get equal numbers, from 0 on in order of appearance.
template <typename Key>
class Numbers {
 public:
  int of(Key key) {
    const int next = static_cast<int>(numbers_.size());
    return numbers_.try_emplace(std::move(key), next).first->second;
  }
  int count() const {
    return static_cast<int>(numbers_.size());
  }

 private:
  std::map<Key, int> numbers_;
};

// One use of a link: the number of the class of replicas and the place among their uses, or that of
// a group's flow below 0; and how many streams.
struct Seen {
  std::int64_t who = 0;
  std::int64_t place = 0;
  std::int64_t streams = 0;

  auto operator<=>(const Seen&) const = default;
};

// Classes of replicas and of links, which rounds divide.
struct Classes {
  std::vector<int> of_replica;
  std::vector<int> of_link;
  int replicas = 0;
  int links = 0;
};

void divide_links(
    const std::vector<ReplicaWork>& replicas,
    const std::vector<std::vector<LinkUse>>& groups,
    Classes& classes) {
  std::vector<std::vector<Seen>> seen(classes.of_link.size());
  for (std::size_t d = 0; d < replicas.size(); ++d) {
    const std::vector<LinkUse>& uses = replicas[d].uses;
    for (std::size_t i = 0; i < uses.size(); ++i) {
      seen[at(uses[i].link)].push_back(
          {classes.of_replica[d], static_cast<std::int64_t>(i), uses[i].streams});
    }
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const LinkUse& use : groups[g]) {
      seen[at(use.link)].push_back({-1, static_cast<std::int64_t>(g), use.streams});
    }
  }
  Numbers<Signature> numbers;
  for (std::size_t link = 0; link < seen.size(); ++link) {
    std::sort(seen[link].begin(), seen[link].end());
    Signature signature = {classes.of_link[link]};
    for (const Seen& one : seen[link]) {
      signature.insert(signature.end(), {one.who, one.place, one.streams});
    }
    classes.of_link[link] = numbers.of(std::move(signature));
  }
  classes.links = numbers.count();
}

void divide_replicas(const std::vector<ReplicaWork>& replicas, Classes& classes) {
  Numbers<Signature> numbers;
  for (std::size_t d = 0; d < replicas.size(); ++d) {
    Signature signature = {classes.of_replica[d]};
    for (const LinkUse& use : replicas[d].uses) {
      signature.push_back(classes.of_link[at(use.link)]);
    }
    classes.of_replica[d] = numbers.of(std::move(signature));
  }
  classes.replicas = numbers.count();
}

// Returns for each entry the first one of its class.
std::vector<int> first_of(const std::vector<int>& classes) {
  std::vector<int> first(classes.size(), -1);
  std::vector<int> result;
  for (std::size_t i = 0; i < classes.size(); ++i) {
    int& known = first[at(classes[i])];
    known = known < 0 ? static_cast<int>(i) : known;
    result.push_back(known);
  }
  return result;
}

Alike all_differ(std::size_t replicas, std::size_t links) {
  Alike alike{std::vector<int>(replicas), std::vector<int>(links)};
  std::iota(alike.first.begin(), alike.first.end(), 0);
  std::iota(alike.first_link.begin(), alike.first_link.end(), 0);
  return alike;
}

} // namespace

bool Alike::all_differ() const {
  for (std::size_t d = 0; d < first.size(); ++d) {
    if (at(first[d]) != d) {
      return false;
    }
  }
  return true;
}

Alike find_alike(
    const std::vector<double>& bytes_per_s,
    const std::vector<ReplicaWork>& replicas,
    const std::vector<std::vector<LinkUse>>& groups) {
  // Where every round splits off a few, most are different in the end.
  constexpr int kMostRounds = 64;
  Classes classes;
  Numbers<double> speeds;
  for (const double one : bytes_per_s) {
    classes.of_link.push_back(speeds.of(one));
  }
  Numbers<std::pair<std::vector<double>, std::vector<int>>> works;
  for (const ReplicaWork& one : replicas) {
    std::vector<int> streams;
    for (const LinkUse& use : one.uses) {
      streams.push_back(use.streams);
    }
    classes.of_replica.push_back(works.of({one.figures, std::move(streams)}));
  }
  int replicas_before = 0;
  int links_before = 0;
  for (int round = 0; classes.replicas == 0 || classes.replicas != replicas_before ||
                      classes.links != links_before;
       ++round) {
    if (round == kMostRounds || classes.replicas == static_cast<int>(replicas.size())) {
      return all_differ(replicas.size(), bytes_per_s.size());
    }
    replicas_before = classes.replicas;
    links_before = classes.links;
    divide_links(replicas, groups, classes);
    divide_replicas(replicas, classes);
  }
  return {first_of(classes.of_replica), first_of(classes.of_link)};
}

std::vector<LinkUse>
uses_for_all(const Alike& alike, const std::vector<ReplicaWork>& replicas, int replica) {
  std::vector<LinkUse> result;
  for (const LinkUse& use : replicas[at(replica)].uses) {
    result.push_back({alike.first_link[at(use.link)], 0});
  }
  for (std::size_t d = 0; d < replicas.size(); ++d) {
    if (alike.first[d] != replica) {
      continue;
    }
    for (std::size_t i = 0; i < result.size(); ++i) {
      const LinkUse& use = replicas[d].uses[i];
      result[i].streams += use.link == result[i].link ? use.streams : 0;
    }
  }
  return result;
}

} // namespace tessera::simulator
