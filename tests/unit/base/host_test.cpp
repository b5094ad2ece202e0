#include "tessera/base/host.h"

#include <filesystem>
#include <fstream>

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

} // namespace
} // namespace tessera
