#include "tessera/optim/failed_update.h"

#include <c10/util/Exception.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"

namespace tessera::optim {

namespace {

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& of_torch) {
    return of_torch.what_without_backtrace();
  } catch (const std::exception& other) {
    return other.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

} // namespace

std::optional<std::string> failure_text(const Context& context, const std::exception_ptr& error) {
  if (error == nullptr) {
    return std::nullopt;
  }
  return str("rank ", context.world->rank(), ": ", text_of(error));
}

} // namespace tessera::optim
