#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/runtime/exchange.h"
#include "tessera/runtime/flow.h"
#include "tessera/runtime/module_directory.h"
#include "tessera/runtime/stand_in.h"
#include "tessera/runtime/value_form.h"

namespace tessera::runtime {

/// One leg of a step as a rank saw it: all that a message of it held besides
/// numbers.
struct RecordedLeg {
  bool sent = false; // else received
  int peer = 0; // pp rank
  Fields fields;
  ValueForm form;
  std::string needs_grad;
  /// Sent: by slot, see SlotFlow. Empty where nothing was handed on.
  std::vector<std::vector<Slot>> origins;
};

/// What a rank did in one step.
struct Recording {
  std::vector<Turn> turns;
  std::map<LegId, RecordedLeg> legs;
  /// A response was an error that user code caught.
  std::optional<std::string> failed_call;
  /// Of a verifying step: what this rank read; else nullptr.
  std::shared_ptr<ReadSlots> reads;

  /// The turn changed a buffer: its place in the order is not to be left.
  void keep_place(std::uint64_t task, int number);
};

/// "module 'h.1'" and so on, for messages.
std::string leg_text(const LegId& leg, int module, const ModuleDirectory& modules);

/// How the flows of two steps on this rank differ, for people; nothing: only
/// the order of tasks may.
std::optional<std::string>
flow_difference(const Recording& recorded, const Recording& found, const ModuleDirectory& modules);

/// What of a message's fixed fields differs from the recorded ones (not the
/// step), for people.
std::optional<std::string>
fields_difference(const Fields& recorded, const Fields& found, const ModuleDirectory& modules);

/// Plain data of a recording. Where no verifying step was, received slots are
/// all read and sent ones all made.
RankFlow flow_of(const Recording& recording);

/// Passes everything on to another exchange and writes it down. In a verifying
/// step user code gets stand-ins.
class RecordingExchange : public Exchange {
 public:
  /// Both outlive it. `pp_ranks`: global rank of each pp rank.
  RecordingExchange(Exchange& inner, Recording& recording, const std::vector<int>& pp_ranks);

  void request(Task& task, const Fields& fields, int owner, Content content) override;
  Content response(Task& task, const Fields& fields, int owner) override;
  Content arguments(Task& task) override;
  void respond(Task& task, Content content) override;
  c10::IValue hand_over(const LegId& leg, c10::IValue value) override;
  c10::IValue read(c10::IValue value) override;
  DispatchMode* watcher() override {
    return watcher_.get();
  }

 private:
  RecordedLeg&
  note(const LegId& id, bool sent, int peer, const Fields& fields, const Content& content);
  Content send(const LegId& id, int peer, const Fields& fields, Content content);
  int pp_rank_of(int rank) const;

  Exchange& inner_;
  Recording& recording_;
  const std::vector<int>& pp_ranks_;
  std::unique_ptr<VerifyingMode> watcher_;
};

} // namespace tessera::runtime
