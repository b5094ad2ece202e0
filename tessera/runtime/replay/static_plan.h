#pragma once

#include <map>
#include <vector>

#include "tessera/runtime/replay/recorded_flow.h"

namespace tessera::runtime {

/// Tensors of one sent message that go to one rank, in one packet.
struct Outgoing {
  int peer = 0; // pp rank; the sender itself where it also reads them
  std::vector<int> slots;
};

/// What the rank that sends a message does with it.
struct SentMessage {
  std::vector<bool> made; // by slot: computed here, else a placeholder that is forwarded
  std::vector<Outgoing> outgoing;
};

/// Where a received tensor comes from: a place in the packet of a sent message.
struct PacketPlace {
  MessageId message;
  int at = 0;
};

/// What the rank that receives a message does with it: each slot is the sum of these tensors;
/// without any it is a placeholder, or there is no gradient.
struct ReceivedMessage {
  std::vector<std::vector<PacketPlace>> places;
  bool waits = false; // for any place, or for the turn that keeps its place
};

/// A packet as its receiver knows it.
struct PacketPlan {
  std::vector<Slot> like; // a received slot of the same shape for each tensor
  std::vector<int> uses; // received slots that take each tensor
};

/// A turn of a task and the packets that must be there before.
struct PlannedTurn {
  Turn turn;
  std::vector<MessageId> needs;
};

/// What one rank does in a static step.
struct RankPlan {
  std::vector<PlannedTurn> turns;
  std::map<MessageId, SentMessage> sent;
  std::map<MessageId, ReceivedMessage> received;
  std::map<MessageId, PacketPlan> packets;
  /// The rank reports to pp rank 0 that it is done, since no tensor shows it.
  bool reports = false;
  /// On pp rank 0, the number of ranks that report.
  int reports_expected = 0;
};

/// Turns the recorded flows of all pp ranks into what each does in a static step. A turn that would
/// only wait for what its rank does not need is joined to the turn before. With `direct`, tensors
/// travel straight from the rank that makes them to those that read them (fast mode), otherwise
/// from caller to owner and back as recorded.
///
/// A tensor travels directly where every rank between only forwards it, in the forward and, if it
/// has a gradient, in the backward. With `exact_sums`, a sum of more than two tensors is computed
/// where it was recorded, because summands that arrive one by one could be added in another order.
/// Pure: every rank computes the same. Not collective. Threads: any thread.
/// Throws: InternalError when the flows do not fit together.
/// Source: Karakus et al. 2021, section 4.4.
std::vector<RankPlan>
make_static_plan(const std::vector<RankFlow>& flows, bool direct, bool exact_sums = false);

} // namespace tessera::runtime
