// Logits of models that transformers made, beside the logits that it computed: read as a job's
// model.init_from reads them, alone and divided over ranks.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <mpi.h>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/tessera.h"

#include "cli/weights/start_from.h"
#include "models/load.h"
#include "models/registry.h"
#include "tests/support/parity.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

constexpr double kFurthest = 1e-5;

using Tensors = std::vector<torch::Tensor>;

/// Those of the repository, or another folder of the same form: <name>/expected.safetensors beside
/// the weights, or beside a folder `weights`.
fs::path fixtures() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no thread changes the environment
  const char* other = std::getenv("TESSERA_PUBLISHED");
  return other == nullptr ? fs::path(TESSERA_FIXTURES) : fs::path(other);
}

std::vector<std::string> names() {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(fixtures())) {
    if (fs::exists(entry.path() / "expected.safetensors")) {
      found.push_back(entry.path().filename().string());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

struct Expected {
  Tensors inputs; // as AnyModel::forward takes them
  torch::Tensor logits; // [B, S, V]
  torch::Tensor counts; // [B, S]: which positions have a token
  torch::Tensor next_sentence; // [B, 2], or undefined
};

Expected expected_of(const fs::path& folder, const std::string& family) {
  const auto file = checkpoint::read_safetensors((folder / "expected.safetensors").string());
  Expected expected;
  const bool two = family == "t5";
  // A causal model needs no mask: padding stands behind the tokens, which do not see it.
  const bool masked = two || family == "bert" || family == "roberta";
  expected.inputs.push_back(file.at("input_ids"));
  if (two) {
    expected.inputs.push_back(file.at("decoder_input_ids"));
  }
  for (const char* name : {"attention_mask", "decoder_attention_mask", "token_type_ids"}) {
    if (masked && file.contains(name)) {
      expected.inputs.push_back(file.at(name));
    }
  }
  expected.logits = file.at("logits");
  expected.counts = file.at(two ? "decoder_attention_mask" : "attention_mask").to(torch::kBool);
  if (file.contains("next_sentence")) {
    expected.next_sentence = file.at("next_sentence");
  }
  return expected;
}

struct Layout {
  std::string name;
  Config config;
};

Config config_of(int pp, int tp) {
  Config config;
  config.pipeline_parallel_degree = pp;
  config.tensor_parallel_degree = tp;
  config.ddp = tp > 1;
  config.timeout_seconds = 60;
  config.memory_weight = 1.0; // by bytes: the same partition in every run
  return config;
}

std::vector<Layout> layouts(int ranks) {
  if (ranks == 1) {
    return {{"alone", config_of(1, 1)}};
  }
  if (ranks == 2) {
    return {{"pipeline", config_of(2, 1)}, {"tensor", config_of(1, 2)}};
  }
  Config mesh = config_of(1, 4);
  mesh.tensor_parallel_kind = "2d";
  return {{"pipeline and tensor", config_of(2, 2)}, {"mesh", mesh}};
}

torch::Tensor own_rows(const torch::Tensor& of) {
  const std::int64_t rows = of.size(0) / dp_size();
  return of.narrow(0, dp_rank() * rows, rows);
}

/// What the model says of this rank's rows, all outputs of a row beside each other.
torch::Tensor outputs_of(const std::string& folder, const Tensors& inputs) {
  cli::Weights weights(folder);
  const models::Preset preset = cli::preset_beside(weights);
  models::AnyModel whole;
  {
    const delay_param_initialization delayed;
    const tensor_parallelism marked(config_in_force().tensor_parallel_degree > 1);
    whole = models::make_model(preset);
  }
  cli::StartingPoint start(std::move(weights), whole);
  const Model model(whole.module);
  start.load_into(model);
  whole.module->eval(); // the script's module, whatever has taken its place
  const torch::NoGradGuard no_grad;
  const auto step = tessera::step([&](Tensors given) {
    Tensors rows;
    for (const torch::Tensor& output : whole.forward(given)) {
      rows.push_back(output.flatten(1));
    }
    return torch::cat(rows, 1);
  });
  Tensors own;
  for (const torch::Tensor& input : inputs) {
    own.push_back(own_rows(input));
  }
  return torch::cat(step(own).outputs());
}

double furthest(const torch::Tensor& a, const torch::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

void compare(const std::string& name, const Layout& layout) {
  const fs::path folder = fixtures() / name;
  const fs::path weights = fs::exists(folder / "weights") ? folder / "weights" : folder;
  const std::string family = cli::preset_beside(cli::Weights(weights.string())).family;
  const Expected expected = expected_of(folder, family);
  Config config = layout.config;
  config.microbatches = config.tensor_parallel_degree == 4 ? 1 : 2;
  init(config);
  const Ended ended;
  const torch::Tensor found = outputs_of(weights.string(), expected.inputs);
  const torch::Tensor logits = own_rows(expected.logits);
  const std::int64_t of_tokens = logits[0].numel();
  ASSERT_EQ(found.size(0), logits.size(0));
  ASSERT_EQ(found.size(1), of_tokens + (expected.next_sentence.defined() ? 2 : 0));
  const torch::Tensor counts = own_rows(expected.counts);
  const double apart = furthest(
      found.narrow(1, 0, of_tokens).view_as(logits).index({counts}), logits.index({counts}));
  const double largest = logits.index({counts}).abs().max().item<double>();
  EXPECT_LE(apart, kFurthest * std::max(1.0, largest));
  if (expected.next_sentence.defined()) {
    EXPECT_LE(furthest(found.narrow(1, of_tokens, 2), own_rows(expected.next_sentence)), kFurthest);
  }
  std::printf("%s, %s: %.1e of up to %.1f\n", name.c_str(), layout.name.c_str(), apart, largest);
}

TEST(Published, LogitsAreThoseOfTransformers) {
  int ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const std::vector<std::string> all = names();
  ASSERT_FALSE(all.empty()) << fixtures();
  for (const std::string& name : all) {
    for (const Layout& layout : layouts(ranks)) {
      SCOPED_TRACE(name + ", " + layout.name);
      compare(name, layout);
    }
  }
}

TensorMap parameters_of(const torch::nn::Module& module) {
  TensorMap found;
  for (const auto& item : module.named_parameters()) {
    found[item.key()] = item.value().detach().clone();
  }
  return found;
}

models::AnyModel made_of(const models::Options& options) {
  return models::make_model(models::preset_of_options("a model", options));
}

/// Loads `file` into a model of other numbers, which then are those of `wanted`.
void expect_loaded(const models::Options& options, const TensorMap& file, const TensorMap& wanted) {
  torch::manual_seed(2);
  const models::AnyModel other = made_of(options);
  models::load_parameters(*other.module, file, "file");
  for (const auto& [name, tensor] : parameters_of(*other.module)) {
    EXPECT_TRUE(tensor.equal(wanted.at(name))) << name;
  }
}

TEST(PublishedNames, OfABertWhoseFileIsOlderAndHasBothHeads) {
  models::BertOptions options;
  options.vocab_size = 30;
  options.hidden_size = 8;
  options.num_hidden_layers = 1;
  options.num_attention_heads = 2;
  options.intermediate_size = 16;
  options.next_sentence = false;
  torch::manual_seed(1);
  const models::AnyModel model = made_of(options);
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : model.module->parameters()) {
      parameter.normal_();
    }
  }
  const TensorMap wanted = parameters_of(*model.module);
  TensorMap file;
  for (const auto& [name, tensor] : wanted) {
    std::string older = name;
    for (const auto& [now, then] :
         {std::pair("LayerNorm.weight", "LayerNorm.gamma"),
          std::pair("LayerNorm.bias", "LayerNorm.beta")}) {
      if (older.ends_with(now)) {
        older = older.substr(0, older.size() - std::string(now).size()) + then;
      }
    }
    file[older] = tensor;
  }
  ASSERT_TRUE(file.contains("bert.embeddings.LayerNorm.gamma"));
  file["cls.predictions.decoder.bias"] = wanted.at("cls.predictions.bias").clone();
  file["bert.pooler.dense.weight"] = torch::randn({8, 8});
  file["cls.seq_relationship.weight"] = torch::randn({2, 8});
  expect_loaded(options, file, wanted);
  file["cls.predictions.decoder.bias"] += 1;
  EXPECT_THROW(models::load_parameters(*model.module, file, "file"), CheckpointError);
  file.erase("cls.predictions.decoder.bias");
  file["bert.pooler.weight"] = torch::randn({8, 8}); // of no class
  EXPECT_THROW(models::load_parameters(*model.module, file, "file"), CheckpointError);
}

TEST(PublishedNames, OfAT5WhoseStacksNameTheEmbeddingToo) {
  models::T5Options options;
  options.vocab_size = 30;
  options.d_model = 8;
  options.d_kv = 4;
  options.d_ff = 16;
  options.num_layers = 1;
  options.num_heads = 2;
  torch::manual_seed(1);
  const TensorMap wanted = parameters_of(*made_of(options).module);
  TensorMap file = wanted;
  for (const char* name : {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}) {
    file[name] = wanted.at("shared.weight");
  }
  file["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] =
      torch::randn({32, 2});
  expect_loaded(options, file, wanted);
}

} // namespace
} // namespace tessera::testing
