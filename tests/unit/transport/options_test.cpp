#include "tessera/transport/options.h"

#include <csignal>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>
#include <sched.h>

namespace tessera::transport {
namespace {

// Another process, with this one's cores.
class Neighbour {
 public:
  Neighbour() : process_(::fork()) {
    if (process_ == 0) {
      ::pause();
      ::_exit(0);
    }
  }
  ~Neighbour() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  int process() const {
    return process_;
  }

 private:
  pid_t process_;
};

TEST(Options, ProcessesThatAreBoundToOneCoreShareIt) {
  const int self = static_cast<int>(::getpid());
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  int core = 0;
  while (!CPU_ISSET(core, &before)) {
    ++core;
  }
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  {
    const Neighbour neighbour;
    EXPECT_TRUE(core_for_each(1, {self}));
    EXPECT_FALSE(core_for_each(2, {self, neighbour.process()}));
    // The neighbour may run elsewhere, if there is another core.
    ASSERT_EQ(::sched_setaffinity(neighbour.process(), sizeof before, &before), 0);
    EXPECT_EQ(core_for_each(2, {self, neighbour.process()}), CPU_COUNT(&before) > 1);
  }
  ASSERT_EQ(::sched_setaffinity(0, sizeof before, &before), 0);
}

TEST(Options, MoreRanksThanTheNodeHasCoresShareThem) {
  const int cores = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  EXPECT_TRUE(core_for_each(cores, {}));
  EXPECT_FALSE(core_for_each(cores + 1, {}));
}

} // namespace
} // namespace tessera::transport
