// Models with replaced modules under pp x tp x rdp equal the plain loop: losses
// and every parameter, under the plain model's names.
#include "tests/support/tensor_parallel.h"

#include <mpi.h>

#include "tests/support/parity.h"

namespace tessera::testing {
namespace {

struct Degrees {
  int pp, tp, rdp;
  bool prescaled;
};

int world_of_test() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

std::vector<Degrees> degrees_of_world() {
  std::vector<Degrees> list;
  for (const int pp : {1, 2}) {
    for (const int tp : {1, 2, 4}) {
      for (const int rdp : {1, 2}) {
        for (const bool prescaled : {false, true}) {
          if (pp * tp * rdp == world_of_test() && (tp > 1 || !prescaled)) {
            list.push_back({pp, tp, rdp, prescaled});
          }
        }
      }
    }
  }
  return list;
}

std::string text_of(const Degrees& d) {
  return str("pp ", d.pp, ", tp ", d.tp, ", rdp ", d.rdp, d.prescaled ? ", prescaled" : "");
}

Config config_of(const Degrees& d) {
  Config config;
  config.pipeline_parallel_degree = d.pp;
  config.tensor_parallel_degree = d.tp;
  config.prescaled_batch = d.prescaled;
  config.ddp = d.tp * d.rdp > 1;
  config.microbatches = 2;
  config.timeout_seconds = 60;
  config.transport_buffer_bytes = 16 << 20;
  return config;
}

Batch words_of(int step) {
  torch::manual_seed(700 + step);
  return {torch::randint(0, kWords, {16, 5}), torch::randint(0, kWords, {16, 5})};
}

torch::Tensor word_loss(const torch::Tensor& logits, const torch::Tensor& y) {
  return torch::nn::functional::cross_entropy(logits.flatten(0, 1), y.flatten());
}

TEST(TensorParallelParity, PartlyMarked) {
  for (const Degrees& d : degrees_of_world()) {
    const auto make = [] { return PartlyMarked(); };
    const int slices = 2 * (d.prescaled ? d.rdp : d.tp * d.rdp);
    const auto wanted = train_plain(make, words_of, 10, slices, word_loss);
    EXPECT_LT(wanted.losses.back(), wanted.losses.front());
    const auto got = train_distributed(config_of(d), make, words_of, 10, word_loss);
    expect_equal(got, wanted, text_of(d));
  }
}

} // namespace
} // namespace tessera::testing
