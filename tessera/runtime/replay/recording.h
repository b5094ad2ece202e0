#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/runtime/module_directory.h"
#include "tessera/runtime/replay/placeholder.h"
#include "tessera/runtime/replay/recorded_flow.h"
#include "tessera/runtime/replay/value_signature.h"
#include "tessera/runtime/requires_grad_mask.h"

namespace tessera::runtime {

/// Everything that one message of a remote call carried except tensor data, as recorded on this
/// rank.
struct RecordedMessage {
  bool sent = false; // else received
  int peer = 0; // pp rank
  Fields fields;
  ValueSignature signature;
  RequiresGradMask requires_grad;
  /// Sent: by slot, see SlotFlow. Empty where nothing was forwarded.
  std::vector<std::vector<Slot>> origins;
};

/// What a rank did in one step.
struct Recording {
  std::vector<Turn> turns;
  std::map<MessageId, RecordedMessage> messages;
  /// Whether a response was an error that user code caught.
  std::optional<std::string> failed_call;
  /// In a verifying step, what this rank read; otherwise nullptr.
  std::shared_ptr<ReadSlots> reads;

  /// Called when the turn changed a buffer, so that it must keep its place in the order.
  void keep_place(std::uint64_t task, int number);
};

/// "module 'h.1'" and so on, for messages.
std::string message_text(const MessageId& message, int module, const ModuleDirectory& modules);

/// Returns, for people, how the flows of two steps on this rank differ; nullopt when at most the
/// order of tasks does.
std::optional<std::string>
flow_difference(const Recording& recorded, const Recording& found, const ModuleDirectory& modules);

/// Returns, for people, how a message differs from the recorded one; nullopt when it does not.
/// `value_difference` says how its value does, see ValueSignature::difference.
std::optional<std::string> message_difference(
    const MessageId& id,
    const RecordedMessage& recorded,
    const Fields& fields,
    const std::optional<std::string>& value_difference,
    const RequiresGradMask& requires_grad,
    const ModuleDirectory& modules);

/// Returns the plain data of a recording. Without a verifying step all received slots count as read
/// and all sent ones as computed.
RankFlow flow_of(const Recording& recording);

/// Says what to do about a flow that changed; every such error ends with it.
extern const char* const kStaticAdvice;

} // namespace tessera::runtime
