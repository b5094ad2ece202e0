#include "tessera/runtime/error_text.h"

#include <c10/util/Exception.h>

namespace tessera::runtime {

std::string error_text(
    const std::exception_ptr& error,
    int rank,
    const std::string& where) {
  std::string message;
  try {
    std::rethrow_exception(error);
  } catch (const FailedElsewhere& e) {
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

} // namespace tessera::runtime
