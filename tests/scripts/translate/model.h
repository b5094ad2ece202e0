#pragma once

#include <cmath>

#include <torch/torch.h>

// Masks are added to scores: 0 where a position may look, -1e9 where it may not.
inline torch::Tensor padding_mask(torch::Tensor tokens) {
  return tokens.eq(0).to(torch::kFloat).mul(-1e9).unsqueeze(1);
}

struct EmbedImpl : torch::nn::Module {
  EmbedImpl(int64_t vocabulary, int64_t width) : embedding(vocabulary, width) {
    register_module("embedding", embedding);
    auto position = torch::arange(32).unsqueeze(1).to(torch::kFloat);
    auto rate = torch::exp(torch::arange(0, width, 2) * (-std::log(1e4) / width));
    auto table = torch::zeros({32, width});
    table.slice(1, 0, width, 2).copy_(torch::sin(position * rate));
    table.slice(1, 1, width, 2).copy_(torch::cos(position * rate));
    table_ = register_buffer("table", table);
  }
  torch::Tensor forward(torch::Tensor tokens) {
    return embedding->forward(tokens) + table_.slice(0, 0, tokens.size(1));
  }
  torch::nn::Embedding embedding;
  torch::Tensor table_;
};
TORCH_MODULE(Embed);

struct AttendImpl : torch::nn::Module {
  explicit AttendImpl(int64_t width) : query(width, width), key(width, width), value(width, width) {
    register_module("query", query);
    register_module("key", key);
    register_module("value", value);
  }
  torch::Tensor forward(torch::Tensor x, torch::Tensor memory, torch::Tensor mask = {}) {
    auto scores = torch::matmul(query->forward(x), key->forward(memory).transpose(1, 2));
    scores = scores / std::sqrt(static_cast<double>(x.size(2)));
    if (mask.defined()) {
      scores = scores + mask;
    }
    return torch::matmul(scores.softmax(-1), value->forward(memory));
  }
  torch::nn::Linear query, key, value;
};
TORCH_MODULE(Attend);

struct EncoderLayerImpl : torch::nn::Module {
  explicit EncoderLayerImpl(int64_t width)
      : self(width), linear(width, width), norm(torch::nn::LayerNormOptions({width})) {
    register_module("self", self);
    register_module("linear", linear);
    register_module("norm", norm);
  }
  torch::Tensor forward(torch::Tensor x, torch::Tensor mask = {}) {
    x = x + self->forward(x, x, mask);
    return norm->forward(x + torch::relu(linear->forward(x)));
  }
  Attend self;
  torch::nn::Linear linear;
  torch::nn::LayerNorm norm;
};
TORCH_MODULE(EncoderLayer);

struct DecoderLayerImpl : torch::nn::Module {
  explicit DecoderLayerImpl(int64_t width)
      : self(width),
        cross(width),
        linear(width, width),
        norm(torch::nn::LayerNormOptions({width})) {
    register_module("self", self);
    register_module("cross", cross);
    register_module("linear", linear);
    register_module("norm", norm);
  }
  torch::Tensor forward(
      torch::Tensor x,
      torch::Tensor memory,
      torch::Tensor mask = {},
      torch::Tensor memory_mask = {}) {
    x = x + self->forward(x, x, mask);
    x = x + cross->forward(x, memory, memory_mask);
    return norm->forward(x + torch::relu(linear->forward(x)));
  }
  Attend self, cross;
  torch::nn::Linear linear;
  torch::nn::LayerNorm norm;
};
TORCH_MODULE(DecoderLayer);

struct TranslatorImpl : torch::nn::Module {
  TranslatorImpl(int64_t vocabulary, int64_t width)
      : source(vocabulary, width), target(vocabulary, width), head(width, vocabulary) {
    register_module("source", source);
    register_module("target", target);
    register_module("head", head);
    for (int i = 0; i < 2; ++i) {
      encoder.push_back(register_module("encoder" + std::to_string(i), EncoderLayer(width)));
      decoder.push_back(register_module("decoder" + std::to_string(i), DecoderLayer(width)));
    }
    causal = register_buffer("causal", torch::full({32, 32}, -1e9).triu(1));
  }
  torch::Tensor forward(torch::Tensor from, torch::Tensor to, bool log_probabilities = false) {
    auto mask = padding_mask(from);
    auto memory = source->forward(from);
    for (auto& layer : encoder) {
      memory = layer->forward(memory, mask);
    }
    const auto length = to.size(1);
    auto x = target->forward(to);
    for (auto& layer : decoder) {
      x = layer->forward(x, memory, causal.slice(0, 0, length).slice(1, 0, length), mask);
    }
    x = head->forward(x);
    return log_probabilities ? x.log_softmax(-1) : x;
  }
  Embed source, target;
  std::vector<EncoderLayer> encoder;
  std::vector<DecoderLayer> decoder;
  torch::nn::Linear head;
  torch::Tensor causal;
};
TORCH_MODULE(Translator);
