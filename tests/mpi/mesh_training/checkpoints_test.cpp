// What a mesh saves any layout resumes, and a mesh what any layout saved: the run goes on as if
// nothing had happened, and nothing of parameters and optimizer state is lost or doubled, of which
// the ranks of the first mesh row hold more than the others.
#include <filesystem>

#include <unistd.h>

#include "tests/mpi/mesh_training/support.h"

namespace tessera::testing {
namespace {

constexpr int kHalf = 3;
constexpr int kWhole = 6;

/// Gradients that are 0 but for rounding (those of biases of keys) must not become steps.
torch::optim::AdamW adam_of(const std::vector<torch::Tensor>& parameters) {
  return torch::optim::AdamW(
      parameters, torch::optim::AdamWOptions(0.01).eps(1e-3).weight_decay(0.1));
}

TensorMap plain_training() {
  torch::manual_seed(7);
  const models::Gpt net = made_gpt();
  std::vector<torch::Tensor> parameters = net->parameters();
  parameters.pop_back(); // the shared one
  auto optimizer = adam_of(parameters);
  for (int step = 0; step < kWhole; ++step) {
    const Batch batch = tokens_of(step);
    optimizer.zero_grad();
    token_loss(models::Gpt(net)(batch.x), batch.y).backward();
    optimizer.step();
  }
  return parameters_of(net);
}

struct Part {
  int first = 0;
  int end = 0;
  std::string from; // a folder, or nothing
  std::string to;
};

struct Ran {
  TensorMap model;
  std::string hash; // of the optimizer's state as well
};

Ran run(const Layout& layout, const Part& part, bool full = false) {
  init(config_of(layout));
  const Ended ended;
  // Only the first replica's parameters may count, and with `from` none of them.
  torch::manual_seed(dp_rank() == 0 && part.from.empty() ? 7 : 8);
  DistributedModel model(made_gpt());
  DistributedOptimizer optimizer(adam_of(model.parameters()));
  auto train_step = token_step(model);
  if (!part.from.empty()) {
    EXPECT_TRUE(load(model, optimizer, part.from).has_value());
  }
  if (part.first == part.end) { // partitioned by a forward
    auto forward = tessera::step([&](torch::Tensor x) { return model(x); });
    const torch::NoGradGuard no_grad;
    forward(tokens_here(0).x);
  }
  for (int step = part.first; step < part.end; ++step) {
    const Batch mine = tokens_here(step);
    optimizer.zero_grad();
    train_step(mine.x, mine.y);
    optimizer.step();
  }
  SaveOptions options;
  options.full = full;
  Ran result;
  result.hash = save(model, optimizer, part.to, "a", options).state_hash;
  result.model = model.state_dict();
  return result;
}

/// Folders of one test, gone at its end.
class Folders {
 public:
  Folders() : base_(str("mesh_checkpoints_", world_size(), "_", getppid())) {
    clean();
  }
  ~Folders() {
    clean();
  }
  Folders(const Folders&) = delete;
  Folders& operator=(const Folders&) = delete;
  std::string operator()(const std::string& name) const {
    return base_ + "/" + name;
  }
  std::string fresh() {
    return (*this)(str("other_", ++made_));
  }

 private:
  void clean() const {
    MPI_Barrier(MPI_COMM_WORLD);
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0) {
      std::filesystem::remove_all(base_);
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
  std::string base_;
  int made_ = 0;
};

TEST(MeshCheckpoints, ARunGoesOnOnAMeshAndOnOtherLayouts) {
  const TensorMap plain = plain_training();
  for (const bool full : {false, true}) {
    Folders folders;
    const Layout mesh = meshes().front();
    const Ran whole = run(mesh, {0, kWhole, "", folders("whole")}, full);
    expect_state(whole.model, plain, "uninterrupted", 1e-5);
    const Ran saved = run(mesh, {0, kHalf, "", folders("half")}, full);
    std::vector<Layout> layouts = meshes();
    for (const Layout& other : others()) {
      layouts.push_back(other);
    }
    for (const Layout& layout : layouts) {
      const std::string what = str(full ? "whole, to " : "parts, to ", layout.text());
      const Ran loaded = run(layout, {0, 0, folders("half"), folders.fresh()}, !full);
      EXPECT_EQ(loaded.hash, saved.hash) << what;
      const Ran resumed = run(layout, {kHalf, kWhole, folders("half"), folders.fresh()}, full);
      expect_state(resumed.model, whole.model, what, 1e-5);
      if (layout.text() == mesh.text()) {
        EXPECT_EQ(resumed.hash, whole.hash) << what; // to the bit
      }
    }
  }
}

TEST(MeshCheckpoints, AMeshGoesOnWithRunsOfOtherLayouts) {
  const TensorMap plain = plain_training();
  for (const Layout& other : others()) {
    Folders folders;
    const Ran saved = run(other, {0, kHalf, "", folders("half")});
    for (const Layout& mesh : meshes()) {
      const std::string what = str(other.text(), " to ", mesh.text());
      const Ran loaded = run(mesh, {0, 0, folders("half"), folders.fresh()}, true);
      EXPECT_EQ(loaded.hash, saved.hash) << what;
      const Ran resumed = run(mesh, {kHalf, kWhole, folders("half"), folders.fresh()});
      expect_state(resumed.model, plain, what, 1e-5);
    }
  }
}

} // namespace
} // namespace tessera::testing
