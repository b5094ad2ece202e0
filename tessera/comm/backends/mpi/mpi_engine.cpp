#include "tessera/comm/backends/mpi/mpi_engine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/backoff.h"
#include "tessera/comm/peer_failed.h"
#include "tessera/comm/reduce_kernels.h"

namespace tessera::comm::mpi {

namespace {

// Up to this number of bytes every rank sends its whole tensor to every other.
constexpr std::size_t kFlatBytes = std::size_t{16} << 10;

// Longer tensors are reduced chunk by chunk, which bounds the staging memory.
constexpr std::size_t kChunkBytes = std::size_t{16} << 20;

} // namespace

void MpiEngine::run(const Operation& operation) {
  operation_ = operation;
  ++sequence_;
  failures_ = failures_before(sequence_);
  switch (operation_.kind) {
    case Collective::kAllReduce:
      return all_reduce();
    case Collective::kAllGather:
      return all_gather();
    case Collective::kReduceScatter:
      return reduce_scatter();
    case Collective::kAllToAll:
      return all_to_all();
    case Collective::kBroadcast:
      return broadcast();
    case Collective::kReduce:
      return reduce_to_root();
    case Collective::kBarrier:
      return barrier();
  }
}

// ---- the collectives ------------------------------------------------------

void MpiEngine::all_reduce() {
  const std::int64_t count = operation_.count;
  if (operation_.bytes(count) <= kFlatBytes) {
    return all_reduce_flat();
  }
  const auto chunk = static_cast<std::int64_t>(kChunkBytes / size_of(operation_.type));
  for (std::int64_t start = 0; start < count; start += chunk) {
    const std::int64_t length = std::min(chunk, count - start);
    exchange_slices(start, length);
    const Span own = cut(start, length, info_.rank);
    reduce_own_slice(own.offset, own.length, operation_.output_at(own.offset));
    share_slices(start, length);
  }
}

void MpiEngine::all_reduce_flat() {
  const std::int64_t count = operation_.count;
  std::byte* room = staging(operation_.bytes(count * info_.size()));
  Transfers transfers = step();
  for (int peer = 0; peer < info_.size(); ++peer) {
    receive(transfers, peer, room + operation_.bytes(peer * count), count);
    send(transfers, peer, operation_.input, count);
  }
  wait(transfers);
  reduce_own_slice(0, count, operation_.output_at(0));
}

void MpiEngine::all_gather() {
  const std::int64_t count = operation_.count;
  Transfers transfers = step();
  for (int peer = 0; peer < info_.size(); ++peer) {
    receive(transfers, peer, operation_.output_at(peer * count), count);
    send(transfers, peer, operation_.input, count);
  }
  keep_own(operation_.output_at(info_.rank * count), operation_.input, count);
  wait(transfers);
}

void MpiEngine::reduce_scatter() {
  const std::int64_t count = operation_.count;
  const std::int64_t chunk = std::max<std::int64_t>(
      1, static_cast<std::int64_t>(kChunkBytes / size_of(operation_.type)) / info_.size());
  std::int64_t start = 0;
  do {
    const std::int64_t length = std::min(chunk, count - start);
    std::byte* room = staging(operation_.bytes(length * info_.size()));
    Transfers transfers = step();
    for (int peer = 0; peer < info_.size(); ++peer) {
      receive(transfers, peer, room + operation_.bytes(peer * length), length);
      send(transfers, peer, operation_.input_at(peer * count + start), length);
    }
    wait(transfers);
    reduce_own_slice(info_.rank * count + start, length, operation_.output_at(start));
    start += length;
  } while (start < count);
}

void MpiEngine::all_to_all() {
  const std::int64_t count = operation_.count;
  Transfers transfers = step();
  for (int peer = 0; peer < info_.size(); ++peer) {
    receive(transfers, peer, operation_.output_at(peer * count), count);
    send(transfers, peer, operation_.input_at(peer * count), count);
  }
  keep_own(
      operation_.output_at(info_.rank * count), operation_.input_at(info_.rank * count), count);
  wait(transfers);
}

// The tensor crosses each connection between nodes once for each node, however
// many of its ranks are in the group.
void MpiEngine::broadcast() {
  const int root = operation_.root;
  const auto node_of = [&](int rank) { return nodes_[static_cast<std::size_t>(rank)]; };
  std::vector<int> leaders; // one of each node: the root of its own, the first of every other
  std::vector<int> neighbours; // the ranks of this node
  int leader = -1; // of this node
  for (int rank = 0; rank < info_.size(); ++rank) {
    const bool known = std::any_of(
        leaders.begin(), leaders.end(), [&](int other) { return node_of(other) == node_of(rank); });
    const bool leads = node_of(rank) == node_of(root) ? rank == root : !known;
    if (leads) {
      leaders.push_back(rank);
    }
    if (node_of(rank) == node_of(info_.rank)) {
      neighbours.push_back(rank);
      leader = leads ? rank : leader;
    }
  }
  if (leader == info_.rank) {
    broadcast_among(leaders, root);
  }
  broadcast_among(neighbours, leader);
}

void MpiEngine::broadcast_among(const std::vector<int>& members, int root) {
  const std::int64_t count = operation_.count;
  const int parts = static_cast<int>(members.size());
  const bool is_root = info_.rank == root;
  const bool direct = operation_.bytes(count) <= kFlatBytes || parts == 2;
  Transfers scatter = step();
  for (int i = 0; i < parts; ++i) {
    const int peer = members[static_cast<std::size_t>(i)];
    const Span span = direct ? Span{0, count} : cut(0, count, i, parts);
    if (is_root) {
      send(scatter, peer, operation_.input_at(span.offset), span.length);
    } else if (peer == info_.rank) {
      receive(scatter, root, operation_.output_at(span.offset), span.length);
    }
  }
  wait(scatter);
  if (direct) {
    return;
  }
  // The root sends its own slice and needs none.
  const auto mine = std::find(members.begin(), members.end(), info_.rank);
  const Span own = cut(0, count, static_cast<int>(mine - members.begin()), parts);
  Transfers share = step();
  for (int i = 0; i < parts; ++i) {
    const int peer = members[static_cast<std::size_t>(i)];
    if (peer != root) {
      send(share, peer, operation_.output_at(own.offset), own.length);
    }
    if (!is_root) {
      const Span span = cut(0, count, i, parts);
      receive(share, peer, operation_.output_at(span.offset), span.length);
    }
  }
  wait(share);
}

void MpiEngine::reduce_to_root() {
  const std::int64_t count = operation_.count;
  const bool direct = operation_.bytes(count) <= kFlatBytes || info_.size() == 2;
  const auto chunk = static_cast<std::int64_t>(kChunkBytes / size_of(operation_.type));
  std::int64_t start = 0;
  do {
    const std::int64_t length = std::min(chunk, count - start);
    if (direct) {
      reduce_chunk_at_root(start, length);
    } else {
      reduce_chunk_by_slices(start, length);
    }
    start += length;
  } while (start < count);
}

void MpiEngine::reduce_chunk_at_root(std::int64_t start, std::int64_t length) {
  Transfers gather = step();
  if (info_.rank != operation_.root) {
    send(gather, operation_.root, operation_.input_at(start), length);
    return wait(gather);
  }
  std::byte* room = staging(operation_.bytes(length * info_.size()));
  for (int peer = 0; peer < info_.size(); ++peer) {
    receive(gather, peer, room + operation_.bytes(peer * length), length);
  }
  wait(gather);
  reduce_own_slice(start, length, operation_.output_at(start));
}

void MpiEngine::reduce_chunk_by_slices(std::int64_t start, std::int64_t length) {
  exchange_slices(start, length);
  const Span own = cut(start, length, info_.rank);
  Transfers gather = step();
  if (info_.rank == operation_.root) {
    reduce_own_slice(own.offset, own.length, operation_.output_at(own.offset));
    for (int peer = 0; peer < info_.size(); ++peer) {
      const Span span = cut(start, length, peer);
      receive(gather, peer, operation_.output_at(span.offset), span.length);
    }
  } else {
    // Only the root's tensor may change. The first slot of the staging
    // memory can take the result: it is read element by element before.
    reduce_own_slice(own.offset, own.length, staging_.data());
    send(gather, operation_.root, staging_.data(), own.length);
  }
  wait(gather);
}

void MpiEngine::barrier() {
  Transfers transfers = step();
  for (int peer = 0; peer < info_.size(); ++peer) {
    receive(transfers, peer, nullptr, 0);
    send(transfers, peer, nullptr, 0);
  }
  wait(transfers);
}

// ---- their parts ----------------------------------------------------------

MpiEngine::Span MpiEngine::cut(std::int64_t start, std::int64_t length, int owner, int parts) {
  const std::int64_t even = (length + parts - 1) / parts;
  const std::int64_t begin = std::min(owner * even, length);
  return {start + begin, std::min(begin + even, length) - begin};
}

MpiEngine::Span MpiEngine::cut(std::int64_t start, std::int64_t length, int owner) const {
  return cut(start, length, owner, info_.size());
}

void MpiEngine::exchange_slices(std::int64_t start, std::int64_t length) {
  const Span own = cut(start, length, info_.rank);
  std::byte* room = staging(
      operation_.bytes(std::max<std::int64_t>(own.length, 1)) *
      static_cast<std::size_t>(info_.size()));
  Transfers transfers = step();
  for (int peer = 0; peer < info_.size(); ++peer) {
    const Span span = cut(start, length, peer);
    receive(transfers, peer, room + operation_.bytes(peer * own.length), own.length);
    send(transfers, peer, operation_.input_at(span.offset), span.length);
  }
  wait(transfers);
}

void MpiEngine::share_slices(std::int64_t start, std::int64_t length) {
  const Span own = cut(start, length, info_.rank);
  Transfers transfers = step();
  for (int peer = 0; peer < info_.size(); ++peer) {
    const Span span = cut(start, length, peer);
    receive(transfers, peer, operation_.output_at(span.offset), span.length);
    send(transfers, peer, operation_.output_at(own.offset), own.length);
  }
  wait(transfers);
}

void MpiEngine::reduce_own_slice(std::int64_t own_offset, std::int64_t length, std::byte* out) {
  std::vector<const void*> sources;
  for (int peer = 0; peer < info_.size(); ++peer) {
    sources.push_back(
        peer == info_.rank ? static_cast<const void*>(operation_.input_at(own_offset))
                           : staging_.data() + operation_.bytes(peer * length));
  }
  reduce(
      operation_.type,
      operation_.reduce,
      out,
      sources.data(),
      info_.size(),
      length,
      operation_.scale);
}

void MpiEngine::keep_own(std::byte* own, const void* from, std::int64_t count) const {
  if (count > 0 && own != from) {
    std::memcpy(own, from, operation_.bytes(count));
  }
}

void MpiEngine::send(Transfers& transfers, int peer, const void* from, std::int64_t count) const {
  transfers.send(peer, from, operation_.bytes(count));
}

void MpiEngine::receive(Transfers& transfers, int peer, void* to, std::int64_t count) const {
  transfers.receive(peer, to, operation_.bytes(count));
}

Transfers MpiEngine::step() {
  return Transfers(messages_, tag());
}

int MpiEngine::tag() const {
  // Calls that differ in kind, or of ranks that have failed less or more often,
  // never match; 32767, the least MPI allows as the largest tag, is kNoticeTag.
  const auto call = static_cast<int>(failures_ % 2 * 2048 + sequence_ % 2048) * 8 +
                    static_cast<int>(operation_.kind);
  // Ranks that call for different modules wait for each other until the timeout says what each
  // does, instead of computing with the other's numbers.
  return static_cast<int>(operation_.caller.hash() % caller_tags_) * kCallTags + call;
}

void MpiEngine::wait(Transfers& transfers) {
  Backoff backoff(info_.timeout);
  while (!transfers.done()) {
    bool moved = false;
    try {
      moved = transfers.progress();
    } catch (const CommError& e) {
      throw CommError(str(operation_text(), ": ", e.what()));
    }
    if (moved) {
      backoff.restart();
      continue;
    }
    if (cancelled()) {
      throw CommError(
          str(operation_text(), ": this rank gave the group up after an error of its own"));
    }
    if (backoff.expired()) {
      throw CommError(
          str(operation_text(),
              ": rank ",
              info_.ranks[static_cast<std::size_t>(info_.rank)],
              " saw no progress for ",
              info_.timeout.count(),
              " ms; ",
              transfers.missing()));
    }
    take_notices();
    try {
      check_abandoned();
    } catch (const PeerFailed&) {
      transfers.drop();
      throw;
    }
    backoff.pause();
  }
}

std::byte* MpiEngine::staging(std::size_t bytes) {
  if (staging_.size() < bytes) {
    staging_.resize(bytes);
  }
  return staging_.data();
}

std::string MpiEngine::operation_text() const {
  return operation_.text(sequence_) + " in " + info_.text() + " over MPI";
}

} // namespace tessera::comm::mpi
