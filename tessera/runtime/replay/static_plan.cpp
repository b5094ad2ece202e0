#include "tessera/runtime/replay/static_plan.h"

#include <algorithm>
#include <set>

#include "tessera/base/error.h"

namespace tessera::runtime {

namespace {

// Both ends of a message.
struct End {
  int rank = 0;
  const MessageFlow* message = nullptr;
};

class StaticPlanner {
 public:
  StaticPlanner(const std::vector<RankFlow>& flows, bool direct, bool exact_sums) : flows_(flows) {
    for (int rank = 0; rank < static_cast<int>(flows.size()); ++rank) {
      for (const MessageFlow& message : flows[rank].messages) {
        (message.sent ? senders_ : receivers_)[message.id] = {rank, &message};
      }
    }
    TESSERA_CHECK(
        senders_.size() == receivers_.size(),
        senders_.size(),
        " messages were sent and ",
        receivers_.size(),
        " received");
    for (const auto& [id, end] : receivers_) {
      TESSERA_CHECK(
          senders_.contains(id) &&
              senders_.at(id).message->slots.size() == end.message->slots.size(),
          "the two ends of a message differ");
      for (int i = 0; i < static_cast<int>(end.message->slots.size()); ++i) {
        const SlotFlow& slot = end.message->slots[i];
        placeholder_[{id, i}] = direct && slot.defined && !slot.read;
      }
    }
    do {
      changed_ = false;
      for (const auto& [id, end] : senders_) {
        settle_sums(*end.message);
        settle_gradients(id);
      }
      if (exact_sums) {
        settle_long_sums();
      }
    } while (changed_);
  }

  std::vector<RankPlan> plans() {
    std::vector<RankPlan> plans(flows_.size());
    for (const auto& [id, end] : senders_) {
      SentMessage& sent = plans[end.rank].sent[id];
      for (int i = 0; i < static_cast<int>(end.message->slots.size()); ++i) {
        sent.made.push_back(!sent_placeholder({id, i}));
      }
    }
    for (const auto& [id, end] : receivers_) {
      receive(plans, id, end);
    }
    for (const auto& [packet, slots] : wanted_) {
      const auto& [id, rank] = packet;
      send(plans, id, rank, slots);
    }
    for (std::size_t rank = 0; rank < plans.size(); ++rank) {
      order(flows_[rank], plans[rank]);
    }
    choose_reporters(plans);
    return plans;
  }

 private:
  using Places = std::map<int, std::vector<Slot>>; // sent slot -> received ones

  bool placeholder(const Slot& received) const {
    return placeholder_.at(received);
  }
  bool sent_placeholder(const Slot& slot) const {
    const auto& origins = slot_of(slot).origins;
    return !origins.empty() && std::all_of(origins.begin(), origins.end(), [&](const Slot& s) {
      return placeholder(s);
    });
  }
  const SlotFlow& slot_of(const Slot& sent) const {
    return senders_.at(sent.message).message->slots.at(sent.index);
  }
  void make_real(const Slot& received) {
    bool& flag = placeholder_.at(received);
    changed_ = changed_ || flag;
    flag = false;
  }
  void make_sent_real(const Slot& slot) {
    if (sent_placeholder(slot)) {
      for (const Slot& origin : slot_of(slot).origins) {
        make_real(origin);
      }
    }
  }

  // A sum of tensors and placeholders cannot be computed, so all of its summands become tensors.
  void settle_sums(const MessageFlow& message) {
    for (const SlotFlow& slot : message.slots) {
      const bool mixed =
          std::any_of(slot.origins.begin(), slot.origins.end(), [&](const Slot& origin) {
            return !placeholder(origin);
          });
      for (const Slot& origin : slot.origins) {
        if (mixed) {
          make_real(origin);
        }
      }
    }
  }

  // Addition of two is commutative to the bit; a sum of three depends on its order.
  void settle_long_sums() {
    for (const auto& [id, end] : receivers_) {
      for (int i = 0; i < static_cast<int>(end.message->slots.size()); ++i) {
        std::vector<Slot> makers;
        if (end.message->slots[i].defined) {
          find_makers({id, i}, makers);
        }
        if (makers.size() > 2) {
          make_sent_real({id, i});
        }
      }
    }
  }

  // Autograd needs the gradient of a tensor where the tensor was: both are placeholders or neither
  // is, at both ends of the call.
  void settle_gradients(const MessageId& id) {
    const CallMessage back = id.kind == CallMessage::kArguments ? CallMessage::kInputGradients
                                                                : CallMessage::kOutputGradients;
    const MessageId gradients{id.call, back};
    if ((id.kind != CallMessage::kArguments && id.kind != CallMessage::kResults) ||
        !senders_.contains(gradients)) {
      return;
    }
    const MessageFlow& message = *senders_.at(id).message;
    int at = 0;
    for (int i = 0; i < static_cast<int>(message.slots.size()); ++i) {
      if (!message.slots[i].requires_grad) {
        continue;
      }
      const Slot forward{id, i};
      const Slot backward{gradients, at++};
      if (!slot_of(backward).defined) {
        continue;
      }
      // The receiver of the one is the sender of the other.
      if (placeholder(forward) != sent_placeholder(backward)) {
        make_real(forward);
        make_sent_real(backward);
      }
      if (sent_placeholder(forward) != placeholder(backward)) {
        make_sent_real(forward);
        make_real(backward);
      }
    }
  }

  // The slots with data that a received one is the sum of.
  void find_makers(const Slot& received, std::vector<Slot>& makers) const {
    if (!sent_placeholder(received)) {
      makers.push_back(received); // its sender has it
      return;
    }
    for (const Slot& origin : slot_of(received).origins) {
      find_makers(origin, makers);
    }
  }

  void receive(std::vector<RankPlan>& plans, const MessageId& id, const End& end) {
    ReceivedMessage& received = plans[end.rank].received[id];
    received.places.resize(end.message->slots.size());
    for (int i = 0; i < static_cast<int>(end.message->slots.size()); ++i) {
      const Slot slot{id, i};
      if (!end.message->slots[i].defined || placeholder(slot)) {
        continue;
      }
      std::vector<Slot> makers;
      find_makers(slot, makers);
      for (const Slot& maker : makers) {
        wanted_[{maker.message, end.rank}][maker.index].push_back(slot);
      }
      received.waits = true;
    }
  }

  void send(std::vector<RankPlan>& plans, const MessageId& id, int rank, const Places& slots) {
    Outgoing outgoing;
    outgoing.peer = rank;
    PacketPlan& packet = plans[rank].packets[id];
    for (const auto& [index, takers] : slots) {
      const int at = static_cast<int>(outgoing.slots.size());
      outgoing.slots.push_back(index);
      packet.like.push_back(takers.front());
      packet.uses.push_back(static_cast<int>(takers.size()));
      for (const Slot& taker : takers) {
        plans[rank].received.at(taker.message).places.at(taker.index).push_back({id, at});
      }
    }
    plans[senders_.at(id).rank].sent.at(id).outgoing.push_back(std::move(outgoing));
  }

  static void order(const RankFlow& flow, RankPlan& plan) {
    for (const Turn& turn : flow.turns) {
      PlannedTurn planned{turn, {}};
      if (turn.cause != Cause::kSchedule && turn.message.call != 0) {
        ReceivedMessage& message = plan.received.at(turn.message);
        message.waits = message.waits || (turn.cause == Cause::kResponse && turn.keeps_place);
        if (turn.cause == Cause::kResponse && !message.waits) {
          continue; // goes on without waiting
        }
        std::set<MessageId> needs;
        for (const auto& places : message.places) {
          for (const PacketPlace& place : places) {
            needs.insert(place.message);
          }
        }
        planned.needs.assign(needs.begin(), needs.end());
      }
      plan.turns.push_back(std::move(planned));
    }
  }

  // A rank need not report that it is done when it ends by sending a tensor that pp rank 0 waits
  // for, or that another rank waits for which is known to be done.
  void choose_reporters(std::vector<RankPlan>& plans) const {
    std::vector<std::set<int>> reached;
    for (const RankPlan& plan : plans) {
      reached.push_back(reached_by_last_act(plan));
    }
    std::set<int> unknown;
    for (int rank = 1; rank < static_cast<int>(plans.size()); ++rank) {
      if (!plans[rank].turns.empty()) { // else nothing that could fail
        unknown.insert(rank);
      }
    }
    const auto waits_only_for_unknown = [&](int rank) {
      return std::all_of(reached[rank].begin(), reached[rank].end(), [&](int peer) {
        return peer == rank || unknown.contains(peer);
      });
    };
    while (!unknown.empty()) {
      const auto known = std::find_if_not(unknown.begin(), unknown.end(), waits_only_for_unknown);
      if (known != unknown.end()) {
        unknown.erase(known);
        continue;
      }
      // One that reaches nobody must report; then those that reach it need not.
      auto reporting = std::find_if(
          unknown.begin(), unknown.end(), [&](int rank) { return reached[rank].empty(); });
      if (reporting == unknown.end()) {
        reporting = unknown.begin();
      }
      plans[*reporting].reports = true;
      ++plans[0].reports_expected;
      unknown.erase(reporting);
    }
  }

  static std::set<int> reached_by_last_act(const RankPlan& plan) {
    if (plan.turns.empty()) {
      return {};
    }
    // The last turn of a call's task ends with its answer.
    const std::uint64_t task = plan.turns.back().turn.task;
    MessageId answer;
    for (const PlannedTurn& planned : plan.turns) {
      if (planned.turn.task == task && planned.turn.cause == Cause::kStart) {
        answer = planned.turn.message;
      }
    }
    answer.kind = is_backward(answer.kind) ? CallMessage::kInputGradients : CallMessage::kResults;
    std::set<int> ranks;
    const auto sent = plan.sent.find(answer);
    if (sent != plan.sent.end()) {
      for (const Outgoing& outgoing : sent->second.outgoing) {
        ranks.insert(outgoing.peer);
      }
    }
    return ranks;
  }

  const std::vector<RankFlow>& flows_;
  std::map<MessageId, End> senders_;
  std::map<MessageId, End> receivers_;
  std::map<Slot, bool> placeholder_; // by received slot
  bool changed_ = false;
  // By packet (message and receiving rank): sent slot -> received slots.
  std::map<std::pair<MessageId, int>, Places> wanted_;
};

} // namespace

std::vector<RankPlan>
make_static_plan(const std::vector<RankFlow>& flows, bool direct, bool exact_sums) {
  return StaticPlanner(flows, direct, exact_sums).plans();
}

} // namespace tessera::runtime
