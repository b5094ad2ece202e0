#include "tessera/runtime/error_text.h"

#include "tessera/comm/peer_failed.h"

namespace tessera::runtime {

namespace {

// Returns what to write where libtorch says what is wrong in words of its own interface.
std::string remedy_of(const std::string& message) {
  const auto says = [&](const char* words) { return message.find(words) != std::string::npos; };
  if (says("backward through the graph a second time")) {
    return " [A step has one backward: call model.backward once, with the sum of the losses or "
           "with "
           "model.backward({a, b}); torch::autograd::grad takes retain_graph]";
  }
  if (says("modified by an inplace operation")) {
    return " [Microbatches of a step overlap: a buffer that a forward changes and uses is changed "
           "again before the first one's backward. Use a copy of it there, or set "
           "\"active_microbatches\": 1]";
  }
  return "";
}

} // namespace

std::string error_text(const std::exception_ptr& error, int rank, const std::string& where) {
  try {
    std::rethrow_exception(error);
  } catch (const FailedElsewhere& e) {
    return e.what();
  } catch (const comm::PeerFailed& e) {
    return e.what();
  } catch (...) {
    const std::string message = message_of(error);
    return str(diagnostics::kOriginPrefix, rank, ", ", where, ": ", message, remedy_of(message));
  }
}

std::string task_text(const Fields& fields, const ModuleDirectory& modules) {
  const std::string what =
      fields.module < 0 ? "the step function" : "module '" + modules.name_of(fields.module) + "'";
  return str(
      what,
      ", microbatch ",
      fields.microbatch,
      fields.phase == Phase::kForward ? ", forward" : ", backward");
}

} // namespace tessera::runtime
