#pragma once

#include <torch/torch.h>

// What the network says at its end and half way.
struct Output {
  torch::Tensor logits;
  torch::Tensor aux;
};

struct MixImpl : torch::nn::Module {
  MixImpl(int64_t in, int64_t out) {
    torch::nn::Conv2d point(torch::nn::Conv2dOptions(in, out, 1));
    torch::nn::Conv2d wide(torch::nn::Conv2dOptions(in, out, 3).padding(1));
    torch::OrderedDict<std::string, std::shared_ptr<torch::nn::Module>> both;
    both.insert("point", point.ptr());
    both.insert("wide", wide.ptr());
    branches = register_module("branches", torch::nn::ModuleDict(both));
  }
  torch::Tensor forward(torch::Tensor x) {
    auto point = (*branches)["point"]->as<torch::nn::Conv2d>()->forward(x);
    auto wide = (*branches)["wide"]->as<torch::nn::Conv2d>()->forward(x);
    return torch::relu(torch::cat({point, wide}, 1));
  }
  torch::nn::ModuleDict branches{nullptr};
};
TORCH_MODULE(Mix);

struct HeadImpl : torch::nn::Module {
  HeadImpl(int64_t in, int64_t classes) {
    fc = register_module("fc", torch::nn::Linear(in, classes));
  }
  torch::Tensor forward(torch::Tensor x) {
    return fc->forward(x.mean({2, 3}));
  }
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(Head);

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t classes) {
    mix1 = register_module("mix1", Mix(3, 6));
    mix2 = register_module("mix2", Mix(12, 6));
    mix3 = register_module("mix3", Mix(12, 8));
    aux = register_module("aux", Head(12, classes));
    head = register_module("head", Head(16, classes));
  }
  Output forward(torch::Tensor x) {
    x = mix1->forward(x);
    x = mix2->forward(x);
    Output output;
    if (is_training()) {
      output.aux = aux->forward(x);
    }
    output.logits = head->forward(mix3->forward(x));
    return output;
  }
  Mix mix1{nullptr}, mix2{nullptr}, mix3{nullptr};
  Head aux{nullptr}, head{nullptr};
};
TORCH_MODULE(Net);
