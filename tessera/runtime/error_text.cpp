#include "tessera/runtime/error_text.h"

#include <c10/util/Exception.h>

#include "tessera/base/error.h"

namespace tessera::runtime {

namespace {

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

} // namespace

std::string error_text(
    const std::exception_ptr& error,
    int rank,
    const std::string& where) {
  std::string message = message_of(error);
  if (message.starts_with("rank ")) {
    return message;
  }
  return str("rank ", rank, ", ", where, ": ", message);
}

} // namespace tessera::runtime
