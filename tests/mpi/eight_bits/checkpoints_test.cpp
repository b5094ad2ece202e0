// A run in bytes and bf16 that is saved and gone on from, also under another layout.
#include <filesystem>

#include "tests/mpi/eight_bits/support.h"

namespace tessera::testing {
namespace {

void clean(const std::string& folder) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) {
    std::filesystem::remove_all(folder);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

/// Two updates, a checkpoint, one more update.
TensorMap saved_after_two(const std::pair<int, int>& layout, const std::string& folder, bool full) {
  init(eight_bit_config(layout, true));
  const Ended ended;
  HandFed<Wide> run(true);
  run.update(0);
  run.update(1);
  SaveOptions options;
  options.full = full;
  save(run.model, run.optimizer, folder, "two", options);
  run.update(2);
  return run.model.state_dict();
}

TensorMap gone_on(const std::pair<int, int>& layout, const std::string& folder) {
  init(eight_bit_config(layout, true));
  const Ended ended;
  HandFed<Wide> run(true);
  EXPECT_TRUE(load(run.model, run.optimizer, folder).has_value());
  run.update(2);
  return run.model.state_dict();
}

TEST(EightBits, CheckpointsAreGoneOnFromUnderEveryLayout) {
  const TensorMap start = start_of<Wide>(true);
  for (const bool full : {false, true}) {
    for (const auto& layout : eight_bit_layouts()) {
      const std::string folder = str("eight_bits_", world_size());
      clean(folder);
      const TensorMap wanted = saved_after_two(layout, folder, full);
      for (const auto& other : eight_bit_layouts()) {
        SCOPED_TRACE(
            str("saved with pp ",
                layout.first,
                ", tp ",
                layout.second,
                full ? ", full" : "",
                "; loaded with pp ",
                other.first,
                ", tp ",
                other.second));
        const TensorMap got = gone_on(other, folder);
        if (other.second == layout.second) {
          expect_same_bits(got, wanted);
        } else {
          EXPECT_LT(apart(got, wanted, start), 0.02);
        }
      }
      clean(folder);
    }
  }
}

} // namespace
} // namespace tessera::testing
