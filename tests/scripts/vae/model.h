#pragma once

#include <torch/torch.h>

struct Output {
  torch::Tensor reconstruction;
  torch::Tensor mean;
  torch::Tensor log_variance;
};

class EncoderImpl : public torch::nn::Module {
 public:
  EncoderImpl(int64_t width, int64_t hidden, int64_t latent)
      : fc(register_module("fc", torch::nn::Linear(width, hidden))),
        mean(register_module("mean", torch::nn::Linear(hidden, latent))),
        log_variance(register_module("log_variance", torch::nn::Linear(hidden, latent))) {}
  std::pair<torch::Tensor, torch::Tensor> forward(torch::Tensor x) {
    auto h = torch::relu(fc->forward(x));
    return {mean->forward(h), log_variance->forward(h)};
  }

 private:
  torch::nn::Linear fc, mean, log_variance;
};
TORCH_MODULE(Encoder);

class DecoderImpl : public torch::nn::Module {
 public:
  DecoderImpl(int64_t latent, int64_t hidden, int64_t width)
      : fc1(register_module("fc1", torch::nn::Linear(latent, hidden))),
        fc2(register_module("fc2", torch::nn::Linear(hidden, width))) {}
  torch::Tensor forward(torch::Tensor z) {
    return torch::sigmoid(fc2->forward(torch::relu(fc1->forward(z))));
  }

 private:
  torch::nn::Linear fc1, fc2;
};
TORCH_MODULE(Decoder);

class VaeImpl : public torch::nn::Module {
 public:
  VaeImpl(int64_t width, int64_t hidden, int64_t latent)
      : encoder(register_module("encoder", Encoder(width, hidden, latent))),
        decoder(register_module("decoder", Decoder(latent, hidden, width))) {}
  Output forward(torch::Tensor x) {
    auto [mean, log_variance] = encoder->forward(x);
    auto z = mean;
    if (is_training()) {
      z = mean + torch::randn_like(mean) * (0.5 * log_variance).exp();
    }
    return {decoder->forward(z), mean, log_variance};
  }

 private:
  Encoder encoder;
  Decoder decoder;
};
TORCH_MODULE(Vae);
