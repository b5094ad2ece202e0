#include "tessera/runtime/static_plan.h"

#include <algorithm>
#include <set>

#include "tessera/base/error.h"

namespace tessera::runtime {

namespace {

// Both ends of a leg.
struct End {
  int rank = 0;
  const LegFlow* leg = nullptr;
};

class Planner {
 public:
  Planner(const std::vector<RankFlow>& flows, bool direct, bool exact_sums) : flows_(flows) {
    for (int rank = 0; rank < static_cast<int>(flows.size()); ++rank) {
      for (const LegFlow& leg : flows[rank].legs) {
        (leg.sent ? senders_ : receivers_)[leg.id] = {rank, &leg};
      }
    }
    TESSERA_CHECK(
        senders_.size() == receivers_.size(),
        senders_.size(),
        " legs were sent and ",
        receivers_.size(),
        " received");
    for (const auto& [id, end] : receivers_) {
      TESSERA_CHECK(
          senders_.contains(id) && senders_.at(id).leg->slots.size() == end.leg->slots.size(),
          "the two ends of a leg differ");
      for (int i = 0; i < static_cast<int>(end.leg->slots.size()); ++i) {
        const SlotFlow& slot = end.leg->slots[i];
        stand_in_[{id, i}] = direct && slot.defined && !slot.read;
      }
    }
    do {
      changed_ = false;
      for (const auto& [id, end] : senders_) {
        settle_sums(*end.leg);
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
      SentLeg& sent = plans[end.rank].sent[id];
      for (int i = 0; i < static_cast<int>(end.leg->slots.size()); ++i) {
        sent.made.push_back(!sent_stand_in({id, i}));
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
    say_who_reports(plans);
    return plans;
  }

 private:
  using Places = std::map<int, std::vector<Slot>>; // sent slot -> received ones

  bool stand_in(const Slot& received) const {
    return stand_in_.at(received);
  }
  bool sent_stand_in(const Slot& slot) const {
    const auto& origins = slot_of(slot).origins;
    return !origins.empty() &&
           std::all_of(origins.begin(), origins.end(), [&](const Slot& s) { return stand_in(s); });
  }
  const SlotFlow& slot_of(const Slot& sent) const {
    return senders_.at(sent.leg).leg->slots.at(sent.index);
  }
  void make_real(const Slot& received) {
    bool& flag = stand_in_.at(received);
    changed_ = changed_ || flag;
    flag = false;
  }
  void make_sent_real(const Slot& slot) {
    if (sent_stand_in(slot)) {
      for (const Slot& origin : slot_of(slot).origins) {
        make_real(origin);
      }
    }
  }

  // Numbers cannot be added to what only stands for numbers.
  void settle_sums(const LegFlow& leg) {
    for (const SlotFlow& slot : leg.slots) {
      const bool mixed =
          std::any_of(slot.origins.begin(), slot.origins.end(), [&](const Slot& origin) {
            return !stand_in(origin);
          });
      for (const Slot& origin : slot.origins) {
        if (mixed) {
          make_real(origin);
        }
      }
    }
  }

  // Two summands may change places, three may not.
  void settle_long_sums() {
    for (const auto& [id, end] : receivers_) {
      for (int i = 0; i < static_cast<int>(end.leg->slots.size()); ++i) {
        std::vector<Slot> makers;
        if (end.leg->slots[i].defined) {
          find_makers({id, i}, makers);
        }
        if (makers.size() > 2) {
          make_sent_real({id, i});
        }
      }
    }
  }

  // Autograd wants a gradient where the tensor was: a stand-in for one, numbers
  // for the other; at both ends of the call.
  void settle_gradients(const LegId& id) {
    const Leg back = id.leg == Leg::kArguments ? Leg::kInputGradients : Leg::kOutputGradients;
    const LegId gradients{id.call, back};
    if ((id.leg != Leg::kArguments && id.leg != Leg::kResults) || !senders_.contains(gradients)) {
      return;
    }
    const LegFlow& leg = *senders_.at(id).leg;
    int at = 0;
    for (int i = 0; i < static_cast<int>(leg.slots.size()); ++i) {
      if (!leg.slots[i].needs_grad) {
        continue;
      }
      const Slot forward{id, i};
      const Slot backward{gradients, at++};
      if (!slot_of(backward).defined) {
        continue;
      }
      // The receiver of the one is the sender of the other.
      if (stand_in(forward) != sent_stand_in(backward)) {
        make_real(forward);
        make_sent_real(backward);
      }
      if (sent_stand_in(forward) != stand_in(backward)) {
        make_sent_real(forward);
        make_real(backward);
      }
    }
  }

  // The made slots that a received one is the sum of.
  void find_makers(const Slot& received, std::vector<Slot>& makers) const {
    if (!sent_stand_in(received)) {
      makers.push_back(received); // its sender has it
      return;
    }
    for (const Slot& origin : slot_of(received).origins) {
      find_makers(origin, makers);
    }
  }

  void receive(std::vector<RankPlan>& plans, const LegId& id, const End& end) {
    ReceivedLeg& received = plans[end.rank].received[id];
    received.places.resize(end.leg->slots.size());
    for (int i = 0; i < static_cast<int>(end.leg->slots.size()); ++i) {
      const Slot slot{id, i};
      if (!end.leg->slots[i].defined || stand_in(slot)) {
        continue;
      }
      std::vector<Slot> makers;
      find_makers(slot, makers);
      for (const Slot& maker : makers) {
        wanted_[{maker.leg, end.rank}][maker.index].push_back(slot);
      }
      received.waits = true;
    }
  }

  void send(std::vector<RankPlan>& plans, const LegId& id, int rank, const Places& slots) {
    Outgoing outgoing;
    outgoing.peer = rank;
    PacketPlan& packet = plans[rank].packets[id];
    for (const auto& [index, takers] : slots) {
      const int at = static_cast<int>(outgoing.slots.size());
      outgoing.slots.push_back(index);
      packet.like.push_back(takers.front());
      packet.uses.push_back(static_cast<int>(takers.size()));
      for (const Slot& taker : takers) {
        plans[rank].received.at(taker.leg).places.at(taker.index).push_back({id, at});
      }
    }
    plans[senders_.at(id).rank].sent.at(id).outgoing.push_back(std::move(outgoing));
  }

  static void order(const RankFlow& flow, RankPlan& plan) {
    for (const Turn& turn : flow.turns) {
      PlannedTurn planned{turn, {}};
      if (turn.cause != Cause::kSchedule && turn.leg.call != 0) {
        ReceivedLeg& leg = plan.received.at(turn.leg);
        leg.waits = leg.waits || (turn.cause == Cause::kResponse && turn.keeps_place);
        if (turn.cause == Cause::kResponse && !leg.waits) {
          continue; // goes on without waiting
        }
        std::set<LegId> needs;
        for (const auto& places : leg.places) {
          for (const PacketPlace& place : places) {
            needs.insert(place.leg);
          }
        }
        planned.needs.assign(needs.begin(), needs.end());
      }
      plan.turns.push_back(std::move(planned));
    }
  }

  // A rank need not say that it is done when its last act is to send a tensor
  // that pp rank 0 waits for, or another rank that is known to be done.
  void say_who_reports(std::vector<RankPlan>& plans) const {
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
    LegId answer;
    for (const PlannedTurn& planned : plan.turns) {
      if (planned.turn.task == task && planned.turn.cause == Cause::kStart) {
        answer = planned.turn.leg;
      }
    }
    answer.leg = is_backward(answer.leg) ? Leg::kInputGradients : Leg::kResults;
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
  std::map<LegId, End> senders_;
  std::map<LegId, End> receivers_;
  std::map<Slot, bool> stand_in_; // by received slot
  bool changed_ = false;
  // By packet (leg and receiving rank): sent slot -> received slots.
  std::map<std::pair<LegId, int>, Places> wanted_;
};

} // namespace

std::vector<RankPlan>
make_static_plan(const std::vector<RankFlow>& flows, bool direct, bool exact_sums) {
  return Planner(flows, direct, exact_sums).plans();
}

} // namespace tessera::runtime
