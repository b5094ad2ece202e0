// The main of every test that runs under mpirun: all ranks run the same tests,
// rank 0 prints, the others print only their failures, and all exit alike.
#include <cstdio>
#include <string>

#include <mpi.h>

#include <torch/torch.h>

#include <gtest/gtest.h>

namespace {

class FailuresOfOtherRanks : public testing::EmptyTestEventListener {
 public:
  explicit FailuresOfOtherRanks(int rank) : rank_(rank) {}
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.failed()) {
      std::fprintf(
          stderr,
          "[rank %d] %s:%d: %s\n",
          rank_,
          result.file_name() != nullptr ? result.file_name() : "?",
          result.line_number(),
          result.summary());
    }
  }

 private:
  int rank_;
};

} // namespace

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  if (provided != MPI_THREAD_MULTIPLE) {
    std::fprintf(stderr, "MPI grants no MPI_THREAD_MULTIPLE\n");
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  torch::set_num_threads(1);
  testing::InitGoogleTest(&argc, argv);
  if (rank != 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailuresOfOtherRanks(rank));
  }
  int failed = RUN_ALL_TESTS() == 0 ? 0 : 1;
  int any_failed = 0;
  MPI_Allreduce(&failed, &any_failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return any_failed;
}
