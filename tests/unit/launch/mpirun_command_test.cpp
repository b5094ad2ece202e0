#include "cli/launch/mpirun_command.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

#include "cli/launch/rank_script.h"

namespace tessera::cli {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using Words = std::vector<std::string>;

LaunchRequest request(int ranks, const std::string& custom = "") {
  LaunchRequest result;
  result.ranks = ranks;
  result.custom_mpi_options = custom;
  result.program = {"./train", "a b"};
  return result;
}

/// The options of mpirun, without the script and the program.
Words options_of(const LaunchRequest& request, const Machine& machine) {
  Words words = mpirun_command(request, machine);
  words.erase(std::find(words.begin(), words.end(), "/bin/sh"), words.end());
  return words;
}

std::string error_of(const LaunchRequest& request) {
  try {
    mpirun_command(request, Machine{4, false});
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(LaunchCommand, UsesEveryCoreWhenRanksAreFew) {
  EXPECT_THAT(
      options_of(request(2), Machine{8, false}),
      ElementsAre(
          "mpirun",
          "-n",
          "2",
          "--bind-to",
          "none",
          "-x",
          "TESSERA_SHARE_CORES=1",
          "-q",
          "--mca",
          "btl_vader_single_copy_mechanism",
          "none",
          "-x",
          "OMP_NUM_THREADS=4"));
}

TEST(LaunchCommand, YieldsWhenRanksOutnumberCores) {
  EXPECT_THAT(
      options_of(request(4), Machine{2, true}),
      ElementsAre(
          "mpirun",
          "-n",
          "4",
          "--allow-run-as-root",
          "--oversubscribe",
          "--bind-to",
          "none",
          "-x",
          "TESSERA_SHARE_CORES=1",
          "--mca",
          "mpi_yield_when_idle",
          "1",
          "-q",
          "--mca",
          "btl_vader_single_copy_mechanism",
          "none",
          "-x",
          "OMP_NUM_THREADS=1"));
}

TEST(LaunchCommand, EndsWithTheProgramBehindItsScript) {
  const Words words = mpirun_command(request(1), Machine{1, false});
  const auto shell = std::find(words.begin(), words.end(), "/bin/sh");
  EXPECT_EQ(
      Words(shell, words.end()),
      (Words{"/bin/sh", "-c", kRankScript, "tessera-rank", "./train", "a b"}));
}

TEST(LaunchCommand, TheUsersOwnOptionsReplaceOursOnce) {
  const Words words = options_of(
      request(
          4,
          "-mca btl_vader_single_copy_mechanism cma --bind-to core -x "
          "OMP_NUM_THREADS=7 --mca btl_tcp_if_include eth0"),
      Machine{2, true});
  EXPECT_EQ(std::count(words.begin(), words.end(), "--bind-to"), 1);
  EXPECT_EQ(std::count(words.begin(), words.end(), "btl_vader_single_copy_mechanism"), 1);
  EXPECT_THAT(words, Contains("cma"));
  EXPECT_THAT(words, Contains("core"));
  EXPECT_THAT(words, Not(Contains("none")));
  EXPECT_THAT(words, Not(Contains("TESSERA_SHARE_CORES=1")));
  EXPECT_THAT(words, Contains("OMP_NUM_THREADS=7"));
  EXPECT_THAT(words, Not(Contains("OMP_NUM_THREADS=1")));
  EXPECT_THAT(words, Contains("eth0"));
  // Others of ours stay.
  EXPECT_THAT(words, Contains("mpi_yield_when_idle"));
}

TEST(LaunchCommand, TheUsersNumberOfRanksCounts) {
  const Words words = options_of(request(4, "-np 2"), Machine{4, false});
  EXPECT_EQ(std::count(words.begin(), words.end(), "-n"), 0);
  EXPECT_THAT(words, Contains("OMP_NUM_THREADS=2"));
  EXPECT_THAT(error_of(request(4, "-np many")), HasSubstr("found 'many'"));
}

TEST(LaunchCommand, PassesOnThreadsThatAreSet) {
  LaunchRequest one = request(2);
  one.threads_are_set = true;
  const Words words = options_of(one, Machine{8, false});
  EXPECT_THAT(words, Contains("OMP_NUM_THREADS"));
  EXPECT_THAT(words, Not(Contains("OMP_NUM_THREADS=4")));
}

TEST(LaunchCommand, SaysWhichKernelsOnThisMachineOnly) {
  LaunchRequest one = request(2);
  one.blas_kernel = "Haswell";
  EXPECT_THAT(options_of(one, Machine{8, false}), Contains("OPENBLAS_CORETYPE=Haswell"));
  one.custom_mpi_options = "-x OPENBLAS_CORETYPE=Zen";
  EXPECT_THAT(options_of(one, Machine{8, false}), Not(Contains("OPENBLAS_CORETYPE=Haswell")));
  one.custom_mpi_options = "";
  one.hostfile = "hosts";
  one.hostfile_text = "node1 slots=4\n";
  EXPECT_THAT(options_of(one, Machine{8, false}), Not(Contains("OPENBLAS_CORETYPE=Haswell")));
}

TEST(LaunchCommand, CountsRestarts) {
  LaunchRequest one = request(2);
  one.restart = 3;
  EXPECT_THAT(options_of(one, Machine{8, false}), Contains("TESSERA_RESTART=3"));
}

TEST(LaunchCommand, PassesOnWhatIsSet) {
  LaunchRequest one = request(2);
  one.hostfile = "hosts";
  one.hostfile_text = "node1 slots=2\n";
  EXPECT_THAT(options_of(one, Machine{8, false}), Not(Contains("SM_HP_MP_PARAMETERS")));
  one.passed_on = {"SM_HP_MP_PARAMETERS", "TESSERA_LOG"};
  const Words words = options_of(one, Machine{8, false});
  for (const std::string& name : one.passed_on) {
    const auto found = std::find(words.begin(), words.end(), name);
    ASSERT_NE(found, words.end()) << name;
    EXPECT_EQ(*(found - 1), "-x");
  }
}

TEST(LaunchCommand, FillsHostsAndPutsProcessesPerHost) {
  LaunchRequest one = request(6);
  one.hostfile = "hosts";
  one.hostfile_text = "# two\nnode1 slots=4\n\nnode2:4 # other form\n";
  // 4 on node1, 2 on node2.
  Words words = options_of(one, Machine{8, false});
  EXPECT_THAT(words, Contains("--hostfile"));
  EXPECT_THAT(words, Contains("OMP_NUM_THREADS=2"));
  EXPECT_THAT(words, Not(Contains("--oversubscribe")));
  one.processes_per_host = 3;
  words = options_of(one, Machine{8, false});
  EXPECT_THAT(words, Contains("ppr:3:node"));
  one.ranks.reset();
  EXPECT_THAT(options_of(one, Machine{8, false}), Contains("6"));
  one.processes_per_host = 5;
  EXPECT_THAT(options_of(one, Machine{8, false}), Contains("--oversubscribe"));
}

TEST(LaunchCommand, SaysWhatIsWrong) {
  LaunchRequest one = request(9);
  one.processes_per_host = 4;
  EXPECT_THAT(
      error_of(one),
      HasSubstr("processes_per_host is 4 and there is 1 host; give at most "
                "-n 4"));
  one = request(1);
  one.ranks.reset();
  EXPECT_THAT(error_of(one), HasSubstr("give -n"));
  one = request(1);
  one.program.clear();
  EXPECT_THAT(error_of(one), HasSubstr("no program"));
  EXPECT_THAT(error_of(request(1, "--x 'a")), HasSubstr("not closed"));
  one = request(1);
  one.hostfile = "hosts";
  one.hostfile_text = "node1 slots=4\nnode2 slot=4\n";
  EXPECT_THAT(error_of(one), HasSubstr("hosts: line 2: expected slots=N or max_slots"));
  one.hostfile_text = "node1 slots=0\n";
  EXPECT_THAT(error_of(one), HasSubstr("hosts: line 1: slots must be"));
  one.hostfile_text = "# none\n";
  EXPECT_THAT(error_of(one), HasSubstr("names no host"));
}

TEST(LaunchCommand, DividesAndJoinsWordsAsAShell) {
  EXPECT_THAT(
      split_words(R"(--mca a "b c" 'd "e"' f\ g "")"),
      ElementsAre("--mca", "a", "b c", "d \"e\"", "f g", ""));
  const Words words = {"plain", "two words", "it's", ""};
  EXPECT_EQ(quoted(words), R"(plain 'two words' 'it'\''s' '')");
  EXPECT_EQ(split_words(quoted(words)), words);
}

TEST(Machine, ReadsTheControlGroupsQuota) {
  EXPECT_EQ(cores_of_quota("max 100000"), 0);
  EXPECT_EQ(cores_of_quota("150000 100000"), 2);
  EXPECT_EQ(cores_of_quota("400000 100000"), 4);
  EXPECT_EQ(cores_of_quota(""), 0);
  EXPECT_GE(this_machine().cores, 1);
}

} // namespace
} // namespace tessera::cli
