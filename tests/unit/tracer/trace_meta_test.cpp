#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/nn/module/containers.h"
#include "tessera/nn/module/module.h"
#include "tessera/tracer/trace.h"

namespace tessera::tracer {
namespace {

using ::testing::HasSubstr;

// Legend: B batch, S sequence, H hidden, A heads, V vocabulary.
struct SelfAttentionImpl : torch::nn::Module {
  SelfAttentionImpl(int hidden, int heads) : heads(heads) {
    qkv = register_module("qkv", nn::Linear(hidden, 3 * hidden));
    out = register_module("out", nn::Linear(hidden, hidden));
    mask = register_buffer(
        "mask", torch::tril(torch::ones({64, 64}, torch::kBool)).view({1, 1, 64, 64}));
  }
  torch::Tensor forward(torch::Tensor x_BSH) {
    const auto batch = x_BSH.size(0), length = x_BSH.size(1);
    const auto hidden = x_BSH.size(2);
    auto parts = qkv(x_BSH).chunk(3, -1);
    for (auto& part : parts) {
      part = part.view({batch, length, heads, hidden / heads}).transpose(1, 2);
    }
    auto scores = torch::matmul(parts[0], parts[1].transpose(-2, -1)) /
                  std::sqrt(static_cast<double>(hidden / heads));
    using torch::indexing::Slice;
    const auto visible = mask.index({Slice(), Slice(), Slice({}, length), Slice({}, length)});
    scores = scores.masked_fill(visible.logical_not(), -1e9);
    const auto weights = torch::dropout(torch::softmax(scores, -1), 0.1, is_training());
    const auto mixed = torch::matmul(weights, parts[2]);
    return out(mixed.transpose(1, 2).contiguous().view({batch, length, hidden}));
  }
  int heads;
  nn::Linear qkv{nullptr}, out{nullptr};
  torch::Tensor mask;
};
TESSERA_MODULE(SelfAttention);

struct LayerImpl : torch::nn::Module {
  LayerImpl(int hidden, int heads) {
    norm1 = register_module("norm1", nn::LayerNorm(torch::nn::LayerNormOptions({hidden})));
    attention = register_module("attention", SelfAttention(hidden, heads));
    norm2 = register_module("norm2", nn::LayerNorm(torch::nn::LayerNormOptions({hidden})));
    up = register_module("up", nn::Linear(hidden, 4 * hidden));
    down = register_module("down", nn::Linear(4 * hidden, hidden));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = x + attention(norm1(x));
    return x + torch::dropout(down(torch::gelu(up(norm2(x)))), 0.1, is_training());
  }
  nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  SelfAttention attention{nullptr};
  nn::Linear up{nullptr}, down{nullptr};
};
TESSERA_MODULE(Layer);

struct LanguageModelImpl : torch::nn::Module {
  LanguageModelImpl(int vocabulary, int hidden, int heads, int layers) {
    tokens = register_module("tokens", nn::Embedding(vocabulary, hidden));
    positions = register_module("positions", nn::Embedding(64, hidden));
    blocks = register_module("blocks", nn::Sequential());
    for (int i = 0; i < layers; ++i) {
      blocks->push_back(Layer(hidden, heads));
    }
    norm = register_module("norm", nn::LayerNorm(torch::nn::LayerNormOptions({hidden})));
  }
  std::tuple<torch::Tensor, torch::Tensor> forward(torch::Tensor ids_BS, torch::Tensor labels_BS) {
    const auto place = torch::arange(ids_BS.size(1)).unsqueeze(0);
    auto x = tokens(ids_BS) + positions(place);
    x = torch::cat({x, torch::zeros_like(x.slice(1, 0, 1))}, 1).slice(1, 0, ids_BS.size(1));
    const auto logits = torch::matmul(norm(blocks(x)), tokens->weight.t());
    const auto loss = torch::nn::functional::cross_entropy(
        logits.view({-1, logits.size(-1)}), labels_BS.reshape(-1));
    return {loss, logits};
  }
  nn::Embedding tokens{nullptr}, positions{nullptr};
  nn::Sequential blocks{nullptr};
  nn::LayerNorm norm{nullptr};
};
TESSERA_MODULE(LanguageModel);

TEST(TraceMeta, ATransformerTracesAsOnRealTensors) {
  LanguageModel model(50, 32, 4, 3);
  const torch::Tensor ids = torch::ones({2, 16}, torch::kLong);
  const auto real = trace(*model, [&] { model(ids, ids); });
  for (auto& parameter : model->parameters()) {
    parameter.unsafeGetTensorImpl()->shallow_copy_from(
        torch::empty_like(parameter, torch::kMeta).getIntrusivePtr());
  }
  const auto meta_ids = ids.to(torch::kMeta);
  for (const auto& input : {ids, meta_ids}) {
    const auto meta = trace(*model, [&] { model(input, input); });
    ASSERT_EQ(meta.modules.size(), real.modules.size());
    for (std::size_t i = 0; i < real.modules.size(); ++i) {
      EXPECT_EQ(meta.modules[i].path, real.modules[i].path);
      EXPECT_EQ(meta.modules[i].first_call, real.modules[i].first_call);
      EXPECT_EQ(meta.modules[i].calls, real.modules[i].calls);
      EXPECT_EQ(meta.modules[i].activation_bytes, real.modules[i].activation_bytes)
          << real.modules[i].path;
    }
  }
}

struct PeekingImpl : torch::nn::Module {
  PeekingImpl() {
    inner = register_module("inner", nn::Linear(3, 3));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = inner(x);
    return x.sum().item<float>() > 0 ? x : -x;
  }
  nn::Linear inner{nullptr};
};
TESSERA_MODULE(Peeking);

TEST(TraceMeta, ControlFlowOnNumbersNamesOperatorAndModule) {
  nn::Sequential model{nn::Linear(3, 3), Peeking()};
  for (auto& parameter : model->parameters()) {
    parameter.unsafeGetTensorImpl()->shallow_copy_from(
        torch::empty_like(parameter, torch::kMeta).getIntrusivePtr());
  }
  try {
    trace(*model, [&] { model(torch::ones({2, 3})); });
    FAIL() << "a number came from nowhere";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("aten::item"));
    EXPECT_THAT(error.what(), HasSubstr("module 1 (Peeking)"));
    EXPECT_THAT(error.what(), HasSubstr("skip_tracing"));
  }
  EXPECT_THROW(trace(*model, [&] {}, {.measure_seconds = true}), ConfigError);
}

} // namespace
} // namespace tessera::tracer
