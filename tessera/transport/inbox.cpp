#include "tessera/transport/inbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/transport/shm/waiter.h"

namespace tessera::transport {

namespace {

bool needs_channel(const MessageView& message) {
  return std::any_of(message.stubs.begin(), message.stubs.end(), [](const comm::TensorStub& stub) {
    return stub.place == comm::Place::kChannel;
  });
}

const std::byte* arena_piece(const Peer& peer, std::uint64_t offset, std::uint64_t bytes) {
  if (!peer.mapping || offset > peer.mapping->arena_bytes() ||
      bytes > peer.mapping->arena_bytes() - offset) {
    throw CommError(
        str("a message from rank ",
            peer.rank,
            " is damaged: ",
            bytes,
            " bytes at ",
            offset,
            " of its send buffer"));
  }
  return peer.mapping->arena() + offset;
}

} // namespace

Inbox::Inbox(
    const std::vector<Peer>& peers,
    int self,
    Channel& channel,
    double zero_copy_share,
    std::shared_ptr<ReceivePool> pool)
    : peers_(peers),
      self_(self),
      channel_(channel),
      zero_copy_share_(zero_copy_share),
      pool_(std::move(pool)) {
  const int ring = peers[self].ring;
  for (const Peer& peer : peers) {
    auto& source = *sources_.emplace_back(std::make_unique<Source>());
    if (peer.mapping) {
      source.ring = std::make_unique<shm::RingReader>(
          peer.mapping->ring_head(ring), peer.mapping->ring_data(ring));
    }
  }
}

std::optional<Parcel> Inbox::poll() {
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const std::size_t index = (turn_ + i) % sources_.size();
    if (auto parcel = poll_source(static_cast<int>(index))) {
      turn_ = index + 1;
      return parcel;
    }
  }
  return std::nullopt;
}

std::optional<Parcel> Inbox::poll_source(int index) {
  Source& source = *sources_[index];
  std::optional<Parcel> parcel;
  // A message that waits for a part holds back all that its source sent after it.
  if (source.queued.load() != 0) {
    return poll_queue(index);
  }
  if (source.ring && poll_ring(index, parcel) && !parcel) {
    return poll_queue(index);
  }
  return parcel;
}

std::optional<Parcel> Inbox::poll_queue(int index) {
  Source& source = *sources_[index];
  IncomingPtr incoming;
  {
    const std::scoped_lock lock(source.mutex);
    incoming = source.queue.front();
  }
  if (incoming->missing.load() != 0) {
    return std::nullopt;
  }
  if (!incoming->opened) {
    open(index, incoming);
    if (incoming->missing.load() != 0) {
      return std::nullopt;
    }
  }
  {
    const std::scoped_lock lock(source.mutex);
    source.queue.pop_front();
    --source.queued;
  }
  return finish(index, incoming->message, incoming->tensors);
}

// Returns true when a frame was taken; its parcel is there unless a part is missing.
bool Inbox::poll_ring(int index, std::optional<Parcel>& parcel) {
  Source& source = *sources_[index];
  const Peer& peer = peers_[index];
  shm::Frame frame;
  const std::byte* bytes = nullptr;
  if (!source.ring->peek(frame, bytes)) {
    return false;
  }
  if (frame.kind == shm::FrameKind::kArena) {
    bytes = arena_piece(peer, frame.offset, frame.bytes);
  }
  if (frame.kind == shm::FrameKind::kChannel) {
    auto incoming = std::make_shared<Incoming>();
    incoming->bytes.resize(frame.bytes);
    expect(index, incoming, incoming->bytes.data(), frame.bytes);
    enqueue(index, std::move(incoming));
  } else {
    const MessageView message = decode(bytes, frame.bytes);
    if (needs_channel(message)) {
      auto incoming = std::make_shared<Incoming>();
      incoming->bytes.assign(bytes, bytes + frame.bytes);
      open(index, incoming);
      enqueue(index, std::move(incoming));
    } else {
      std::vector<at::Tensor> tensors;
      tensors.reserve(message.stubs.size());
      for (const auto& stub : message.stubs) {
        tensors.push_back(materialise(index, stub, message));
      }
      parcel = finish(index, message, tensors);
    }
    if (frame.kind == shm::FrameKind::kArena) {
      peer.mapping->release(frame.offset);
    }
  }
  if (source.ring->pop()) {
    peer.mapping->control().thread.raise();
  }
  return true;
}

void Inbox::arrived(int source, std::vector<std::byte> bytes) {
  auto incoming = std::make_shared<Incoming>();
  incoming->bytes = std::move(bytes);
  open(source, incoming);
  enqueue(source, std::move(incoming));
  peers_[self_].mapping->control().inbox.raise();
}

void Inbox::enqueue(int index, IncomingPtr incoming) {
  Source& source = *sources_[index];
  const std::scoped_lock lock(source.mutex);
  source.queue.push_back(std::move(incoming));
  ++source.queued;
}

void Inbox::expect(int index, const IncomingPtr& incoming, std::byte* into, std::size_t bytes) {
  ++incoming->missing;
  BulkReceive bulk;
  bulk.source = index;
  bulk.into = into;
  bulk.bytes = bytes;
  bulk.done = [incoming, own = peers_[self_].mapping] {
    --incoming->missing;
    own->control().inbox.raise();
  };
  channel_.receive_bulk(std::move(bulk));
}

void Inbox::open(int index, const IncomingPtr& incoming) {
  incoming->opened = true;
  incoming->message = decode(incoming->bytes.data(), incoming->bytes.size());
  for (const auto& stub : incoming->message.stubs) {
    incoming->tensors.push_back(materialise(index, stub, incoming->message));
    if (stub.place == comm::Place::kChannel) {
      expect(
          index,
          incoming,
          static_cast<std::byte*>(incoming->tensors.back().data_ptr()),
          stub.bytes);
    }
  }
}

at::Tensor Inbox::materialise(int index, const comm::TensorStub& stub, const MessageView& message) {
  if (stub.place == comm::Place::kArena) {
    return from_arena(index, stub);
  }
  if (stub.place == comm::Place::kUndefined) {
    return {};
  }
  if (stub.place == comm::Place::kNone) {
    return at::empty(stub.shape, at::dtype(stub.dtype).device(stub.device));
  }
  at::Tensor tensor = pool_->make(stub.shape, stub.dtype, stub.bytes);
  if (stub.place == comm::Place::kInline) {
    std::memcpy(tensor.data_ptr(), message.payload + stub.offset, stub.bytes);
  }
  return tensor;
}

at::Tensor Inbox::from_arena(int index, const comm::TensorStub& stub) {
  const auto& mapping = peers_[index].mapping;
  // The data are not const: the receiver may change the tensor until it is dropped.
  auto* data = const_cast<std::byte*>(arena_piece(peers_[index], stub.offset, stub.bytes));
  const auto in_use = mapping->control().arena_in_use.load(std::memory_order_relaxed);
  if (static_cast<double>(in_use) <
      zero_copy_share_ * static_cast<double>(mapping->arena_bytes())) {
    return at::from_blob(
        data,
        stub.shape,
        [mapping, offset = stub.offset](void*) { mapping->release(offset); },
        at::dtype(stub.dtype));
  }
  at::Tensor tensor = pool_->make(stub.shape, stub.dtype, stub.bytes);
  std::memcpy(tensor.data_ptr(), data, stub.bytes);
  mapping->release(stub.offset);
  return tensor;
}

Parcel Inbox::finish(int index, const MessageView& message, std::vector<at::Tensor>& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    // Payloads travel through host memory; a tensor of another device goes to
    // this rank's current device of that type.
    if (tensors[i].defined() && tensors[i].device().type() != message.stubs[i].device) {
      tensors[i] = tensors[i].to(c10::Device(message.stubs[i].device));
    }
  }
  Parcel parcel;
  parcel.source = peers_[index].rank;
  parcel.header = message.header;
  parcel.body = comm::assemble(message, tensors);
  return parcel;
}

} // namespace tessera::transport
