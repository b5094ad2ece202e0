#include "tessera/base/host.h"

#include <filesystem>
#include <fstream>

#include <unistd.h>

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

/// A tree of files that stands for the system's.
class System {
 public:
  explicit System(const std::string& name) : root_(std::filesystem::path(SCRATCH) / name) {
    std::filesystem::remove_all(root_);
    write(
        "proc/meminfo",
        "MemTotal:       16777216 kB\nMemFree:  1 kB\n"
        "MemAvailable:    8388608 kB\n");
  }
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  HostMemory facts() const {
    return host_memory(root_.string());
  }

 private:
  std::filesystem::path root_;
};

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

TEST(HostMemory, WithoutControlGroups) {
  const HostMemory facts = System("plain").facts();
  EXPECT_EQ(facts.total, 16 * kGiB);
  EXPECT_EQ(facts.available, 8 * kGiB);
  EXPECT_FALSE(facts.group_limit);
}

TEST(HostMemory, TheSmallestLimitAboveTheGroupHolds) {
  const System system("unified");
  system.write("proc/self/cgroup", "0::/job/step\n");
  system.write("sys/fs/cgroup/job/step/memory.max", "max\n");
  system.write("sys/fs/cgroup/job/memory.max", "2147483648\n");
  system.write("sys/fs/cgroup/job/memory.current", "1073741824\n");
  const HostMemory facts = system.facts();
  EXPECT_EQ(facts.group_limit, 2 * kGiB);
  EXPECT_EQ(facts.group_used, kGiB);
}

TEST(HostMemory, AContainerSeesItsGroupAtTheMount) {
  const System system("container");
  system.write("proc/self/cgroup", "0::/not/mounted/here\n");
  system.write("sys/fs/cgroup/memory.max", "4294967296\n");
  system.write("sys/fs/cgroup/memory.current", "1024\n");
  EXPECT_EQ(system.facts().group_limit, 4 * kGiB);
}

TEST(HostMemory, VersionOneAndItsWordForNoLimit) {
  const System system("first");
  system.write("proc/self/cgroup", "8:pids:/\n4:memory:/job\n0::/\n");
  system.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_FALSE(system.facts().group_limit);
  system.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1073741824\n");
  system.write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "512\n");
  EXPECT_EQ(system.facts().group_limit, kGiB);
  EXPECT_EQ(system.facts().group_used, 512);
}

TEST(HostMemory, ThisMachine) {
  const HostMemory facts = host_memory();
  EXPECT_GT(facts.total, facts.available);
  EXPECT_GT(facts.available, 0);
  EXPECT_NE(processor_name(), "");
  EXPECT_THROW(host_memory(SCRATCH "/nowhere"), Error);
}

TEST(ProcessorTime, IsThatOfAllColumnsButIdleAndWaiting) {
  const System system("stat");
  const std::string root = (std::filesystem::path(SCRATCH) / "stat").string();
  EXPECT_FALSE(busy_processor_seconds(root).has_value());
  const double tick = 1.0 / static_cast<double>(::sysconf(_SC_CLK_TCK));
  system.write("proc/stat", "cpu  1 2 4 1000 5000 8 16 32 0 0\ncpu0 9 9 9 9 9 9 9 9\n");
  EXPECT_NEAR(*busy_processor_seconds(root), 63 * tick, 1e-9);
  EXPECT_EQ(machine_id(root), "");
  system.write("proc/sys/kernel/random/boot_id", "an-id\n");
  EXPECT_EQ(machine_id(root), "an-id");
}

TEST(ProcessorTime, OfThisProcessGrows) {
  const double before = own_processor_seconds();
  volatile double sum = 0;
  for (int i = 0; i < 50'000'000; ++i) {
    sum = sum + i;
  }
  EXPECT_GT(own_processor_seconds(), before);
}

} // namespace
} // namespace tessera
