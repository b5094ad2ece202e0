#include "tessera/runtime/error_text.h"

#include "tessera/comm/peer_failed.h"

namespace tessera::runtime {

std::string error_text(const std::exception_ptr& error, int rank, const std::string& where) {
  try {
    std::rethrow_exception(error);
  } catch (const FailedElsewhere& e) {
    return e.what();
  } catch (const comm::PeerFailed& e) {
    return e.what();
  } catch (...) {
    return str(diagnostics::kOriginPrefix, rank, ", ", where, ": ", message_of(error));
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
