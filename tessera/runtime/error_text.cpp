#include "tessera/runtime/error_text.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include <c10/util/Exception.h>

#include "tessera/comm/recoverable.h"

namespace tessera::runtime {

namespace {

constexpr std::string_view kRank = "rank ";

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

std::string error_text(const std::exception_ptr& error, int rank, const std::string& where) {
  try {
    std::rethrow_exception(error);
  } catch (const FailedElsewhere& e) {
    return e.what();
  } catch (const comm::PeerFailed& e) {
    return e.what();
  } catch (...) {
    return str(kRank, rank, ", ", where, ": ", message_of(error));
  }
}

std::optional<int> origin_of(const std::string& text) {
  int rank = 0;
  const char* end = text.data() + text.size();
  if (!text.starts_with(kRank)) {
    return {};
  }
  const auto number = std::from_chars(text.data() + kRank.size(), end, rank);
  if (number.ec != std::errc() || number.ptr == end || (*number.ptr != ',' && *number.ptr != ':')) {
    return {};
  }
  return rank;
}

std::string task_text(const Fields& fields, const ModuleTable& modules) {
  const std::string what =
      fields.module < 0 ? "the step function" : "module '" + modules.name_of(fields.module) + "'";
  return str(
      what,
      ", microbatch ",
      fields.microbatch,
      fields.phase == Phase::kForward ? ", forward" : ", backward");
}

} // namespace tessera::runtime
