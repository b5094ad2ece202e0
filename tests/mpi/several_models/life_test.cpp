// Models that come, go and are called now and then.
#include "tests/mpi/several_models/support.h"

namespace tessera::testing {
namespace {

// One optimizer over two models of one class; its norm is over both.
TEST(Models, TwoOfOneClassWithOneOptimizer) {
  expect_same_as_plain([](auto& lab) {
    auto left = lab.model(Stack());
    auto right = lab.model(Stack());
    std::vector<torch::Tensor> all = left.parameters();
    for (const auto& parameter : right.parameters()) {
      all.push_back(parameter);
    }
    auto optimizer = lab.sgd(all);
    const auto add = [&](torch::Tensor x, torch::Tensor y) {
      const auto loss = torch::mse_loss(left(x) + right(y), y);
      left.backward(loss);
      return loss.detach();
    };
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      lab.run(add, step);
      lab.number(optimizer.clip_grad_norm(0.3));
      optimizer.step();
    }
    lab.keep("left", left);
    lab.keep("right", right);
  });
}

TEST(Models, PartsOfOneModelWithTwoOptimizers) {
  const auto script = [](auto& lab) {
    Stack net;
    auto model = lab.model(net);
    auto body = lab.sgd(net->layers->parameters());
    auto head = lab.sgd(net->out->parameters());
    const auto fit = [&](torch::Tensor x, torch::Tensor y) {
      const auto loss = torch::mse_loss(model(x), y);
      model.backward(loss);
      return loss.detach();
    };
    for (int step = 0; step < 4; ++step) {
      body.zero_grad();
      head.zero_grad();
      lab.run(fit, step);
      lab.number(head.clip_grad_norm(0.1));
      head.step();
      body.step();
    }
    lab.keep("model", model);
  };
  // Tensor parallelism would put other parameters in the place of these.
  expect_same_as_plain(script, {.tensor_parallel = false});
}

TEST(Models, OneIsDestroyedAndAnotherMade) {
  expect_same_as_plain([](auto& lab) {
    auto steady = lab.model(Stack());
    auto steady_optimizer = lab.sgd(steady.parameters());
    for (int round = 0; round < 2; ++round) {
      auto passing = lab.model(Stack());
      auto optimizer = lab.sgd(passing.parameters());
      const auto both = [&](torch::Tensor x, torch::Tensor y) {
        const auto loss = torch::mse_loss(passing(steady(x)), y);
        passing.backward(loss);
        return loss.detach();
      };
      for (int step = 0; step < 3; ++step) {
        steady_optimizer.zero_grad();
        optimizer.zero_grad();
        lab.run(both, 3 * round + step);
        steady_optimizer.step();
        optimizer.step();
      }
      lab.keep(str("passing ", round), passing);
    }
    lab.keep("steady", steady);
  });
}

// The trace of the first step does not see the second model; the step that
// calls it later partitions it from its description.
TEST(Models, CalledByLaterStepsOfOneFunctionOnly) {
  expect_same_as_plain(
      [](auto& lab) {
        auto always = lab.model(Stack());
        auto later = lab.model(Stack());
        auto optimizer = lab.sgd(always.parameters());
        auto later_optimizer = lab.sgd(later.parameters());
        int step = 0;
        const auto learn = [&](torch::Tensor x, torch::Tensor y) {
          auto out = always(x);
          if (step >= 2) {
            out = later(out);
          }
          const auto loss = torch::mse_loss(out, y);
          always.backward(loss);
          return loss.detach();
        };
        for (; step < 4; ++step) {
          optimizer.zero_grad();
          later_optimizer.zero_grad();
          lab.run(learn, step);
          optimizer.step();
          later_optimizer.step();
        }
        lab.keep("always", always);
        lab.keep("later", later);
      },
      {.static_mode = false});
}

} // namespace
} // namespace tessera::testing
