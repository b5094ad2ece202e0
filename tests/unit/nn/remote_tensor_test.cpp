// Handles of tensors that another rank owns: layers' operators are run there, the rest is refused.
#include <torch/torch.h>

#include <gmock/gmock.h>

#include "tessera/base/error.h"
#include "tessera/nn/module/containers.h"
#include "tessera/nn/module/operator_layer.h"
#include "tessera/nn/module/remote_guard.h"

namespace tessera::nn {
namespace {

using ::testing::HasSubstr;

// Owns copies of a module's tensors, as another rank would, and runs what is asked for.
class Owner : public Interceptor {
 public:
  explicit Owner(torch::nn::Module& module) {
    for (const auto& item : module.named_parameters()) {
      tensors_.emplace(item.key(), item.value().detach().clone().requires_grad_());
    }
    for (const auto& item : module.named_buffers()) {
      tensors_.emplace(item.key(), item.value().clone());
    }
    for (const auto& item : module.named_parameters()) {
      make_remote(item.value(), {item.key(), 3, 1, &module, false});
    }
    for (const auto& item : module.named_buffers()) {
      make_remote(item.value(), {item.key(), 3, 1, &module, true});
    }
  }
  bool wants(const torch::nn::Module&) override {
    return true;
  }
  c10::IValue call(
      torch::nn::Module& module,
      const CallKey& key,
      const c10::IValue& args,
      int first,
      int last) override {
    ++calls;
    return find_invoker(key.hash)(module, args, first, last);
  }
  at::Tensor tensor_named(const torch::nn::Module&, const std::string& name) override {
    return tensors_.at(name);
  }
  int calls = 0;

 private:
  std::map<std::string, at::Tensor> tensors_;
};

// The layer's own result, then the same with its tensors at an owner.
template <typename Layer, typename Call>
void expect_same(Layer layer, Call call, int calls = 1) {
  ASSERT_TRUE(is_operator_layer(*layer));
  const auto copy = std::dynamic_pointer_cast<typename Layer::ContainedType>(layer->clone());
  const auto wanted = call(*copy);
  Owner owner(*layer);
  const InterceptorScope scope(&owner);
  const auto got = call(*layer);
  EXPECT_TRUE(torch::allclose(got, wanted)) << got << wanted;
  EXPECT_EQ(owner.calls, calls);
}

TEST(RemoteTensor, LayersOfLibtorchRunWhereTheirParametersAre) {
  torch::manual_seed(3);
  const auto x = torch::randn({2, 3, 8, 8});
  const auto forward = [&](auto& layer) { return layer.forward(x); };
  expect_same(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).stride(2).padding(1)), forward);
  expect_same(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).padding(torch::kSame)), forward);
  expect_same(torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(3, 2, 2)), forward);
  expect_same(torch::nn::GroupNorm(3, 3), forward);
  expect_same(torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})), forward);
  expect_same(torch::nn::BatchNorm2d(3), forward, 2); // counts the batch first
  expect_same(torch::nn::InstanceNorm2d(torch::nn::InstanceNorm2dOptions(3).affine(true)), forward);
  expect_same(torch::nn::Linear(8, 5), forward, 2); // adds the bias in place, so it is fetched
  expect_same(torch::nn::Linear(torch::nn::LinearOptions(8, 5).bias(false)), forward);
  expect_same(torch::nn::PReLU(), forward);
  const auto ids = torch::randint(0, 9, {4, 5});
  expect_same(
      torch::nn::Embedding(torch::nn::EmbeddingOptions(9, 6).padding_idx(2)),
      [&](auto& layer) { return layer.forward(ids); });
  const auto sequence = torch::randn({5, 2, 4});
  expect_same(torch::nn::LSTM(torch::nn::LSTMOptions(4, 6).num_layers(2)), [&](auto& layer) {
    return std::get<0>(layer.forward(sequence));
  });
  expect_same(
      torch::nn::GRU(4, 6), [&](auto& layer) { return std::get<1>(layer.forward(sequence)); });
}

TEST(RemoteTensor, KeepsItsShapeAndRefusesToBeRead) {
  torch::nn::Linear layer(4, 3);
  const Owner owner(*layer);
  EXPECT_EQ(layer->weight.numel(), 12);
  EXPECT_TRUE(layer->weight.requires_grad());
  EXPECT_EQ(torch::zeros_like(layer->weight).sum().item<float>(), 0);
  try {
    (void)layer->weight.pow(2);
    FAIL() << "read numbers that are not there";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("aten::pow"));
    EXPECT_THAT(error.what(), HasSubstr("parameter 'weight', which rank 3 owns"));
    EXPECT_THAT(error.what(), HasSubstr("not on rank 1"));
    EXPECT_THAT(error.what(), HasSubstr("over_parameters"));
    EXPECT_THAT(error.what(), HasSubstr("outside of a step"));
  }
  EXPECT_THROW(layer->weight.data().norm(), UserError);
  EXPECT_THROW(layer->weight.detach().add_(1), UserError);
  EXPECT_THROW(layer->weight.clone(), UserError);
  EXPECT_THROW(layer->forward(torch::ones({1, 4})), UserError) << "outside a step";
}

TEST(RemoteTensor, APenaltyInAStepIsNoLayersOperator) {
  torch::nn::Linear layer(4, 3);
  Owner owner(*layer);
  const InterceptorScope scope(&owner);
  EXPECT_THROW(layer->weight.pow(2), UserError);
  EXPECT_THROW(torch::matmul(layer->weight, layer->weight.t()), UserError);
  EXPECT_EQ(owner.calls, 0);
}

TEST(RemoteTensor, ModulesRefuseWhatWouldWorkOnNothing) {
  Linear layer(4, 3);
  const Owner owner(*layer);
  std::ostringstream file;
  EXPECT_THROW(torch::save(layer, file), UserError);
  EXPECT_THROW(layer->clone(), UserError);
  EXPECT_THROW(layer->to(torch::kDouble), UserError);
  // Past the module: no operator is called on a tensor that is written.
  EXPECT_ANY_THROW(torch::save(std::vector<torch::Tensor>{layer->weight}, file));
  EXPECT_ANY_THROW(torch::save(layer->weight, file));
  try {
    torch::serialize::OutputArchive archive;
    layer->save(archive);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("tessera::save_module"));
  }
}

} // namespace
} // namespace tessera::nn
