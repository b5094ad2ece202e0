#pragma once

#include "tessera/runtime/exchange.h"
#include "tessera/runtime/script_stream.h"
#include "tessera/runtime/server_context.h"
#include "tessera/runtime/step_control.h"

namespace tessera::runtime {

/// Exchanges requests and responses: the owner knows nothing before a request comes.
/// Not collective. Threads: whoever holds the baton.
class RequestExchange : public Exchange {
 public:
  /// All arguments outlive it. `stream` holds the random numbers that the messages carry; nullptr
  /// when they carry none.
  RequestExchange(const ServerContext& context, StepControl& control, ScriptStream* stream)
      : context_(context), control_(control), stream_(stream) {}

  void request(Task& task, const Fields& fields, int owner, Content content) override;
  Content response(Task& task, const Fields& fields, int owner) override;
  Content arguments(Task& task) override;
  void respond(Task& task, Content content) override;
  void respond_failure(Task& task, std::string text) override;
  bool accepts(const Fields& fields) const override {
    return fields.kind != ServerMessage::kPacket;
  }

 private:
  c10::IValue body_for(int rank, const Content& content);
  Content content_of(int rank, const c10::IValue& body);

  const ServerContext& context_;
  StepControl& control_;
  ScriptStream* stream_;
};

} // namespace tessera::runtime
