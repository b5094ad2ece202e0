// A GPT on a mesh of tensor-parallel ranks, whose blocks and vectors the replicas of the mesh keep
// in parts, trains the numbers of one process.
#include "tests/mpi/sharding/layouts.h"
#include "tests/support/uneven_gpt.h"

namespace tessera::testing {
namespace {

constexpr int kRows = 16;
constexpr double kClip = 0.3;

struct Memory {
  std::string mesh; // mesh_memory
  std::string backend; // same_node_backend: panels are read in shared memory, or sent
};

models::Gpt made_gpt() {
  const tensor_parallelism marked;
  return models::Gpt(uneven_gpt_options());
}

Batch tokens_of(int step) {
  return counting_tokens(step, kRows, kTokens, kVocabulary);
}

TensorMap trained_alone(std::vector<double>& norms) {
  torch::manual_seed(7);
  models::Gpt net = made_gpt();
  std::vector<torch::Tensor> parameters = net->parameters();
  parameters.pop_back(); // the head's weight, which is the table of tokens
  torch::optim::AdamW optimizer = adamw(parameters);
  for (int i = 0; i < kUpdates; ++i) {
    const Batch batch = tokens_of(i);
    optimizer.zero_grad();
    token_loss(net(batch.x), batch.y).backward();
    norms.push_back(torch::nn::utils::clip_grad_norm_(parameters, kClip));
    optimizer.step();
  }
  TensorMap state;
  for (const auto& item : net->named_parameters()) {
    if (item.key() != "lm_head.weight") {
      state[item.key()] = item.value().detach();
    }
  }
  return state;
}

/// Checks besides that every rank keeps half of each parameter that it has.
TensorMap trained_on_mesh(const Layout& layout, const Memory& memory, std::vector<double>& norms) {
  Config config = layout_config(layout, 2);
  config.sdp_gradient_clipping = kClip;
  config.mesh_memory = memory.mesh;
  config.same_node_backend = memory.backend;
  config.transport_buffer_bytes = 16 << 20;
  init(config);
  const Ended ended;
  torch::manual_seed(dp_rank() == 0 ? 7 : 8);
  DistributedModel model(made_gpt());
  DistributedOptimizer optimizer(adamw(model.parameters()));
  auto train_step = tessera::step(
      [&](torch::Tensor x, torch::Tensor y) { model.backward(token_loss(model(x), y)); });
  for (int i = 0; i < kUpdates; ++i) {
    const Batch mine = part_of(tokens_of(i), data_size(), data_rank());
    optimizer.zero_grad();
    train_step(mine.x, mine.y);
    optimizer.step();
    norms.push_back(optimizer.global_grad_norm());
  }
  for (const auto& [name, tensor] : train::ModelAccess::core(model)->local_parameters()) {
    if (tensor.numel() > 0) { // a vector of another mesh row has none here
      const at::Tensor part = train::ModelAccess::core(model)->shards()->updated_part(tensor);
      EXPECT_EQ(part.numel(), (tensor.numel() + layout.degree - 1) / layout.degree) << name;
    }
  }
  return model.state_dict();
}

TEST(ShardedMesh, TrainsTheNumbersOfOneProcess) {
  std::vector<double> wanted_norms;
  const TensorMap wanted = trained_alone(wanted_norms);
  for (const Layout& layout : sharded_layouts()) {
    if (!layout.mesh) {
      continue;
    }
    for (const Memory& memory :
         {Memory{"autograd", "shm"}, Memory{"autograd", "mpi"}, Memory{"managed", "shm"}}) {
      const std::string what =
          str(text_of(layout), ", mesh_memory ", memory.mesh, ", ", memory.backend);
      std::vector<double> norms;
      expect_same(trained_on_mesh(layout, memory, norms), wanted, what, 2e-5);
      for (std::size_t i = 0; i < wanted_norms.size(); ++i) {
        EXPECT_NEAR(norms[i], wanted_norms[i], 1e-4 * wanted_norms[i]) << what << ", update " << i;
      }
    }
  }
}

} // namespace
} // namespace tessera::testing
