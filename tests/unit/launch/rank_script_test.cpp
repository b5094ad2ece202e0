// The shell script that runs the program of each rank.
#include "cli/launch/rank_script.h"

#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/text.h"

#include "cli/launch/mpirun_command.h"
#include "cli/machine.h"

namespace tessera::cli {
namespace {

using Words = std::vector<std::string>;

/// Returns what the script of a rank prints when the program is `script`, behind `environment`.
std::string said_by_rank(const std::string& script, const std::string& environment = "") {
  const Words command = {"/bin/sh", "-c", kRankScript, "tessera-rank", "/bin/sh", "-c", script};
  FILE* pipe = popen(("env " + environment + " " + quoted(command) + " 2>&1").c_str(), "r");
  std::string text;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) {
    text += static_cast<char>(c);
  }
  pclose(pipe);
  return text;
}

TEST(RankScript, ARankIsKilledBySignalsAndByNothingElse) {
  EXPECT_THAT(said_by_rank("exit 255"), testing::EndsWith(" ended with exit status 255\n"));
  EXPECT_THAT(said_by_rank("exit 200"), testing::EndsWith(" ended with exit status 200\n"));
  EXPECT_THAT(
      said_by_rank("kill -TERM $$"), testing::EndsWith(" was killed by signal 15 (SIGTERM)\n"));
  EXPECT_EQ(said_by_rank("exit 255").find('\n'), said_by_rank("exit 255").size() - 1);
  EXPECT_EQ(said_by_rank("exit 75"), "");
}

/// Returns the processors on which a rank's program may run, as the kernel lists them.
std::string processors_of(int rank, int ranks, const std::string& more = "TESSERA_SHARE_CORES=1") {
  return said_by_rank(
      "sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status",
      str("OMPI_COMM_WORLD_LOCAL_RANK=",
          rank,
          " OMPI_COMM_WORLD_LOCAL_SIZE=",
          ranks,
          " OMP_NUM_THREADS=1 ",
          more));
}

TEST(RankScript, EachRankHasCoresOfItsOwnWhereThereAreEnough) {
  const std::string all = processors_of(0, 1);
  const int cores = std::stoi(said_by_rank("lscpu -p=SOCKET,CORE | grep -v '#' | sort -u | wc -l"));
  if (cores != this_machine().cores || cores < 2) {
    GTEST_SKIP() << "one core, or not all cores may be used";
  }
  std::set<std::string> own;
  for (int rank = 0; rank < cores; ++rank) {
    own.insert(processors_of(rank, cores));
  }
  EXPECT_EQ(own.size(), static_cast<std::size_t>(cores)) << "each rank has a core";
  EXPECT_EQ(own.count(all), 0U);
  // More ranks than cores; more threads than the share has processors; a launcher that was told
  // how to bind.
  EXPECT_EQ(processors_of(0, cores + 1), all);
  EXPECT_EQ(processors_of(0, 2 * cores), all);
  EXPECT_EQ(processors_of(0, cores, "TESSERA_SHARE_CORES=1 OMP_NUM_THREADS=100"), all);
  EXPECT_EQ(processors_of(0, cores, ""), all);
}

TEST(RankScript, ProgramsDoNotSeeItsVariables) {
  EXPECT_EQ(said_by_rank("echo \"<$TESSERA_SHARE_CORES>\"", "TESSERA_SHARE_CORES=1"), "<>\n");
}

} // namespace
} // namespace tessera::cli
