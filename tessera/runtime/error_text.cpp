#include "tessera/runtime/error_text.h"

#include <c10/util/Exception.h>

#include "tessera/comm/recoverable.h"

namespace tessera::runtime {

std::string error_text(const std::exception_ptr& error, int rank, const std::string& where) {
  std::string message;
  try {
    std::rethrow_exception(error);
  } catch (const FailedElsewhere& e) {
    return e.what();
  } catch (const comm::PeerFailed& e) {
    return e.what();
  } catch (const c10::Error& e) {
    message = e.what_without_backtrace();
  } catch (const std::exception& e) {
    message = e.what();
  } catch (...) {
    message = "an exception that is not a std::exception";
  }
  return str("rank ", rank, ", ", where, ": ", message);
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
