#pragma once

#include <tuple>
#include <utility>
#include <vector>

#include <torch/torch.h>

using State = std::tuple<torch::Tensor, torch::Tensor>;

struct RecurrentImpl : torch::nn::Module {
  RecurrentImpl(int64_t in, int64_t width) : lstm(torch::nn::LSTMOptions(in, width)) {
    register_module("lstm", lstm);
  }
  std::tuple<torch::Tensor, State> forward(torch::Tensor x, torch::optional<State> state) {
    return lstm->forward(x, state);
  }
  torch::nn::LSTM lstm;
};
TORCH_MODULE(Recurrent);

// Tokens are [time, batch], a layer's state is a pair of [1, batch, width].
struct LanguageModelImpl : torch::nn::Module {
  LanguageModelImpl(int64_t vocabulary, int64_t width)
      : embedding(vocabulary, width),
        lower(width, width),
        upper(width, width),
        decoder(width, vocabulary) {
    register_module("embedding", embedding);
    register_module("lower", lower);
    register_module("upper", upper);
    register_module("decoder", decoder);
  }
  std::pair<torch::Tensor, std::vector<State>> forward(
      torch::Tensor tokens,
      std::vector<State> states) {
    auto [x, lower_state] = lower->forward(embedding->forward(tokens), states.at(0));
    auto [y, upper_state] = upper->forward(x, states.at(1));
    return {decoder->forward(x + y), {lower_state, upper_state}};
  }
  torch::nn::Embedding embedding;
  Recurrent lower, upper;
  torch::nn::Linear decoder;
};
TORCH_MODULE(LanguageModel);
