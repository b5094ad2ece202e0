#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/tensor/value.h"
#include "tessera/transport/mailbox.h"
#include "tessera/transport/mpi/mpi_channel.h"
#include "tessera/transport/options.h"
#include "tessera/transport/shm/event.h"

namespace tessera::transport {

namespace {

// Reserved for the introductions below.
constexpr int kHandshakeTag = 29041;
// Longest that a transport which ends waits for others to take what it sent.
constexpr std::chrono::milliseconds kLongestDrain = std::chrono::seconds(10);

// What a rank of this node must know to map another's segment:
// process, descriptor, arena bytes, nonce.
using Introduction = std::tuple<int, int, std::int64_t, std::int64_t>;

std::vector<int> checked_ranks(comm::World& world, std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  const bool unique = std::adjacent_find(ranks.begin(), ranks.end()) == ranks.end();
  if (ranks.empty() || !unique || ranks.front() < 0 || ranks.back() >= world.size() ||
      !std::binary_search(ranks.begin(), ranks.end(), world.rank())) {
    throw CommError(
        str("the peers of a transport must be different ranks of 0..",
            world.size() - 1,
            ", this rank ",
            world.rank(),
            " among them"));
  }
  return ranks;
}

std::int64_t random_nonce() {
  std::random_device device;
  return static_cast<std::int64_t>((static_cast<std::uint64_t>(device()) << 32) | device());
}

std::vector<Peer> list_peers(const comm::World& world, const std::vector<int>& ranks) {
  const auto& hosts = world.hosts();
  const std::string& own_host = hosts[static_cast<std::size_t>(world.rank())];
  const bool share = world.options().same_node != "mpi";
  std::vector<Peer> peers;
  int ring = 0;
  for (const int rank : ranks) {
    Peer& peer = peers.emplace_back();
    peer.rank = rank;
    peer.host = hosts[static_cast<std::size_t>(rank)];
    // A rank has a ring for itself in any case: it may send to itself.
    if (rank == world.rank() || (share && peer.host == own_host)) {
      peer.ring = ring++;
    }
  }
  return peers;
}

// Maps the segments of this node's peers; the error's text when one fails.
std::string map_neighbours(comm::World& world, std::vector<Peer>& peers, int self, int rings) {
  std::string failure;
  for (std::size_t i = 0; i < peers.size(); ++i) {
    Peer& peer = peers[i];
    if (peer.ring < 0 || static_cast<int>(i) == self) {
      continue;
    }
    const auto [pid, fd, bytes, nonce] =
        unpack<Introduction>(world.receive(peer.rank, kHandshakeTag));
    try {
      peer.process = std::make_shared<shm::ProcessWatch>(pid);
      peer.mapping = shm::Mapping::open(
          pid, fd, rings, static_cast<std::size_t>(bytes), static_cast<std::uint64_t>(nonce));
    } catch (const CommError& error) {
      failure = str(
          "rank ", world.rank(), " and rank ", peer.rank, " on ", peer.host, ": ", error.what());
    }
  }
  return failure;
}

// Nobody goes on before all have mapped all, and all fail when one does.
void agree(comm::World& world, const std::vector<Peer>& peers, int self, std::string failure) {
  for (std::size_t i = 0; i < peers.size(); ++i) {
    if (static_cast<int>(i) != self) {
      world.send(peers[i].rank, failure, kHandshakeTag);
    }
  }
  for (std::size_t i = 0; i < peers.size(); ++i) {
    if (static_cast<int>(i) != self) {
      auto text = unpack<std::string>(world.receive(peers[i].rank, kHandshakeTag));
      if (failure.empty()) {
        failure = std::move(text);
      }
    }
  }
  if (!failure.empty()) {
    throw CommError(failure);
  }
}

} // namespace

TransportPtr
make_transport(comm::World& world, const std::vector<int>& peers, const Options& options) {
  validate(options);
  const std::vector<int> ranks = checked_ranks(world, peers);
  Mailbox::Parts parts;
  parts.peers = list_peers(world, ranks);
  parts.self =
      static_cast<int>(std::lower_bound(ranks.begin(), ranks.end(), world.rank()) - ranks.begin());
  const int rings = static_cast<int>(std::count_if(
      parts.peers.begin(), parts.peers.end(), [](const Peer& peer) { return peer.ring >= 0; }));

  Peer& self = parts.peers[static_cast<std::size_t>(parts.self)];
  const std::int64_t nonce = random_nonce();
  self.mapping = shm::Mapping::create(
      rings, static_cast<std::size_t>(options.buffer_bytes), static_cast<std::uint64_t>(nonce));
  mpi::MpiChannelOptions channel;
  channel.ranks = ranks;
  for (const Peer& peer : parts.peers) {
    channel.other_node.push_back(peer.ring < 0);
    if (peer.ring >= 0 && peer.rank != world.rank()) {
      const Introduction mine{::getpid(), self.mapping->fd(), options.buffer_bytes, nonce};
      world.send(peer.rank, pack(mine), kHandshakeTag);
    }
  }
  channel.wake = [own = self.mapping] { shm::notify(own->control().thread); };
  parts.channel = mpi::make_mpi_channel(std::move(channel));
  agree(world, parts.peers, parts.self, map_neighbours(world, parts.peers, parts.self, rings));
  parts.zero_copy_share = options.zero_copy_share;
  parts.may_spin = core_for_each(world.local_size());
  parts.drain = std::min(world.options().timeout, kLongestDrain);
  return std::make_unique<Mailbox>(std::move(parts));
}

} // namespace tessera::transport
