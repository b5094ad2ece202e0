// What a process holds in tensors while a managed stem trains: as much after
// the first step as in it, and each saving of section 3.2.3 keeps what it says.
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/comm/world.h"
#include "tessera/nn/managed/managed_stack.h"
#include "tessera/nn/summa/exchange.h"

#include "bench/support/memory_count.h"
#include "weights.h"

namespace tessera::nn::summa {
namespace {

bench::MemoryCount& memory() {
  static bench::MemoryCount& count = bench::MemoryCount::install();
  return count;
}

using managed::ManagedStack;
using managed::Savings;
using managed::Update;

std::vector<DistributedTransformerLayer> make_layers(
    const MeshPtr& mesh,
    const TransformerOptions& options) {
  return cases::make_on(mesh, [&] {
    std::vector<DistributedTransformerLayer> layers;
    for (int i = 0; i < 3; ++i) {
      layers.push_back(cases::layer_on_mesh(options));
    }
    return layers;
  });
}

std::int64_t gradients_of(const std::vector<DistributedTransformerLayer>& layers) {
  std::int64_t bytes = 0;
  for (const DistributedTransformerLayer& layer : layers) {
    for (const at::Tensor& parameter : layer->parameters()) {
      if (parameter.grad().defined()) {
        bytes += static_cast<std::int64_t>(parameter.grad().nbytes());
      }
    }
  }
  return bytes;
}

TEST(StemMemory, StepsAfterTheFirstTakeNoMore) {
  memory();
  comm::WorldOptions world_options;
  world_options.timeout = std::chrono::seconds(60);
  const comm::WorldPtr world = comm::mpi_world(world_options);
  std::vector<int> ranks(static_cast<std::size_t>(world->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto group = world->new_group("tp", ranks);
  for (const bool shared : {true, false}) {
    MeshOptions mesh_options;
    mesh_options.shared_memory = shared;
    const MeshPtr mesh = Mesh::make(*world, *group, mesh_options);
    const TransformerOptions options = cases::layer_options(48, 4);
    const at::Tensor x = torch::randn({4, 16, 48 / mesh->columns()});
    for (int set = 0; set < 8; ++set) {
      Savings savings;
      savings.reuse_outputs = (set & 1) != 0;
      savings.update_at_once = (set & 2) != 0;
      savings.skip_products = (set & 4) != 0;
      Update update;
      if (savings.update_at_once) {
        update = [](at::Tensor& parameter, const at::Tensor& gradient) {
          parameter.sub_(gradient, 0.01);
        };
      }
      const auto layers = make_layers(mesh, options);
      ManagedStack stem(layers, savings, update);
      const auto step = [&] {
        stem.forward(x);
        stem.backward(x);
        group->barrier();
      };
      memory().restart();
      step();
      const std::int64_t held = memory().now();
      const std::int64_t most = memory().most();
      const std::int64_t shared_bytes = mesh->exchange().shared_bytes();
      ASSERT_GT(most, 0);
      // Gradients that stay are there from the first step's end on.
      const std::int64_t gradients = gradients_of(layers);
      std::int64_t second = 0;
      for (int i = 0; i < 3; ++i) {
        memory().restart();
        step();
        EXPECT_EQ(memory().now(), held) << "savings " << set;
        EXPECT_LE(memory().most(), most + gradients) << "savings " << set;
        second = i == 0 ? memory().most() : second;
        EXPECT_EQ(memory().most(), second) << "savings " << set;
        EXPECT_EQ(mesh->exchange().shared_bytes(), shared_bytes) << "savings " << set;
      }
      // (2): no parameter keeps a gradient.
      EXPECT_EQ(gradients == 0, savings.update_at_once) << "savings " << set;
    }
  }
}

} // namespace
} // namespace tessera::nn::summa
