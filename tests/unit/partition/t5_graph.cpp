#include "tests/unit/partition/t5_graph.h"

#include <string>
#include <utility>
#include <vector>

namespace tessera::partitioning {

namespace {

constexpr std::int64_t kBytes = 4;

// Writes modules in order of registration, which for T5 is also, but for the
// embedding and the head, the order of execution.
class Writer {
 public:
  explicit Writer(const T5Shape& shape) : shape_(shape) {}

  graph::ModelGraph write() {
    graph_.name = "t5-11b";
    graph_.traced = true;
    const int root = add(-1, "", "T5", decoder(shape_.vocabulary));
    const int embedding =
        add(root,
            "word_embedding",
            "Embedding",
            (shape_.encoder_length + shape_.decoder_length) * shape_.samples * shape_.d_model);
    graph_.modules[embedding].calls = 2;
    const int weight = parameter(embedding, {shape_.vocabulary, shape_.d_model});
    stack(root, false);
    stack(root, true);
    const int head = add(root, "lm_head", "Linear", decoder(shape_.vocabulary));
    graph_.modules[head].parameters.push_back(weight);
    return std::move(graph_);
  }

 private:
  std::int64_t encoder(std::int64_t width) const {
    return shape_.samples * shape_.encoder_length * width;
  }
  std::int64_t decoder(std::int64_t width) const {
    return shape_.samples * shape_.decoder_length * width;
  }

  // `elements` are what the module's calls return.
  int add(int parent, const std::string& name, const std::string& type, std::int64_t elements) {
    const int index = static_cast<int>(graph_.modules.size());
    graph::Module module;
    module.type = type;
    module.parent = parent;
    module.first_call = index;
    module.calls = 1;
    module.activation_bytes = kBytes * elements;
    if (parent >= 0) {
      const std::string& above = graph_.modules[parent].path;
      module.path = above.empty() ? name : above + "." + name;
      graph_.modules[parent].children.push_back(index);
    }
    graph_.modules.push_back(std::move(module));
    return index;
  }

  int parameter(int module, std::vector<std::int64_t> shape) {
    std::int64_t elements = 1;
    for (const std::int64_t size : shape) {
      elements *= size;
    }
    const int index = static_cast<int>(graph_.parameters.size());
    graph_.parameters.push_back(
        {graph_.modules[module].path + ".weight",
         std::move(shape),
         "float32",
         elements,
         kBytes * elements});
    graph_.modules[module].parameters.push_back(index);
    return index;
  }

  void linear(
      int parent,
      const std::string& name,
      std::int64_t in,
      std::int64_t out,
      std::int64_t tokens) {
    parameter(add(parent, name, "Linear", tokens * out), {out, in});
  }

  void norm(int parent, const std::string& name, std::int64_t tokens) {
    parameter(add(parent, name, "LayerNorm", tokens * shape_.d_model), {shape_.d_model});
  }

  void dropout(int parent, std::int64_t tokens, std::int64_t width) {
    if (shape_.dropout_modules) {
      add(parent, "dropout", "Dropout", tokens * width);
    }
  }

  void attention(int parent, const std::string& name, std::int64_t queries, std::int64_t keys) {
    const std::int64_t inner = shape_.heads * shape_.d_kv;
    const int block = add(parent, name, "Block", queries * shape_.d_model);
    norm(block, "layer_norm", queries);
    const int module = add(block, "attention", "Attention", queries * shape_.d_model);
    linear(module, "q", shape_.d_model, inner, queries);
    linear(module, "k", shape_.d_model, inner, keys);
    linear(module, "v", shape_.d_model, inner, keys);
    linear(module, "o", inner, shape_.d_model, queries);
    dropout(block, queries, shape_.d_model);
  }

  void feed_forward(int parent, std::int64_t tokens) {
    const int block = add(parent, "feed_forward", "Block", tokens * shape_.d_model);
    norm(block, "layer_norm", tokens);
    const int module = add(block, "dense", "FeedForward", tokens * shape_.d_model);
    linear(module, "wi", shape_.d_model, shape_.d_ff, tokens);
    dropout(module, tokens, shape_.d_ff);
    linear(module, "wo", shape_.d_ff, shape_.d_model, tokens);
    dropout(block, tokens, shape_.d_model);
  }

  void stack(int root, bool is_decoder) {
    const std::int64_t tokens = is_decoder ? decoder(1) : encoder(1);
    const int top = add(root, is_decoder ? "decoder" : "encoder", "Stack", tokens * shape_.d_model);
    dropout(top, tokens, shape_.d_model);
    for (int i = 0; i < shape_.layers; ++i) {
      const int layer = add(top, "layers." + std::to_string(i), "Layer", tokens * shape_.d_model);
      attention(layer, "self_attention", tokens, tokens);
      if (is_decoder) {
        attention(layer, "cross_attention", tokens, encoder(1));
      }
      feed_forward(layer, tokens);
    }
    norm(top, "final_layer_norm", tokens);
  }

  const T5Shape& shape_;
  graph::ModelGraph graph_;
};

} // namespace

graph::ModelGraph t5_graph(const T5Shape& shape) {
  return Writer(shape).write();
}

} // namespace tessera::partitioning
