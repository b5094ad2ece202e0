// Modes of the thread that calls a module hold where the module lives: no gradients, inference
// mode, autocast.
#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>

#include "tessera/tensor/torch_compat.h"

#include "tests/mpi/step_edges/support.h"

namespace tessera::testing {
namespace {

/// CPU autocast to bf16 on this thread, while it lives.
class Autocast {
 public:
  Autocast() {
    cpu_autocast::set_enabled(true);
    cpu_autocast::set_dtype(at::kBFloat16);
  }
  ~Autocast() {
    cpu_autocast::set_enabled(false);
    at::autocast::clear_cache();
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
};

template <typename Mode>
torch::Tensor plain_answer() {
  Chain chain = made_chain();
  const Mode mode;
  return chain(some_rows()).detach().clone();
}

template <typename Mode>
void expect_plain_answer(const char* what) {
  const torch::Tensor wanted = plain_answer<Mode>();
  for (const int pp : pipelines()) {
    init(chain_config(pp, 2));
    const Ended ended;
    DistributedModel model{made_chain()};
    auto evaluate = tessera::step([&](torch::Tensor x) {
      const Mode mode;
      return model(x);
    });
    for (int i = 0; i < 2; ++i) {
      const torch::Tensor got = evaluate(some_rows()).concat();
      EXPECT_EQ(got.scalar_type(), wanted.scalar_type()) << what;
      EXPECT_TRUE(got.equal(wanted)) << what << ", " << text_of(pp, 2);
    }
  }
}

TEST(Modes, NoGradients) {
  expect_plain_answer<torch::NoGradGuard>("no gradients");
}

TEST(Modes, InferenceModeInsideOfTheStep) {
  expect_plain_answer<c10::InferenceMode>("inference mode");
}

TEST(Modes, InferenceModeAroundTheStep) {
  const torch::Tensor wanted = plain_answer<c10::InferenceMode>();
  for (const int pp : pipelines()) {
    init(chain_config(pp, 2));
    const Ended ended;
    DistributedModel model{made_chain()};
    auto evaluate = tessera::step([&](torch::Tensor x) { return model(x); });
    const c10::InferenceMode mode;
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(evaluate(some_rows()).concat().equal(wanted)) << text_of(pp, 2);
    }
  }
}

TEST(Modes, AutocastOfAnEvaluation) {
  ASSERT_FALSE(plain_answer<Autocast>().equal(plain_answer<torch::NoGradGuard>()));
  expect_plain_answer<Autocast>("autocast");
}

TEST(Modes, AutocastOfTraining) {
  Chain plain = made_chain();
  {
    const Autocast autocast;
    plain(some_rows()).to(at::kFloat).pow(2).mean().backward();
  }
  for (const int pp : pipelines()) {
    if (pp != world_size()) {
      continue; // replicas would see parts of the batch
    }
    init(chain_config(pp, 1));
    const Ended ended;
    DistributedModel model{made_chain()};
    auto train_step = tessera::step([&](torch::Tensor x) {
      const Autocast autocast;
      auto loss = model(x).to(at::kFloat).pow(2).mean();
      model.backward(loss);
    });
    train_step(some_rows());
    const auto wanted = plain->named_parameters();
    for (const auto& [name, tensor] : model.local_parameters()) {
      EXPECT_LE(relative_error(tensor.grad(), wanted[name].grad()), 1e-6) << name;
    }
  }
}

} // namespace
} // namespace tessera::testing
