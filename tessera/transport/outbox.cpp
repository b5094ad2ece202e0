#include "tessera/transport/outbox.h"

#include <cstring>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/transport/shm/waiter.h"

namespace tessera::transport {

namespace {

// Tensors of a message travel inside it while they sum up to less than this:
// two copies of so little cost less than a block's bookkeeping.
constexpr std::size_t kInlineBytes = 4096;

std::size_t rounded(std::size_t bytes) {
  return (bytes + 15) / 16 * 16;
}

} // namespace

std::vector<std::int64_t> packed_places(const std::vector<std::int64_t>& bytes) {
  constexpr std::int64_t kAligned = 64;
  std::vector<std::int64_t> places;
  std::int64_t end = 0;
  for (const std::int64_t size : bytes) {
    places.push_back((end + kAligned - 1) / kAligned * kAligned);
    end = places.back() + size;
  }
  places.push_back(end);
  return places;
}

Outbox::Outbox(const std::vector<Peer>& peers, int self, Channel& channel, SharedCounters& counters)
    : peers_(peers),
      self_(self),
      channel_(channel),
      counters_(counters),
      arena_(peers[self].mapping) {
  const auto& own = *peers[self].mapping;
  for (const Peer& peer : peers) {
    auto& lane = *lanes_.emplace_back(std::make_unique<Lane>());
    if (peer.mapping) {
      lane.ring =
          std::make_unique<shm::RingWriter>(own.ring_head(peer.ring), own.ring_data(peer.ring));
    }
  }
}

// Bytes for the channel must outlive the caller's tensor. The arena serves
// other nodes too: its pages are there already.
BulkSend Outbox::make_bulk(int peer, std::size_t bytes, std::byte*& room) {
  BulkSend bulk;
  bulk.peer = peer;
  bulk.bytes = bytes;
  const auto& own = peers_[self_].mapping;
  if (const auto offset = arena_.allocate(bytes)) {
    room = own->arena() + *offset;
    bulk.keep =
        std::shared_ptr<const void>(room, [own, at = *offset](const void*) { own->release(at); });
  } else {
    auto heap = std::shared_ptr<std::byte[]>(new std::byte[bytes]);
    room = heap.get();
    bulk.keep = std::move(heap);
  }
  bulk.data = room;
  return bulk;
}

std::byte* Outbox::place(
    int peer,
    comm::TensorStub& stub,
    std::vector<std::byte>& payload,
    Prepared& prepared) {
  const bool same_node = peers_[peer].mapping != nullptr;
  std::byte* room = nullptr;
  counters_.bytes_sent += static_cast<std::int64_t>(stub.bytes);
  if (payload.size() + stub.bytes < kInlineBytes) {
    stub.place = comm::Place::kInline;
    stub.offset = payload.size();
    payload.resize(rounded(payload.size() + stub.bytes));
    room = payload.data() + stub.offset;
  } else if (const auto offset = same_node ? arena_.allocate(stub.bytes) : std::nullopt) {
    stub.place = comm::Place::kArena;
    stub.offset = *offset;
    room = peers_[self_].mapping->arena() + *offset;
  } else {
    stub.place = comm::Place::kChannel;
    prepared.bulks.push_back(make_bulk(peer, stub.bytes, room));
  }
  const bool by_channel = stub.place == comm::Place::kChannel || !same_node;
  ++(by_channel ? counters_.mpi_tensors : counters_.shared_memory_tensors);
  return room;
}

void Outbox::count(const Prepared& prepared, std::size_t payload_bytes) {
  counters_.bytes_sent += static_cast<std::int64_t>(prepared.message.size() - payload_bytes);
  ++counters_.messages_sent;
}

Outbox::Prepared Outbox::prepare(int peer, const Header& header, const c10::IValue& body) {
  const comm::Stripped stripped = comm::strip(body);
  std::vector<comm::TensorStub> stubs;
  stubs.reserve(stripped.tensors.size());
  for (const auto& tensor : stripped.tensors) {
    stubs.push_back(comm::describe(tensor));
  }
  std::vector<std::byte> payload;
  Prepared prepared;
  for (std::size_t i = 0; i < stubs.size(); ++i) {
    if (stubs[i].bytes != 0) {
      std::byte* room = place(peer, stubs[i], payload, prepared);
      comm::copy_elements(stripped.tensors[i], room);
    }
  }
  prepared.message = encode(header, stubs, stripped.structure, payload);
  count(prepared, payload.size());
  return prepared;
}

void Outbox::send_packed(int peer, const Header& header, const std::vector<at::Tensor>& tensors) {
  std::vector<std::int64_t> bytes;
  for (const auto& tensor : tensors) {
    bytes.push_back(static_cast<std::int64_t>(comm::describe(tensor).bytes));
  }
  const std::vector<std::int64_t> places = packed_places(bytes);
  comm::TensorStub stub;
  stub.dtype = at::kByte;
  stub.device = tensors.empty() ? c10::kCPU : tensors[0].device().type();
  stub.shape = {places.back()};
  stub.bytes = static_cast<std::uint64_t>(places.back());
  std::vector<std::byte> payload;
  Prepared prepared;
  if (stub.bytes != 0) {
    std::byte* room = place(peer, stub, payload, prepared);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (bytes[i] != 0) {
        comm::copy_elements(tensors[i], room + places[i]);
      }
    }
  }
  static const std::vector<std::byte> one_tensor = comm::strip(at::empty({0}, at::kByte)).structure;
  prepared.message = encode(header, {stub}, one_tensor, payload);
  count(prepared, payload.size());
  post(peer, std::move(prepared));
}

// Makes the frame that brings the message itself to a peer of this node.
Outbox::Pending Outbox::frame(int peer, Prepared& prepared) {
  Pending pending;
  pending.bytes = prepared.message.size();
  if (pending.bytes <= shm::kLargestFramed) {
    pending.message = std::move(prepared.message);
    return pending;
  }
  if (const auto offset = arena_.allocate(pending.bytes)) {
    pending.kind = shm::FrameKind::kArena;
    pending.offset = *offset;
    std::memcpy(peers_[self_].mapping->arena() + *offset, prepared.message.data(), pending.bytes);
    return pending;
  }
  pending.kind = shm::FrameKind::kChannel;
  auto keep = std::make_shared<std::vector<std::byte>>(std::move(prepared.message));
  BulkSend bulk{peer, keep->data(), keep->size(), keep};
  prepared.bulks.insert(prepared.bulks.begin(), std::move(bulk));
  return pending;
}

void Outbox::send(int peer, const Header& header, const c10::IValue& body) {
  post(peer, prepare(peer, header, body));
}

void Outbox::post(int peer, Prepared prepared) {
  Lane& lane = *lanes_[peer];
  if (!lane.ring) {
    const std::scoped_lock lock(lane.mutex);
    channel_.send_message(peer, std::move(prepared.message));
    for (auto& bulk : prepared.bulks) {
      channel_.send_bulk(std::move(bulk));
    }
    return;
  }
  Pending pending = frame(peer, prepared);
  bool written = false;
  {
    const std::scoped_lock lock(lane.mutex);
    // Bulks are sent first, because in-process they must be there when the message is read.
    for (auto& bulk : prepared.bulks) {
      channel_.send_bulk(std::move(bulk));
    }
    written = lane.waiting.empty() &&
              lane.ring->write(pending.kind, pending.message.data(), pending.bytes, pending.offset);
    if (!written) {
      lane.waiting.push_back(std::move(pending));
    }
  }
  // When the ring is full the message thread writes the frame later; the reader will wake it.
  if (written) {
    peers_[peer].mapping->control().inbox.raise();
  }
}

bool Outbox::flush_lane(const Peer& peer, Lane& lane) {
  bool written = false;
  bool empty = true;
  {
    const std::scoped_lock lock(lane.mutex);
    while (!lane.waiting.empty()) {
      const Pending& next = lane.waiting.front();
      if (!lane.ring->write(next.kind, next.message.data(), next.bytes, next.offset)) {
        empty = false;
        break;
      }
      written = true;
      lane.waiting.pop_front();
    }
  }
  if (written) {
    peer.mapping->control().inbox.raise();
  }
  return empty || has_left(peer);
}

bool Outbox::flush() {
  bool all = true;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (lanes_[i]->ring) {
      all = flush_lane(peers_[i], *lanes_[i]) && all;
    }
  }
  return all;
}

} // namespace tessera::transport
