#include "bench/remote_call/context_switch.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <new>
#include <system_error>

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/ipc/counter.h"

namespace tessera::bench {

namespace {

constexpr std::chrono::hours kLong{1};

void wait_for_other_than(ipc::Counter& counter, std::uint32_t seen) {
  while (counter.value.load() == seen) {
    counter.sleep_while(seen, kLong);
  }
}

} // namespace

struct ContextSwitch::Shared {
  ipc::Counter asked;
  ipc::Counter answered;
};

ContextSwitch::ContextSwitch() {
  void* memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw std::system_error(errno, std::generic_category(), "mmap");
  }
  shared_ = new (memory) Shared;
  child_ = ::fork();
  if (child_ < 0) {
    throw std::system_error(errno, std::generic_category(), "fork");
  }
  if (child_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (std::uint32_t seen = 0;; ++seen) {
      wait_for_other_than(shared_->asked, seen);
      shared_->answered.raise();
    }
  }
}

ContextSwitch::~ContextSwitch() {
  ::kill(child_, SIGKILL);
  ::waitpid(child_, nullptr, 0);
  ::munmap(shared_, sizeof(Shared));
}

void ContextSwitch::round() {
  const std::uint32_t seen = shared_->answered.value.load();
  shared_->asked.raise();
  wait_for_other_than(shared_->answered, seen);
}

} // namespace tessera::bench
