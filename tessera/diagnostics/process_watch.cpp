#include "tessera/diagnostics/process_watch.h"

#include <cerrno>
#include <csignal>

#include <sys/syscall.h>
#include <unistd.h>

#include <poll.h>

namespace tessera::diagnostics {

ProcessWatch::ProcessWatch(int pid)
    : pid_(pid), fd_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {}

ProcessWatch::~ProcessWatch() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

bool ProcessWatch::ended() const noexcept {
  if (fd_ >= 0) {
    pollfd entry{fd_, POLLIN, 0};
    return ::poll(&entry, 1, 0) == 1;
  }
  return ::kill(pid_, 0) != 0 && errno == ESRCH;
}

} // namespace tessera::diagnostics
