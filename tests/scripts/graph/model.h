#pragma once

#include <vector>

#include <torch/torch.h>

// Messages along the edges of each graph: nodes [batch, nodes, in], edges [batch, nodes, nodes].
struct GraphLayerImpl : torch::nn::Module {
  GraphLayerImpl(int64_t in, int64_t out) {
    own = register_module("own", torch::nn::Linear(in, out));
    neighbours = register_module(
        "neighbours", torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false)));
  }
  torch::Tensor forward(torch::Tensor nodes, torch::Tensor edges) {
    return torch::tanh(own->forward(nodes) + torch::matmul(edges, neighbours->forward(nodes)));
  }
  torch::nn::Linear own{nullptr}, neighbours{nullptr};
};
TORCH_MODULE(GraphLayer);

struct GraphNetImpl : torch::nn::Module {
  GraphNetImpl(int64_t in, int64_t width, int64_t classes) {
    for (int i = 0; i < 4; ++i) {
      torch::nn::AnyModule layer(GraphLayer(i == 0 ? in : width, width));
      register_module("layer" + std::to_string(i), layer.ptr());
      layers.push_back(layer);
    }
    readout = register_module("readout", torch::nn::Linear(width, classes));
  }
  torch::Tensor forward(torch::Tensor nodes, torch::Tensor edges) {
    // The caller's own tensors: edges fade from call to call.
    edges.mul_(0.8);
    nodes.sub_(nodes.mean(1, true));
    auto x = nodes;
    for (auto& layer : layers) {
      x = layer.forward<torch::Tensor>(x, edges);
    }
    return readout->forward(x.mean(1));
  }
  std::vector<torch::nn::AnyModule> layers;
  torch::nn::Linear readout{nullptr};
};
TORCH_MODULE(GraphNet);
