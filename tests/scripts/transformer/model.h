#pragma once

#include <torch/torch.h>

// Reads a sequence with an encoder, then with encoder and decoder, and says what it is about.
struct ReaderImpl : torch::nn::Module {
  ReaderImpl(int64_t vocabulary, int64_t width, int64_t classes)
      : embedding(vocabulary, width),
        encoder(
            torch::nn::TransformerEncoderLayer(
                torch::nn::TransformerEncoderLayerOptions(width, 2).dim_feedforward(24).dropout(
                    0.0)),
            2),
        transformer(torch::nn::TransformerOptions(width, 2)
                        .num_encoder_layers(1)
                        .num_decoder_layers(1)
                        .dim_feedforward(24)
                        .dropout(0.0)),
        output(width, classes) {
    register_module("embedding", embedding);
    register_module("encoder", encoder);
    register_module("transformer", transformer);
    register_module("output", output);
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    // These layers want the sequence first.
    auto x = embedding->forward(tokens).transpose(0, 1);
    const auto length = x.size(0);
    auto mask = torch::full({length, length}, -1e9).triu(1);
    x = encoder->forward(x, mask, {});
    x = transformer->forward(x, x, mask, mask);
    return output->forward(x.mean(0));
  }
  torch::nn::Embedding embedding;
  torch::nn::TransformerEncoder encoder;
  torch::nn::Transformer transformer;
  torch::nn::Linear output;
};
TORCH_MODULE(Reader);
