#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/runtime/exchange.h"
#include "tessera/runtime/replay/recording.h"
#include "tessera/runtime/turn_source.h"

namespace tessera::runtime {

/// Forwards everything to another exchange and records it. In a verifying step user code gets
/// placeholders.
class RecordingExchange : public Exchange {
 public:
  /// `recording` and `pp_ranks` outlive it. `pp_ranks` holds the global rank of each pp rank.
  RecordingExchange(
      std::unique_ptr<Exchange> inner,
      Recording& recording,
      const std::vector<int>& pp_ranks);

  void request(Task& task, const Fields& fields, int owner, Content content) override;
  Content response(Task& task, const Fields& fields, int owner) override;
  Content arguments(Task& task) override;
  void respond(Task& task, Content content) override;
  void respond_failure(Task& task, std::string text) override {
    inner_->respond_failure(task, std::move(text));
  }
  bool accepts(const Fields& fields) const override {
    return inner_->accepts(fields);
  }
  c10::IValue hand_over(const MessageId& message, c10::IValue value) override;
  c10::IValue read(c10::IValue value) override;
  DispatchMode* watcher() override {
    return watcher_.get();
  }

 private:
  RecordedMessage&
  note(const MessageId& id, bool sent, int peer, const Fields& fields, const Content& content);
  Content send(const MessageId& id, int peer, const Fields& fields, Content content);
  int pp_rank_of(int rank) const;

  std::unique_ptr<Exchange> inner_;
  Recording& recording_;
  const std::vector<int>& pp_ranks_;
  std::unique_ptr<VerifyingMode> watcher_;
};

/// Records which task had which turn.
/// Not collective. Threads: whoever holds the baton.
class TurnRecorder : public TurnObserver {
 public:
  explicit TurnRecorder(Recording& recording) : recording_(recording) {}

  void began(const Task& task, bool resumed) override;
  void changed_buffers(const Task& task) override;

 private:
  Recording& recording_;
};

} // namespace tessera::runtime
