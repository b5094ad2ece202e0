#include "tessera/optim/clip.h"

#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/optim/whole_norms.h"

namespace tessera::optim {
namespace {

using Tensors = std::vector<at::Tensor>;

// `gradients[rank]` in place; the norm that each rank was told.
std::vector<double> clip(std::vector<Tensors>& gradients, double max_norm) {
  const int size = static_cast<int>(gradients.size());
  const auto worlds = comm::inproc_worlds(size, {});
  std::vector<int> ranks(size);
  for (int i = 0; i < size; ++i) {
    ranks[i] = i;
  }
  std::vector<double> norms(size);
  std::vector<std::string> errors(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto group = worlds[rank]->new_group("mp", ranks);
        norms[rank] = clip_grad_norm(gradients[rank], gradients[rank], max_norm, *group);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(errors, std::vector<std::string>(size));
  return norms;
}

TEST(Clip, NormOverAllRanksIsThatOfOneProcess) {
  torch::manual_seed(1);
  // A rank that owns nothing, and one with gradients of 16 bits.
  std::vector<Tensors> gradients = {
      {torch::randn({5, 3}), torch::randn({7})}, {}, {torch::randn({11})}};
  Tensors plain;
  for (const auto& list : gradients) {
    for (const auto& gradient : list) {
      plain.push_back(torch::zeros_like(gradient).requires_grad_());
      plain.back().mutable_grad() = gradient.clone();
    }
  }
  const double wanted = torch::nn::utils::clip_grad_norm_(plain, 0.5);
  ASSERT_GT(wanted, 0.5);
  for (const double norm : clip(gradients, 0.5)) {
    EXPECT_NEAR(norm, wanted, 1e-6 * wanted);
  }
  std::size_t next = 0;
  for (const auto& list : gradients) {
    for (const auto& gradient : list) {
      EXPECT_TRUE(torch::allclose(gradient, plain[next++].grad(), 1e-6));
    }
  }
}

TEST(Clip, SmallGradientsAreLeftAlone) {
  std::vector<Tensors> gradients = {{torch::full({3}, 2.0)}, {torch::full({1}, 2.0)}};
  for (const double norm : clip(gradients, 4.01)) {
    EXPECT_DOUBLE_EQ(norm, 4);
  }
  EXPECT_TRUE(gradients[0][0].equal(torch::full({3}, 2.0)));
  EXPECT_TRUE(gradients[1][0].equal(torch::full({1}, 2.0)));
}

// In 16 bits the sum of squares itself would stop growing, or overflow.
TEST(Clip, NormOfManySmallAndOfLargeGradientsIn16Bits) {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    std::vector<Tensors> gradients = {
        {torch::full({1 << 14}, 0.25, type)}, {torch::full({4}, 1024.0, type)}};
    const double wanted = std::sqrt(1024.0 + 4 * 1024.0 * 1024.0);
    for (const double norm : clip(gradients, 1.0)) {
      EXPECT_NEAR(norm, wanted, 1e-5 * wanted);
    }
    EXPECT_EQ(gradients[0][0].scalar_type(), type);
    EXPECT_NEAR(gradients[1][0][0].item<double>(), 1024 / wanted, 4e-3);
  }
}

TEST(Clip, WithoutAnyGradient) {
  std::vector<Tensors> gradients(2);
  EXPECT_THAT(clip(gradients, 1), ::testing::Each(0.0));
}

TEST(Clip, WrongBoundIsNamed) {
  for (const double bound : {0.0, -1.0, std::nan("")}) {
    const auto worlds = comm::inproc_worlds(1, {});
    const auto group = worlds[0]->new_group("mp", {0});
    try {
      clip_grad_norm({}, {}, bound, *group);
      FAIL() << bound;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("max_norm is"));
    }
  }
}

// Numbers that f32 does not hold.
TEST(Clip, NormOfF64IsMadeInF64) {
  std::vector<Tensors> gradients = {{torch::full({4}, 1e100, torch::kDouble)}};
  const std::vector<double> norms = clip(gradients, 1);
  EXPECT_NEAR(norms[0] / 2e100, 1, 1e-12);
  EXPECT_NEAR(gradients[0][0].norm().item<double>(), 1, 1e-6);
  EXPECT_NEAR(sum_of_squares({torch::full({2}, 1 + 1e-12, torch::kDouble)}) - 2, 4e-12, 1e-14);
}

TEST(Clip, SquaresOfASparseTensorAreThoseOfItsValues) {
  const torch::Tensor twice = torch::sparse_coo_tensor(
      torch::tensor({{1, 1, 4}}), torch::tensor({{1.0, 2.0}, {2.0, 2.0}, {0.0, 1.0}}), {6, 2});
  EXPECT_NEAR(sum_of_squares({twice}), 9 + 16 + 1, 1e-6); // rows of one index are added
}

} // namespace
} // namespace tessera::optim
