#include "tessera/planner/traced_model.h"

#include <algorithm>
#include <functional>
#include <map>

#include "tessera/base/error.h"
#include "tessera/cost/data_sheets.h"

namespace tessera::planner {

namespace {

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

bool is_sequential(const graph::Module& module) {
  return module.type == "Sequential" && module.children.size() > 1;
}

// For every module the movable one that it is part of, or -1.
std::vector<int> owner_of(
    const graph::ModelGraph& graph,
    const std::vector<int>& movable) {
  std::vector<int> owner(graph.modules.size(), -1);
  for (const int module : movable) {
    owner[at(module)] = module;
  }
  // Pre-order: a parent's owner is known before its children's.
  for (std::size_t i = 1; i < graph.modules.size(); ++i) {
    if (owner[i] < 0) {
      owner[i] = owner[at(graph.modules[i].parent)];
    }
  }
  return owner;
}

// Modules of `candidates` whose parameters no other part of the model holds.
std::vector<int> without_shared(
    const graph::ModelGraph& graph,
    const std::vector<int>& candidates) {
  const std::vector<int> owner = owner_of(graph, candidates);
  std::map<int, int> holder; // parameter -> owner
  std::vector<bool> shared(graph.modules.size(), false);
  for (std::size_t i = 0; i < graph.modules.size(); ++i) {
    for (const int parameter : graph.modules[i].parameters) {
      const auto [first, is_new] = holder.emplace(parameter, owner[i]);
      if (!is_new && first->second != owner[i]) {
        for (const int part : {first->second, owner[i]}) {
          if (part >= 0) {
            shared[at(part)] = true;
          }
        }
      }
    }
  }
  std::vector<int> result;
  for (const int module : candidates) {
    if (!shared[at(module)]) {
      result.push_back(module);
    }
  }
  return result;
}

// Elements of parameters of the model's parts: [0] what stays, [i + 1] movable
// module i.
std::vector<std::int64_t> elements_of_parts(
    const graph::ModelGraph& graph,
    const std::vector<int>& owner,
    const std::map<int, std::size_t>& layer_of) {
  std::vector<std::int64_t> elements(layer_of.size() + 1, 0);
  std::vector<bool> counted(graph.parameters.size(), false);
  for (std::size_t i = 0; i < graph.modules.size(); ++i) {
    for (const int parameter : graph.modules[i].parameters) {
      if (!counted[at(parameter)]) {
        counted[at(parameter)] = true;
        elements[owner[i] < 0 ? 0 : layer_of.at(owner[i])] +=
            graph.parameters[at(parameter)].elements;
      }
    }
  }
  return elements;
}

// Adds up the operators of each layer, and of what stays at home those behind
// the last operator of a movable module.
class Pricing {
 public:
  Pricing(
      const TracedModel& model,
      const std::vector<int>& owner,
      const std::map<int, std::size_t>& layer_of)
      : model_(model) {
    const graph::ForwardWork& work = model.one_sample;
    for (std::size_t i = 0; i < work.size(); ++i) {
      const int part = owner[at(work[i].module)];
      layer_.push_back(part < 0 ? 0 : layer_of.at(part));
      last_away_ = part < 0 ? last_away_ : i;
    }
  }

  void price(
      const cost::DeviceKind& kind,
      const cost::DeviceSpeed& speed,
      int size,
      cost::DescribedModel& described) const {
    std::vector<cost::PassSeconds> layers(described.layers.size());
    cost::PassSeconds tail;
    const graph::ForwardWork work =
        graph::work_of_batch(model_.one_sample, model_.two_samples, size);
    for (std::size_t i = 0; i < work.size(); ++i) {
      const cost::PassSeconds pass =
          cost::pass_seconds(work[i], speed, model_.precision);
      add(pass, layers[layer_[i]]);
      if (layer_[i] == 0 && i > last_away_) {
        add(pass, tail);
      }
    }
    for (std::size_t l = 0; l < layers.size(); ++l) {
      described.layers[l].microbatch_seconds[kind.name][size] = layers[l];
    }
    described.tail_seconds[kind.name][size] = tail;
  }

  /// Bytes of the results of a sample's operators, which is what their
  /// backwards read. A view keeps nothing of its own.
  void add_kept_bytes(cost::DescribedModel& described) const {
    const graph::ForwardWork& one = model_.one_sample;
    const graph::ForwardWork& two = model_.two_samples;
    for (std::size_t i = 0; i < one.size(); ++i) {
      if (one[i].kind != graph::OperatorWork::Kind::kView) {
        described.layers[layer_[i]].kept_bytes_per_sample +=
            two[i].bytes - one[i].bytes;
      }
    }
  }

 private:
  static void add(const cost::PassSeconds& pass, cost::PassSeconds& sum) {
    sum.forward += pass.forward;
    sum.backward += pass.backward;
  }

  const TracedModel& model_;
  std::vector<std::size_t> layer_; // of every operator
  std::size_t last_away_ = 0;
};

} // namespace

std::vector<int> movable_modules(const graph::ModelGraph& graph) {
  std::vector<int> candidates;
  const std::function<void(int)> look = [&](int index) {
    const graph::Module& module = graph.modules[at(index)];
    if (is_sequential(module)) {
      for (const int child : module.children) {
        if (graph.modules[at(child)].calls == 1) {
          candidates.push_back(child);
        }
      }
      return;
    }
    for (const int child : module.children) {
      look(child);
    }
  };
  look(0);
  std::vector<int> result = without_shared(graph, candidates);
  std::stable_sort(result.begin(), result.end(), [&](int a, int b) {
    return graph.modules[at(a)].first_call < graph.modules[at(b)].first_call;
  });
  return result;
}

cost::DescribedModel describe_traced(
    const TracedModel& model,
    const cost::Cluster& cluster) {
  const std::vector<int> movable = movable_modules(model.graph);
  const std::vector<int> owner = owner_of(model.graph, movable);
  std::map<int, std::size_t> layer_of;
  for (const int module : movable) {
    layer_of.emplace(module, layer_of.size() + 1);
  }
  const std::vector<std::int64_t> elements =
      elements_of_parts(model.graph, owner, layer_of);
  cost::DescribedModel described;
  described.name = model.graph.name;
  described.global_batch_size = model.global_batch_size;
  described.precision = model.precision == "bf16" ? cost::Precision::kHalf
                                                  : cost::Precision::kFull;
  described.returns_home = true;
  described.layers.resize(movable.size() + 1);
  described.layers[0].kind = "home";
  described.layers[0].parameters = elements[0];
  const std::int64_t value_bytes =
      described.precision == cost::Precision::kHalf ? 2 : 4;
  // What stays sends the same activation on as the first movable module.
  for (std::size_t l = movable.size(); l-- > 0;) {
    const graph::Module& module = model.graph.modules[at(movable[l])];
    cost::Layer& layer = described.layers[l + 1];
    layer.name = module.path;
    layer.kind = module.type;
    layer.parameters = elements[l + 1];
    // The graph was traced on one sample.
    layer.output_elements_per_sample = module.activation_bytes / value_bytes;
    described.layers[0].output_elements_per_sample =
        layer.output_elements_per_sample;
  }
  const Pricing pricing(model, owner, layer_of);
  for (const cost::DeviceKind& kind : cluster.kinds) {
    const cost::DeviceSpeed speed =
        kind.speed.measured() ? kind.speed : cost::data_sheet_speed(kind.name);
    if (!speed.measured()) {
      throw ConfigError(str(
          "cluster: device \"",
          kind.name,
          "\" has no measured speed (product_seconds and the like), so a "
          "preset cannot be priced on it; let tessera probe write the "
          "cluster file, or describe the model's layers with --model-file"));
    }
    for (int size = 1; size <= model.global_batch_size; ++size) {
      if (model.global_batch_size % size == 0) {
        pricing.price(kind, speed, size, described);
      }
    }
  }
  pricing.add_kept_bytes(described);
  cost::validate(described);
  return described;
}

} // namespace tessera::planner
