// GPT and BERT with their layers distributed, under pp x tp x rdp, both
// distributions, batches prescaled and not: 10 steps equal the plain loop.
#include <algorithm>
#include <functional>

#include <mpi.h>

#include "tessera/model/model_core.h"
#include "tessera/nn/layers/lm_head.h"
#include "tessera/nn/replace/replace.h"
#include "tessera/train/model_access.h"

#include "models/bert.h"
#include "models/decoder.h"
#include "models/experts.h"
#include "models/gpt.h"
#include "models/presets.h"
#include "models/t5.h"
#include "tests/support/counting_tokens.h"

namespace tessera::testing {
namespace {

struct Layout {
  int pp, tp, rdp;
  bool prescaled;
  std::string optimize;
};

std::vector<Layout> all_layouts() {
  int world = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  std::vector<Layout> list;
  for (const int pp : {1, 2}) {
    for (const int rdp : {1, 2}) {
      const int tp = world / pp / rdp;
      if (pp * tp * rdp != world || tp < 2 || tp > 4) {
        continue;
      }
      for (const bool prescaled : {false, true}) {
        for (const char* optimize : {"speed", "memory"}) {
          list.push_back({pp, tp, rdp, prescaled, optimize});
        }
      }
    }
  }
  return list;
}

constexpr int kRows = 16;
constexpr int kTokens = 6;

Batch tokens_of(int step) {
  return counting_tokens(step, kRows, kTokens, 32);
}

template <typename MakeNet>
void check_all(
    MakeNet make_net,
    const std::function<bool(const Layout&)>& wanted_layout = {},
    double tolerance = 1e-5) {
  for (const Layout& layout : all_layouts()) {
    if (wanted_layout && !wanted_layout(layout)) {
      continue;
    }
    Config config;
    config.pipeline_parallel_degree = layout.pp;
    config.tensor_parallel_degree = layout.tp;
    config.prescaled_batch = layout.prescaled;
    config.optimize = layout.optimize;
    config.ddp = true;
    config.microbatches = 2;
    config.timeout_seconds = 60;
    config.transport_buffer_bytes = 16 << 20;
    const int parts = layout.prescaled ? layout.rdp : layout.tp * layout.rdp;
    const auto wanted =
        train_plain(make_net, tokens_of, 10, config.microbatches * parts, token_loss);
    EXPECT_LT(wanted.losses.back(), wanted.losses.front());
    const auto got = train_distributed(config, make_net, tokens_of, 10, token_loss);
    expect_equal(
        got,
        wanted,
        str("pp ",
            layout.pp,
            ", tp ",
            layout.tp,
            ", rdp ",
            layout.rdp,
            ", ",
            layout.optimize,
            layout.prescaled ? ", prescaled" : ""),
        tolerance);
  }
}

models::GptOptions small_gpt() {
  auto options = std::get<models::GptOptions>(models::find_preset("gpt-tiny").options);
  options.n_layer = 2;
  options.n_head = 4;
  options.n_embd = 32;
  options.vocab_size = 32;
  return options;
}

TEST(TensorParallelModels, Gpt) {
  check_all([] {
    const tensor_parallelism marked;
    return models::Gpt(small_gpt());
  });
}

models::Gpt whole_gpt() {
  models::GptOptions options = small_gpt();
  options.vocab_size = 33; // no two ranks have equally many rows
  models::Gpt net(options);
  set_tensor_parallelism(net, true, {{"whole_model", true}});
  return net;
}

// Embeddings and output layer distributed as well: one module in its place.
TEST(TensorParallelModels, GptAsOneModule) {
  check_all(whole_gpt, [](const Layout& layout) {
    return layout.prescaled == (layout.optimize == "memory");
  });
}

TEST(TensorParallelModels, WeightsOfGptAsOneModule) {
  int world = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  Config config;
  config.tensor_parallel_degree = std::min(world, 4); // as many heads
  config.ddp = true;
  init(config);
  const Ended ended;
  torch::manual_seed(3);
  const models::Gpt plain = whole_gpt();
  TensorMap wanted;
  for (const auto& [name, tensor] : nn::named_state(*plain)) {
    wanted.emplace(name, tensor.detach().clone());
  }
  torch::manual_seed(4 + rank());
  DistributedModel model(whole_gpt());
  ASSERT_EQ(train::ModelAccess::core(model)->replacements().replaced.size(), 1U);
  const auto& made = *train::ModelAccess::core(model)->replacements().replaced.front().module;
  EXPECT_NE(dynamic_cast<const nn::DistributedTransformerLMHeadImpl*>(&made), nullptr);
  model.load_state_dict(wanted);
  const TensorMap got = model.state_dict();
  EXPECT_EQ(got.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) {
    ASSERT_TRUE(got.contains(name)) << name;
    EXPECT_TRUE(got.at(name).equal(tensor)) << name;
  }
}

models::DecoderOptions small_decoder(const std::string& preset) {
  auto options = std::get<models::DecoderOptions>(models::find_preset(preset).options);
  options.num_hidden_layers = 2;
  options.hidden_size = 32;
  options.intermediate_size = 40;
  options.num_attention_heads = 8;
  options.num_key_value_heads = options.architecture == "llama" ? 4 : 0;
  options.rotary_dim = options.rotary_dim > 0 ? 2 : 0;
  options.window_size = options.architecture == "gpt_neo" ? 3 : options.window_size;
  options.vocab_size = 32;
  // Keys have a bias whose gradient is nothing but rounding; see Masked.
  options.attention_bias = false;
  return options;
}

TEST(TensorParallelModels, Llama) {
  check_all([] {
    const tensor_parallelism marked;
    return models::Decoder(small_decoder("llama-tiny"));
  });
}

TEST(TensorParallelModels, LlamaWithBlockwiseAttention) {
  check_all(
      [] {
        models::Decoder net(small_decoder("llama-tiny"));
        set_tensor_parallelism(net, true, {{"flash_attention", true}, {"fused_softmax", true}});
        return net;
      },
      [](const Layout& layout) { return layout.prescaled == (layout.optimize == "memory"); });
}

TEST(TensorParallelModels, GptJGptNeoAndGptNeoX) {
  for (const char* preset : {"gptj-tiny", "gpt-neo-tiny", "gpt-neox-tiny"}) {
    check_all(
        [=] {
          const tensor_parallelism marked;
          return models::Decoder(small_decoder(preset));
        },
        [](const Layout& layout) { return layout.prescaled == (layout.optimize == "memory"); });
  }
}

// Scores that GPT-2's configuration scales by layer.
TEST(TensorParallelModels, GptWithScoresScaledByLayer) {
  models::GptOptions options = small_gpt();
  options.scale_attn_by_inverse_layer_idx = true;
  options.scale_attn_weights = false;
  check_all(
      [=] {
        const tensor_parallelism marked;
        return models::Gpt(options);
      },
      [](const Layout& layout) { return layout.prescaled == (layout.optimize == "memory"); });
}

TEST(TensorParallelModels, WeightsOfDecodersComeBackUnderTheirNames) {
  int world = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  for (const char* preset : {"llama-tiny", "gptj-tiny", "gpt-neo-tiny", "gpt-neox-tiny"}) {
    Config config;
    config.tensor_parallel_degree = std::min(world, 4); // as many key heads
    config.ddp = true;
    init(config);
    const Ended ended;
    auto options = small_decoder(preset);
    options.attention_bias = options.architecture == "llama" || options.architecture == "gpt_neox";
    options.mlp_bias = options.architecture == "llama";
    const auto make = [&] {
      const tensor_parallelism marked;
      return models::Decoder(options);
    };
    torch::manual_seed(3);
    const models::Decoder plain = make();
    TensorMap wanted;
    for (const auto& [name, tensor] : nn::named_state(*plain)) {
      wanted.emplace(name, tensor.detach().clone());
    }
    torch::manual_seed(4 + rank());
    DistributedModel model(make());
    // Both blocks; tables and linear layers outside of them are replaced by themselves.
    EXPECT_GE(train::ModelAccess::core(model)->replacements().replaced.size(), 2U) << preset;
    model.load_state_dict(wanted);
    const TensorMap got = model.state_dict();
    EXPECT_EQ(got.size(), wanted.size()) << preset;
    for (const auto& [name, tensor] : wanted) {
      ASSERT_TRUE(got.contains(name)) << name;
      EXPECT_TRUE(got.at(name).equal(tensor)) << name;
    }
  }
}

/// Both heads in one output.
struct MaskedImpl : torch::nn::Module {
  explicit MaskedImpl(const models::BertOptions& options)
      : bert(register_module("bert", models::Bert(options))) {
    // Attention does not depend on the keys' bias: its gradient is rounding, so
    // it starts far from zero, where rounding does not show.
    const torch::NoGradGuard no_grad;
    for (auto& item : bert->named_parameters()) {
      if (item.key().ends_with("key.bias")) {
        item.value().normal_();
      }
    }
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    const auto mask = ids.ne(3).to(torch::kLong);
    const auto types = torch::zeros_like(ids);
    const auto [logits, next] = bert(ids, mask, types);
    return logits * (1 + torch::tanh(next).select(1, 0).mean());
  }
  models::Bert bert{nullptr};
};
TESSERA_MODULE(Masked);

TEST(TensorParallelModels, Bert) {
  auto options = std::get<models::BertOptions>(models::find_preset("bert-tiny").options);
  options.num_attention_heads = 4;
  options.hidden_size = 32;
  options.vocab_size = 32;
  check_all([=] {
    const tensor_parallelism marked;
    return Masked(options);
  });
}

/// RoBERTa's positions leave out what is padded.
struct PaddedImpl : torch::nn::Module {
  explicit PaddedImpl(const models::BertOptions& options)
      : roberta(register_module("roberta", models::Roberta(options))) {
    const torch::NoGradGuard no_grad;
    for (auto& item : roberta->named_parameters()) {
      if (item.key().ends_with("key.bias")) {
        item.value().normal_();
      }
    }
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    return roberta(ids, ids.ne(1).to(torch::kLong));
  }
  models::Roberta roberta{nullptr};
};
TESSERA_MODULE(Padded);

TEST(TensorParallelModels, Roberta) {
  auto options = std::get<models::BertOptions>(models::find_preset("bert-tiny").options);
  options.roberta = true;
  options.pad_token_id = 1;
  options.type_vocab_size = 1;
  options.num_attention_heads = 4;
  options.hidden_size = 32;
  options.vocab_size = 32;
  const auto make_net = [=] {
    const tensor_parallelism marked;
    return Padded(options);
  };
  // Layers are distributed, not merely trained: a rank has its share of their weights.
  {
    Config config;
    MPI_Comm_size(MPI_COMM_WORLD, &config.tensor_parallel_degree);
    config.tensor_parallel_degree = std::min(config.tensor_parallel_degree, 4); // as many heads
    config.ddp = true;
    init(config);
    const Ended ended;
    const DistributedModel model(make_net());
    const auto& replaced = train::ModelAccess::core(model)->replacements().replaced;
    EXPECT_EQ(
        std::count_if(
            replaced.begin(),
            replaced.end(),
            [](const auto& module) {
              return module.path.find("encoder.layer.") != std::string::npos;
            }),
        options.num_hidden_layers);
  }
  check_all(make_net);
}

/// Logits that the load-balancing loss changes.
struct MixedImpl : torch::nn::Module {
  MixedImpl(const models::GptOptions& gpt, const models::ExpertsOptions& experts)
      : model(register_module("model", models::ExpertModel(gpt, experts))) {}
  torch::Tensor forward(const torch::Tensor& ids) {
    const auto [logits, balance] = model(ids);
    return logits * (1 + 0.1 * balance);
  }
  models::ExpertModel model{nullptr};
};
TESSERA_MODULE(Mixed);

TEST(TensorParallelModels, Experts) {
  auto gpt = std::get<models::GptOptions>(models::find_preset("gpt-tiny").options);
  gpt.n_head = 4;
  models::ExpertsOptions experts;
  experts.intermediate_size = 24;
  experts.num_experts = 5;
  // In f64: in f32, ten steps of this model let roundings grow to 2e-5, more
  // or less with the version of libtorch.
  const auto make_net = [=] {
    const tensor_parallelism marked;
    Mixed net(gpt, experts);
    net->to(torch::kDouble);
    return net;
  };
  check_all(make_net, {}, 1e-12);
}

/// The text is translated into itself.
struct CopiedImpl : torch::nn::Module {
  explicit CopiedImpl(const models::T5Options& options)
      : t5(register_module("t5", models::T5(options))) {}
  torch::Tensor forward(const torch::Tensor& ids) {
    return t5(ids, ids.flip(1), ids.ne(3).to(torch::kLong), torch::Tensor());
  }
  models::T5 t5{nullptr};
};
TESSERA_MODULE(Copied);

TEST(TensorParallelModels, T5) {
  auto options = std::get<models::T5Options>(models::find_preset("t5-tiny").options);
  options.num_heads = 4;
  options.d_model = 32;
  options.d_kv = 8;
  options.d_ff = 48;
  options.vocab_size = 32;
  check_all([=] {
    const tensor_parallelism marked;
    return Copied(options);
  });
}

} // namespace
} // namespace tessera::testing
