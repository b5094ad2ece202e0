#include "tessera/tracer/describe.h"

#include <algorithm>
#include <memory>
#include <unordered_map>

#include "tessera/base/error.h"
#include "tessera/nn/module/interceptor.h"
#include "tessera/nn/module/marks.h"
#include "tessera/tensor/dtype.h"

namespace tessera::tracer {

namespace {

class Walk {
 public:
  explicit Walk(std::string name) {
    parts_.graph.name = std::move(name);
  }

  ModelParts run(torch::nn::Module& root) {
    enter(root, "", -1);
    return std::move(parts_);
  }

 private:
  std::vector<graph::Module>& nodes() {
    return parts_.graph.modules;
  }

  void enter(torch::nn::Module& module, const std::string& path, int parent) {
    const int node = static_cast<int>(nodes().size());
    if (!node_of_.emplace(&module, node).second) {
      return; // the first path wins
    }
    graph::Module entry;
    entry.path = path;
    entry.type = nn::type_name(module);
    entry.parent = parent;
    entry.manual_partition = nn::manual_partition(module);
    nodes().push_back(std::move(entry));
    parts_.modules.push_back(&module);
    if (parent >= 0) {
      nodes()[parent].children.push_back(node);
    }
    gather(module, path, node);
  }

  // Adds the own parameters and the children of `module`, which is `node` or part of it.
  void gather(torch::nn::Module& module, const std::string& path, int node) {
    const std::string prefix = path.empty() ? "" : path + ".";
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      if (item.value().defined()) {
        const int index = add_parameter(item.value(), prefix + item.key(), node);
        add_tensor(item.value(), prefix + item.key(), module, index, node);
      }
    }
    for (const auto& item : module.named_buffers(/*recurse=*/false)) {
      if (item.value().defined()) {
        add_tensor(item.value(), prefix + item.key(), module, -1, node);
      }
    }
    for (const auto& item : module.named_children()) {
      if (item.value() == nullptr) {
        continue;
      }
      const std::string child_path = prefix + item.key();
      if (nn::is_node(*item.value())) {
        enter(*item.value(), child_path, node);
      } else {
        keep(*item.value(), child_path);
        gather(*item.value(), child_path, node);
      }
    }
  }

  // Lists a module with parameters that is part of its parent, which its author may not know. A
  // module with a holder, and a part of one of this library's layers, is so by design.
  void keep(const torch::nn::Module& module, const std::string& path) {
    std::int64_t elements = 0;
    for (const at::Tensor& parameter : module.parameters(/*recurse=*/false)) {
      elements += parameter.defined() ? parameter.numel() : 0;
    }
    if (elements == 0 || nn::has_holder(module)) {
      return;
    }
    const std::string type = nn::type_name(module);
    const std::string class_name = nn::script_class_name(module);
    if (class_name.starts_with("tessera::")) {
      return;
    }
    const bool of_torch = class_name.starts_with("torch::nn::");
    parts_.graph.kept.push_back(
        {path,
         type,
         elements,
         of_torch ? "libtorch's class uses its parameters in several operators"
                  : "no holder of this library made it, so its calls are not seen",
         of_torch ? str("tessera::nn::", type)
                  : str("TESSERA_MODULE(", type, ") and ", type, "(arguments...)")});
  }

  void add_tensor(
      const at::Tensor& tensor,
      const std::string& name,
      const torch::nn::Module& module,
      int parameter,
      int node) {
    const auto [entry, added] = tensor_index_.emplace(
        tensor.unsafeGetTensorImpl(), static_cast<int>(parts_.tensors.size()));
    if (added) {
      parts_.tensors.push_back({tensor, name, &module, parameter, {}});
    }
    auto& holders = parts_.tensors[entry->second].nodes;
    if (std::find(holders.begin(), holders.end(), node) == holders.end()) {
      holders.push_back(node);
    }
  }

  int add_parameter(const at::Tensor& tensor, const std::string& name, int node) {
    const auto [entry, added] =
        index_of_.emplace(tensor.unsafeGetTensorImpl(), static_cast<int>(parts_.parameters.size()));
    if (added) {
      graph::Parameter parameter;
      parameter.name = name;
      parameter.shape = tensor.sizes().vec();
      parameter.dtype = dtype_name(tensor.scalar_type());
      parameter.elements = tensor.numel();
      parameter.bytes = bytes_of(tensor);
      parts_.graph.parameters.push_back(std::move(parameter));
      parts_.parameters.push_back(tensor);
    }
    auto& own = nodes()[node].parameters;
    if (std::find(own.begin(), own.end(), entry->second) == own.end()) {
      own.push_back(entry->second);
    }
    return entry->second;
  }

  ModelParts parts_;
  std::unordered_map<const torch::nn::Module*, int> node_of_;
  std::unordered_map<const c10::TensorImpl*, int> index_of_;
  std::unordered_map<const c10::TensorImpl*, int> tensor_index_;
};

} // namespace

ModelParts take_apart(torch::nn::Module& root, const std::string& name) {
  return Walk(name).run(root);
}

graph::ModelGraph describe(torch::nn::Module& root, const std::string& name) {
  return take_apart(root, name).graph;
}

} // namespace tessera::tracer
