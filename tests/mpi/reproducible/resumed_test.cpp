// A run that was saved and goes on ends in the state of one that never stopped.
#include <filesystem>

#include <unistd.h>

#include "tests/mpi/reproducible/support.h"

namespace tessera::testing {
namespace {

constexpr int kResumedMicrobatches = 4;
constexpr int kSteps = 7;
constexpr int kSavedAfter = 4;

namespace fs = std::filesystem;

std::string folder_of(const std::string& name) {
  int id = static_cast<int>(::getpid());
  MPI_Bcast(&id, 1, MPI_INT, 0, MPI_COMM_WORLD);
  return (fs::temp_directory_path() / str("tessera_resumed_", name, "_", id)).string();
}

/// Trains from `first` to before `last`; saves at the end, where `saved` names a
/// folder, and begins with what `loaded` holds.
template <typename MakeNet>
std::uint64_t train_part(
    const Config& config,
    MakeNet make_net,
    int first,
    int last,
    const std::string& saved,
    const std::string& loaded) {
  init(config);
  const Ended ended;
  torch::manual_seed(7);
  DistributedModel model(make_net());
  DistributedOptimizer optimizer = sgd(model.parameters());
  if (!loaded.empty()) {
    tessera::load(model, optimizer, loaded);
  }
  auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    auto loss = torch::mse_loss(model(x), y);
    model.backward(loss);
    return loss;
  });
  for (int step = first; step < last; ++step) {
    torch::manual_seed(2000 + step);
    const Batch whole{
        torch::randn({16 * dp_size(), kWidth}), torch::randn({16 * dp_size(), kWidth})};
    const Batch mine = mine_of(whole);
    optimizer.zero_grad();
    train_step(mine.x, mine.y);
    optimizer.step();
  }
  if (!saved.empty()) {
    tessera::save(model, optimizer, saved, "kept");
  }
  return state_of(model);
}

template <typename MakeNet>
void expect_same(const Config& config, MakeNet make_net, const std::string& name) {
  const std::string folder = folder_of(name);
  const Load load;
  const auto whole = train_part(config, make_net, 0, kSteps, "", "");
  train_part(config, make_net, 0, kSavedAfter, folder, "");
  const auto resumed = train_part(config, make_net, kSavedAfter, kSteps, "", folder);
  EXPECT_EQ(resumed, whole) << name;
  MPI_Barrier(MPI_COMM_WORLD);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0) {
    fs::remove_all(folder);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST(Reproducible, ResumedRunsGoOnInTheSameBits) {
  for (const char* mode : {"dynamic", "static", "fast"}) {
    if (world_size() > 2 && mode != std::string("fast")) {
      continue; // replicas take the mode with most causes of difference
    }
    Config config = placed(2, kResumedMicrobatches, {{"shared", 1}, {"far", 1}, {"dropped", 1}});
    config.reproducible = true;
    config.static_mode = mode != std::string("dynamic");
    config.fast_mode = mode == std::string("fast");
    config.static_mode_steps = config.static_mode ? 1 : 5;
    expect_same(
        config, [] { return SlowMix(); }, mode);
  }
}

} // namespace
} // namespace tessera::testing
