// Files and copies of a model with divided modules hold the script's own modules, whole.
#include <filesystem>

#include <unistd.h>

#include <gmock/gmock.h>

#include "tests/mpi/tensor_parallel/support.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

std::string file_for_all_ranks() {
  int id = static_cast<int>(::getpid());
  MPI_Bcast(&id, 1, MPI_INT, 0, MPI_COMM_WORLD);
  return (std::filesystem::temp_directory_path() / str("tessera_tp_module_", id, ".pt")).string();
}

TEST(TensorParallelFiles, HoldTheScriptsModules) {
  const int pp = world_size() / 2;
  const std::string file = file_for_all_ranks();
  torch::manual_seed(21);
  Mixed stored;
  int world_rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  if (world_rank == 0) {
    torch::save(stored, file);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  {
    init(tp_config(pp, 2));
    const Ended ended;
    torch::manual_seed(5);
    DistributedModel model{Mixed()};
    load_module(model, file);
    auto train_step = word_step(model);
    const Batch mine = mine_of(word_batch(0));
    train_step(mine.x, mine.y);
    expect_same_bits(model.state_dict(), plain_state(stored));
    DistributedOptimizer optimizer = adam(model.parameters());
    optimizer.step();
    const TensorMap trained = model.state_dict();
    EXPECT_FALSE(trained.at("gated.down").equal(stored->gated->down));

    save_module(model, file);
    Mixed plain;
    torch::load(plain, file);
    expect_same_bits(plain_state(plain), trained);
    Mixed copy;
    model.copy_to(copy);
    expect_same_bits(plain_state(copy), trained);

    const auto norm = over_parameters(
        model, [](const std::string&, const torch::Tensor& p) { return p.pow(2).sum(); });
    auto look = tessera::step([&](torch::Tensor x) {
      norm();
      return x;
    });
    EXPECT_THAT(
        error_of<UserError>([&] { look(mine.x); }),
        AllOf(HasSubstr("over_parameters: parameter '"), HasSubstr("tensor parallelism divides")));
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (world_rank == 0) {
    std::filesystem::remove(file);
  }
}

} // namespace
} // namespace tessera::testing
