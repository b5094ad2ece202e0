#include "tessera/runtime/handover.h"

#include <cerrno>
#include <system_error>

#include <unistd.h>

#include <fcntl.h>

#include "tessera/base/error.h"

namespace tessera::runtime {

Handover::Handover() {
  if (::pipe2(ends_, O_CLOEXEC) != 0) {
    throw Error(
        str("a worker thread needs a pipe: ",
            std::generic_category().message(errno),
            "; raise the limit of open files (ulimit -n)"));
  }
}

Handover::~Handover() {
  ::close(ends_[0]);
  ::close(ends_[1]);
}

void Handover::release() noexcept {
  const char turn = 0;
  while (::write(ends_[1], &turn, 1) < 0 && errno == EINTR) {
  }
}

void Handover::acquire() noexcept {
  char turn = 0;
  while (::read(ends_[0], &turn, 1) < 0 && errno == EINTR) {
  }
}

} // namespace tessera::runtime
