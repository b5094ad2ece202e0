#include "tessera/diagnostics/error_message.h"

#include <charconv>
#include <cstdlib>

#include <c10/util/Exception.h>

namespace tessera::diagnostics {

namespace {

bool shows_stack() {
  const char* asked = std::getenv("TORCH_SHOW_CPP_STACKTRACES");
  return asked != nullptr && *asked != '\0' && std::string_view(asked) != "0";
}

} // namespace

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    return shows_stack() ? e.what() : e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

std::optional<int> origin_of(const std::string& text) {
  int rank = 0;
  const char* end = text.data() + text.size();
  if (!text.starts_with(kOriginPrefix)) {
    return {};
  }
  const auto number = std::from_chars(text.data() + kOriginPrefix.size(), end, rank);
  if (number.ec != std::errc() || number.ptr == end || (*number.ptr != ',' && *number.ptr != ':')) {
    return {};
  }
  return rank;
}

} // namespace tessera::diagnostics
