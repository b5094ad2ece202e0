#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/comm/group_setup.h"
#include "tessera/comm/tags.h"
#include "tessera/transport/mailbox.h"
#include "tessera/transport/mpi/mpi_channel.h"
#include "tessera/transport/options.h"

namespace tessera::transport {

namespace {

// The longest time that a transport which ends waits for others to take what it sent.
constexpr std::chrono::milliseconds kLongestDrain = std::chrono::seconds(10);

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

// Maps the segments of this node's peers; returns the error's text when one fails.
std::string map_neighbours(comm::World& world, std::vector<Peer>& peers, int self, int rings) {
  std::string failure;
  for (std::size_t i = 0; i < peers.size(); ++i) {
    Peer& peer = peers[i];
    if (peer.ring < 0 || static_cast<int>(i) == self) {
      continue;
    }
    const auto numbers = world.receive(peer.rank, comm::kTransportSetupTag).toIntVector();
    try {
      const auto address = ipc::SegmentAddress::from_numbers(numbers);
      peer.process = std::make_shared<diagnostics::ProcessWatch>(address.process);
      peer.mapping = shm::Mapping::open(address, rings);
    } catch (const CommError& error) {
      failure = str(
          "rank ", world.rank(), " and rank ", peer.rank, " on ", peer.host, ": ", error.what());
    }
  }
  return failure;
}

// Returns the processes of this rank and of its neighbours.
std::vector<int> processes_of(const std::vector<Peer>& peers) {
  std::vector<int> processes = {static_cast<int>(::getpid())};
  for (const Peer& peer : peers) {
    if (peer.process) {
      processes.push_back(peer.process->pid());
    }
  }
  return processes;
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
  self.mapping = shm::Mapping::create(rings, static_cast<std::size_t>(options.buffer_bytes));
  mpi::MpiChannelOptions channel;
  channel.ranks = ranks;
  for (const Peer& peer : parts.peers) {
    channel.other_node.push_back(peer.ring < 0);
    if (peer.ring >= 0 && peer.rank != world.rank()) {
      world.send(peer.rank, self.mapping->address().to_numbers(), comm::kTransportSetupTag);
    }
  }
  channel.wake = [own = self.mapping] { own->control().thread.raise(); };
  // No rank goes on before all have mapped all segments, and all fail when one does.
  const std::string failure = map_neighbours(world, parts.peers, parts.self, rings);
  comm::throw_first_error(world, ranks, failure, comm::kTransportSetupTag);
  parts.may_spin = core_for_each(world.local_size(), processes_of(parts.peers));
  channel.crowded = !parts.may_spin;
  parts.channel = mpi::make_mpi_channel(std::move(channel));
  parts.zero_copy_share = options.zero_copy_share;
  parts.drain = std::min(world.options().timeout, kLongestDrain);
  return std::make_unique<Mailbox>(std::move(parts));
}

} // namespace tessera::transport
