// Models of which one learns from the other.
#include "tests/mpi/several_models/support.h"

namespace tessera::testing {
namespace {

/// Batch norm makes evaluation mode another function than training mode.
struct NormedImpl : torch::nn::Module {
  NormedImpl() {
    first = register_module("first", Block());
    norm = register_module("norm", nn::BatchNorm1d(kWidth));
    second = register_module("second", Block());
    third = register_module("third", Block());
    last = register_module("last", nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return last(third(second(norm(first(x)))));
  }
  Block first{nullptr}, second{nullptr}, third{nullptr};
  nn::BatchNorm1d norm{nullptr};
  nn::Linear last{nullptr};
};
TESSERA_MODULE(Normed);

// The teacher is on all ranks when the student is first called, so those ranks
// take part in the student's trace.
TEST(Teacher, TrainsAloneThenTeaches) {
  expect_same_as_plain([](auto& lab) {
    auto teacher = lab.model(Stack());
    auto student = lab.model(Normed());
    auto teacher_optimizer = lab.sgd(teacher.parameters());
    auto student_optimizer = lab.sgd(student.parameters());
    teacher_optimizer.zero_grad();
    lab.run(
        [&](torch::Tensor x, torch::Tensor y) {
          const auto loss = torch::mse_loss(teacher(x), y);
          teacher.backward(loss);
          return loss.detach();
        },
        0);
    teacher_optimizer.step();
    teacher.eval();
    const auto distil = [&](torch::Tensor x, torch::Tensor) {
      torch::Tensor wanted;
      {
        const torch::NoGradGuard no_grad;
        wanted = teacher(x);
      }
      const auto loss = torch::mse_loss(student(x), wanted);
      student.backward(loss);
      return loss.detach();
    };
    student.eval(); // running statistics are per microbatch, so not compared
    for (int step = 1; step < 5; ++step) {
      student_optimizer.zero_grad();
      lab.run(distil, step);
      student_optimizer.step();
    }
    lab.keep("teacher", teacher);
    lab.keep("student", student);
  });
}

/// Asks a function, such as another model, inside its forward.
struct PupilImpl : torch::nn::Module {
  PupilImpl() {
    before = register_module("before", Block());
    middle = register_module("middle", Block());
    after = register_module("after", Block());
    out = register_module("out", Block());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = middle(before(x));
    return out(after(h + ask(h)));
  }
  Block before{nullptr}, middle{nullptr}, after{nullptr}, out{nullptr};
  std::function<torch::Tensor(torch::Tensor)> ask;
};
TESSERA_MODULE(Pupil);

TEST(Teacher, IsAskedInsideTheStudentsForward) {
  expect_same_as_plain([](auto& lab) {
    auto teacher = lab.model(Stack());
    Pupil net;
    auto student = lab.model(net);
    net->ask = [&](const torch::Tensor& x) { return teacher(x); };
    auto optimizer = lab.sgd(student.parameters());
    const auto learn = [&](torch::Tensor x, torch::Tensor y) {
      const auto loss = torch::mse_loss(student(x), y);
      student.backward(loss);
      return loss.detach();
    };
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      lab.run(learn, step);
      optimizer.step();
    }
    lab.keep("student", student);
    lab.keep("teacher", teacher);
    net->ask = nullptr;
  });
}

TEST(Policy, TargetNetworkIsACopyEverySecondStep) {
  expect_same_as_plain([](auto& lab) {
    auto policy = lab.model(Stack());
    auto target = lab.model(Stack());
    auto optimizer = lab.sgd(policy.parameters());
    const auto learn = [&](torch::Tensor state, torch::Tensor next) {
      torch::Tensor value;
      {
        const torch::NoGradGuard no_grad;
        value = state.mean(1, true) + 0.9 * target(next);
      }
      const auto loss = torch::smooth_l1_loss(policy(state), value);
      policy.backward(loss);
      return loss.detach();
    };
    for (int step = 0; step < 5; ++step) {
      if (step > 0 && step % 2 == 0) {
        target.load_state_dict(policy.state_dict());
      }
      optimizer.zero_grad();
      lab.run(learn, step);
      optimizer.step();
    }
    lab.keep("policy", policy);
    lab.keep("target", target);
  });
}

} // namespace
} // namespace tessera::testing
