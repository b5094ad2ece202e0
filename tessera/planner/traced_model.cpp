#include "tessera/planner/traced_model.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/index.h"
#include "tessera/cost/data_sheets.h"

namespace tessera::planner {

namespace {

bool is_sequential(const graph::Module& module) {
  return module.type == "Sequential" && module.children.size() > 1;
}

// Returns for every module the movable one that it is part of, or -1.
std::vector<int> owner_of(const graph::ModelGraph& graph, const std::vector<int>& movable) {
  std::vector<int> owner(graph.modules.size(), -1);
  for (const int module : movable) {
    owner[at(module)] = module;
  }
  // Modules are in pre-order, so a parent's owner is known before its children's.
  for (std::size_t i = 1; i < graph.modules.size(); ++i) {
    if (owner[i] < 0) {
      owner[i] = owner[at(graph.modules[i].parent)];
    }
  }
  return owner;
}

// Returns the modules of `candidates` whose parameters no other part of the model holds.
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

// The two traces of one model: the whole one, or the part of a tensor-parallel rank.
struct Trace {
  const graph::ModelGraph& graph;
  const graph::ForwardWork& one_sample;
  const graph::ForwardWork& two_samples;
  int samples = 1; // of the microbatch in the first trace
  const std::set<std::string>* whole = nullptr; // DivisionTrace::whole; null for the whole model
};

// The layers of a trace, to be priced at any microbatch size.
class Layers {
 public:
  explicit Layers(const Trace& trace)
      : trace_(trace),
        movable_(movable_modules(trace.graph)),
        owner_(owner_of(trace.graph, movable_)) {
    for (const int module : movable_) {
      layer_of_.emplace(module, layer_of_.size() + 1);
    }
    const graph::ForwardWork& work = trace.one_sample;
    for (std::size_t i = 0; i < work.size(); ++i) {
      const int part = owner_[at(work[i].module)];
      layer_.push_back(part < 0 ? 0 : layer_of_.at(part));
      last_away_ = part < 0 ? last_away_ : i;
    }
  }

  /// Names and sizes of the layers.
  std::vector<cost::Layer> outlines(cost::Precision precision) const {
    std::vector<cost::Layer> layers(movable_.size() + 1);
    layers[0].kind = "home";
    for_each_parameter([&](const graph::Parameter& one, std::size_t layer) {
      layers[layer].parameters += one.elements;
    });
    const std::int64_t value_bytes = precision == cost::Precision::kHalf ? 2 : 4;
    // Layer 0 sends what the first movable module takes; its output has the same size.
    for (std::size_t l = movable_.size(); l-- > 0;) {
      const graph::Module& module = trace_.graph.modules[at(movable_[l])];
      cost::Layer& layer = layers[l + 1];
      layer.name = module.path;
      layer.kind = module.type;
      // The trace holds the group's whole microbatch; the layer wants one sample of it.
      layer.output_elements_per_sample = module.returned_bytes / value_bytes / trace_.samples;
      layers[0].output_elements_per_sample = layer.output_elements_per_sample;
    }
    return layers;
  }

  /// Returns what does not depend on the microbatch size: bytes that a sample keeps, and
  /// parameters that every rank holds whole.
  cost::TracedPart part() const {
    cost::TracedPart part;
    part.layers.resize(movable_.size() + 1);
    for_each_parameter([&](const graph::Parameter& one, std::size_t layer) {
      if (trace_.whole != nullptr && trace_.whole->count(one.name) != 0) {
        part.layers[layer].whole_parameters += one.elements;
      }
    });
    add_kept_bytes(part.layers);
    add_working_bytes(part);
    return part;
  }

  /// Adds the seconds of a microbatch of `size` samples on a kind of device.
  void price(
      const cost::DeviceKind& kind,
      const cost::DeviceSpeed& speed,
      cost::Precision precision,
      int size,
      cost::TracedPart& part) const {
    std::vector<cost::PassSeconds> seconds(part.layers.size());
    std::vector<cost::PassSeconds> given(part.layers.size());
    std::vector<cost::PassSeconds> returned(part.layers.size());
    std::vector<double> deferred(part.layers.size(), 0);
    cost::PassSeconds tail;
    double tail_deferred = 0;
    const graph::ForwardWork work = work_of(size);
    for (std::size_t i = 0; i < work.size(); ++i) {
      const cost::PassSeconds pass = cost::pass_seconds(work[i], speed, precision);
      add(pass, seconds[layer_[i]]);
      if (has_weights(i)) {
        add(pass, given[layer_[i]]);
      } else if (work[i].kind == graph::OperatorWork::Kind::kRandom) {
        // A mask that is given is still multiplied by.
        const double moved = cost::seconds_at(speed.moves, work[i].elements, 1);
        add({std::max(0.0, pass.forward - moved), 0}, given[layer_[i]]);
      }
      if (is_returned(i)) {
        add(pass, returned[layer_[i]]);
      }
      if (is_tail(i)) {
        add(pass, tail);
      }
      if (computes_weights_later(i, part)) {
        // A product's backward is two products of its size.
        (is_tail(i) ? tail_deferred : deferred[layer_[i]]) += pass.backward / 2;
      }
    }
    add_gradient_sums(speed, seconds);
    for (std::size_t l = 0; l < seconds.size(); ++l) {
      part.layers[l].microbatch_seconds[kind.name][size] = seconds[l];
      part.layers[l].given_seconds[kind.name][size] = given[l];
      part.layers[l].returned_seconds[kind.name][size] = returned[l];
      part.layers[l].deferred_seconds[kind.name][size] = {.backward = deferred[l]};
    }
    part.tail_seconds[kind.name][size] = tail;
    part.tail_deferred_seconds[kind.name][size] = {.backward = tail_deferred};
  }

  /// Adds the collectives of tensor-parallel ranks for a microbatch of `size` samples.
  void exchange(int size, cost::TracedPart& part) const {
    const graph::ForwardWork work = work_of(size);
    part.tail_collectives[size] = {};
    for (cost::TracedLayer& layer : part.layers) {
      layer.collectives[size] = {};
    }
    std::vector<std::optional<std::size_t>> product(part.layers.size()); // whose result is at hand
    for (std::size_t i = 0; i < work.size(); ++i) {
      std::optional<std::size_t>& before = product[layer_[i]];
      if (work[i].kind != graph::OperatorWork::Kind::kCollective) {
        const bool is_view = work[i].kind == graph::OperatorWork::Kind::kView;
        before = is_view ? before : has_weights(i) ? std::optional(i) : std::nullopt;
        continue;
      }
      cost::PassCollectives& sum =
          is_tail(i) ? part.tail_collectives[size] : part.layers[layer_[i]].collectives[size];
      add(work[i], sum);
      if (before) {
        put(forward_of(work[i]), sum.given);
      }
      if (before && is_returned(*before)) {
        put(forward_of(work[i]), sum.returned);
      }
    }
  }

 private:
  /// Returns whether the recomputation of a layer leaves an operator out whatever it keeps.
  bool is_returned(std::size_t i) const {
    return trace_.one_sample[i].returned && has_weights(i) && layer_[i] > 0;
  }

  graph::ForwardWork work_of(int size) const {
    return graph::work_of_batch(
        trace_.one_sample, trace_.two_samples, static_cast<double>(size) / trace_.samples);
  }

  /// Returns whether an operator of layer 0 runs behind the movable modules.
  bool is_tail(std::size_t i) const {
    return layer_[i] == 0 && i > last_away_;
  }

  /// Returns whether an operator is a product with weights: more samples make it larger, where
  /// those of attention become more.
  bool has_weights(std::size_t i) const {
    const graph::OperatorWork& one = trace_.one_sample[i];
    return one.kind == graph::OperatorWork::Kind::kProduct &&
           one.count == trace_.two_samples[i].count;
  }

  /// Calls act(parameter, layer) once for every parameter.
  template <typename Act>
  void for_each_parameter(Act&& act) const {
    std::vector<bool> seen(trace_.graph.parameters.size(), false);
    for (std::size_t i = 0; i < trace_.graph.modules.size(); ++i) {
      for (const int index : trace_.graph.modules[i].parameters) {
        if (!seen[at(index)]) {
          seen[at(index)] = true;
          act(trace_.graph.parameters[at(index)], owner_[i] < 0 ? 0 : layer_of_.at(owner_[i]));
        }
      }
    }
  }

  /// Adds the seconds in which the backward of a microbatch adds to the gradients of
  /// the microbatches before it. A product that accumulates reads and writes them
  /// just as a separate addition would.
  void add_gradient_sums(const cost::DeviceSpeed& speed, std::vector<cost::PassSeconds>& seconds)
      const {
    for_each_parameter([&](const graph::Parameter& one, std::size_t layer) {
      seconds[layer].backward +=
          cost::seconds_at(speed.moves, static_cast<double>(one.elements), 1);
    });
  }

  /// Adds the bytes that a sample's operators keep for the backward.
  void add_kept_bytes(std::vector<cost::TracedLayer>& layers) const {
    const graph::ForwardWork& one = trace_.one_sample;
    const graph::ForwardWork two = work_of(2 * trace_.samples); // checks that the two agree
    for (std::size_t i = 0; i < two.size(); ++i) {
      cost::TracedLayer& layer = layers[layer_[i]];
      layer.kept_bytes_per_sample += (two[i].kept_bytes - one[i].kept_bytes) / trace_.samples;
      if (has_weights(i)) {
        layer.given_bytes_per_sample += (two[i].bytes - one[i].bytes) / trace_.samples;
      } else if (two[i].kind == graph::OperatorWork::Kind::kRandom) {
        layer.given_bytes_per_sample += (two[i].elements - one[i].elements) / 8 / trace_.samples;
      }
    }
  }

  /// Adds the most that stands beside what a part keeps while the backward of one of its operators
  /// runs: gradients, without what the backwards before it have freed.
  void add_working_bytes(cost::TracedPart& part) const {
    const graph::ForwardWork& one = trace_.one_sample;
    const graph::ForwardWork two = work_of(2 * trace_.samples);
    const auto bytes = [&](std::size_t i, double graph::OperatorWork::*size) {
      const double per_sample = (two[i].*size - one[i].*size) / trace_.samples;
      return cost::SampleBytes{per_sample, one[i].*size - per_sample * trace_.samples};
    };
    const cost::SampleBytes held = {0, held_gradients(bytes)};
    part.held_gradient_bytes = held.constant;
    std::map<const cost::MostBytes*, cost::SampleBytes> freed; // behind the operator
    for (std::size_t i = one.size(); i-- > 0;) {
      cost::SampleBytes stands = bytes(i, &graph::OperatorWork::gradient_bytes);
      if (one[i].name.find("cross_entropy") != std::string::npos) {
        // A loss has the gradients of its probabilities and of its argument at one time.
        stands += bytes(i, &graph::OperatorWork::bytes);
      }
      if (is_tail(i)) {
        part.tail_kept_bytes_per_sample += bytes(i, &graph::OperatorWork::kept_bytes).per_sample;
      }
      const auto work = [&](cost::MostBytes& most, const cost::SampleBytes& frees) {
        most.take(stands - freed[&most]);
        freed[&most] += frees;
      };
      const cost::SampleBytes frees = bytes(i, &graph::OperatorWork::freed_bytes);
      cost::TracedLayer& layer = part.layers[layer_[i]];
      for (std::size_t b = 0; b < layer.buffers.size(); ++b) {
        const double per_sample =
            (two[i].buffer_bytes[b] - one[i].buffer_bytes[b]) / trace_.samples;
        layer.buffers[b].take({per_sample, one[i].buffer_bytes[b] - per_sample * trace_.samples});
      }
      if (layer_[i] == 0) {
        work(is_tail(i) ? part.tail_working : layer.working, frees);
        continue;
      }
      stands = stands - held; // which is no part of the layers between layer 0's two parts
      work(layer.working, frees);
      if (!defers_weights(i)) {
        work(layer.deferring, frees);
        continue;
      }
      // What the product was given stays, and so does the gradient of its result.
      const cost::SampleBytes result = bytes(i, &graph::OperatorWork::bytes);
      work(layer.deferring, cost::SampleBytes{} - result);
      layer.deferred_bytes_per_sample += frees.per_sample + result.per_sample;
    }
  }

  /// Returns whether the gradient of an operator's weight can be put off. Convolutions, and
  /// products on a mesh, which ranks run together, compute theirs at once.
  bool defers_weights(std::size_t i) const {
    const std::string& name = trace_.one_sample[i].name;
    return has_weights(i) && name != "product" && name.find("conv") == std::string::npos;
  }

  /// Returns whether the gradient of an operator's weight is computed when the rank that waits for
  /// the backward has its answer. Nobody waits for layer 0's first part; a weight that two parts of
  /// the model use gets its gradient from the engine, and distributed products hide their exchange
  /// behind their weight's.
  bool computes_weights_later(std::size_t i, const cost::TracedPart& part) const {
    const bool is_tied = is_tail(i) && part.held_gradient_bytes > 0;
    return trace_.whole == nullptr && defers_weights(i) && (layer_[i] > 0 || is_tail(i)) &&
           !is_tied;
  }

  /// Returns the bytes of gradients that do not grow with the samples and stand during all that
  /// runs between layer 0's two parts.
  template <typename Bytes>
  double held_gradients(const Bytes& bytes_of) const {
    std::optional<double> least;
    for (std::size_t i = 0; i < trace_.one_sample.size(); ++i) {
      if (layer_[i] > 0) {
        const double bytes = bytes_of(i, &graph::OperatorWork::gradient_bytes).constant;
        least = std::min(least.value_or(bytes), bytes);
      }
    }
    return std::max(0.0, least.value_or(0));
  }

  static void add(const cost::PassSeconds& pass, cost::PassSeconds& sum) {
    sum.forward += pass.forward;
    sum.backward += pass.backward;
  }

  static cost::TensorCollective forward_of(const graph::OperatorWork& work) {
    cost::TensorCollective one = {work.name, work.ranks, work.bytes};
    if (work.name == "panel") {
      one.operation = "broadcast"; // from the rank that has a panel to the others
      one.panels = static_cast<int>(work.count);
    }
    return one;
  }

  // Adds a collective and its adjoint: the backward of an all-gather is a
  // reduce-scatter of what was gathered, and the other way round; an all-reduce, an
  // all-to-all and a broadcast or reduction of a panel are priced as themselves.
  static void add(const graph::OperatorWork& work, cost::PassCollectives& sum) {
    cost::TensorCollective one = forward_of(work);
    const bool are_panels = work.name == "panel";
    put(one, sum.forward);
    if (!work.has_adjoint) {
      return;
    }
    if (work.name == "all_gather") {
      one = {"reduce_scatter", work.ranks, work.bytes * work.ranks};
    } else if (work.name == "reduce_scatter") {
      one = {"all_gather", work.ranks, work.bytes / work.ranks};
    } else if (are_panels) {
      // The gradients of both factors are products on the mesh, each with its panels.
      one.times = 2;
    }
    put(one, sum.backward);
  }

  static void put(const cost::TensorCollective& one, std::vector<cost::TensorCollective>& list) {
    for (cost::TensorCollective& known : list) {
      if (known.operation == one.operation && known.ranks == one.ranks &&
          known.bytes == one.bytes && known.panels == one.panels) {
        known.times += one.times;
        return;
      }
    }
    list.push_back(one);
  }

  const Trace trace_;
  std::vector<int> movable_;
  std::vector<int> owner_;
  std::map<int, std::size_t> layer_of_;
  std::vector<std::size_t> layer_; // of every operator
  std::size_t last_away_ = 0;
};

cost::DeviceSpeed speed_of(const cost::DeviceKind& kind) {
  cost::DeviceSpeed speed = kind.speed.measured() ? kind.speed : cost::data_sheet_speed(kind);
  if (!speed.measured()) {
    throw UnmeasuredDevice(
        str("cluster: device \"",
            kind.name,
            "\" has no measured speed (product_seconds and the like), so a "
            "traced model cannot be priced on it; measure the cluster, or plan "
            "for a described model, whose layers were measured"));
  }
  return speed;
}

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

cost::DescribedModel describe_traced(const ModelTrace& model, const cost::Cluster& cluster) {
  cost::DescribedModel described;
  described.name = model.graph.name;
  described.global_batch_size = model.global_batch_size;
  described.precision = model.precision;
  described.returns_home = true;
  std::vector<std::pair<const cost::DeviceKind*, cost::DeviceSpeed>> speeds;
  for (const cost::DeviceKind& kind : cluster.kinds) {
    speeds.emplace_back(&kind, speed_of(kind));
  }
  // Replicas on unlike devices may take any number of samples.
  constexpr int kMostSizes = 256;
  const bool every_size = cluster.kinds.size() > 1 && model.global_batch_size <= kMostSizes;
  const auto price = [&](const Layers& layers, int samples, cost::TracedPart& part) {
    for (int size = samples; size <= model.global_batch_size; size += samples) {
      if (model.global_batch_size % size == 0 || every_size) {
        for (const auto& [kind, speed] : speeds) {
          layers.price(*kind, speed, model.precision, size, part);
        }
        layers.exchange(size, part);
      }
    }
  };
  cost::TracedModel traced;
  const Layers whole(
      {.graph = model.graph, .one_sample = model.one_sample, .two_samples = model.two_samples});
  described.layers = whole.outlines(model.precision);
  traced.whole = whole.part();
  price(whole, 1, traced.whole);
  for (const DivisionTrace& division : model.divisions) {
    const Layers part(
        {.graph = division.graph,
         .one_sample = division.least,
         .two_samples = division.twice,
         .samples = division.samples,
         .whole = &division.whole});
    cost::DividedModel divided;
    divided.way = division.way;
    divided.layers = part.outlines(model.precision);
    // Modules of a division have other names when the model was replaced as a whole, so only
    // their number is compared.
    if (divided.layers.size() == described.layers.size()) {
      divided.part = part.part();
      price(part, division.samples, divided.part);
      traced.divided.push_back(std::move(divided));
    }
  }
  described.source = std::move(traced);
  cost::validate(described);
  return described;
}

} // namespace tessera::planner
