#include "tessera/cost/layer_seconds.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/cost/collective.h"
#include "tessera/cost/layer_rows.h"

namespace tessera::cost {

namespace {

// Operators are counted roundly, so only a clearly shorter time contradicts a device's figure.
constexpr double kClearlyShorter = 0.9;

// Returns the seconds of a transformer layer's all-reduces for one sample where the layer was
// measured: inside a node of this kind of device; 0 when no node has two of them and the kind does
// not say how fast it was, since nobody knows then what was measured. A kind that says it makes the
// figure independent of the links of the cluster that is priced.
double all_reduces_inside(
    const DescribedModel& model,
    const Layer& layer,
    const Cluster& cluster,
    const DeviceKind& kind,
    int degree,
    const Constants& constants) {
  double bytes_per_s = 0;
  Span inside;
  for (std::size_t n = 0; n < cluster.nodes.size(); ++n) {
    const Node& node = cluster.nodes[n];
    if (node.count > 1 && &cluster.kinds[static_cast<std::size_t>(node.kind)] == &kind &&
        node.intra_bytes_per_s > bytes_per_s) {
      bytes_per_s = node.intra_bytes_per_s;
      inside = cluster.span_of({static_cast<int>(n)});
    }
  }
  if (kind.profiled_bytes_per_s > 0) {
    bytes_per_s = kind.profiled_bytes_per_s;
  }
  if (bytes_per_s == 0) {
    return 0;
  }
  const double bytes =
      static_cast<double>(layer.output_elements_per_sample) * value_bytes(model.precision);
  const double found = cluster.collective("all_reduce", degree, inside, bytes).seconds;
  return 2 * (found > 0 ? found
                        : ring_traffic("all_reduce", degree, 1, bytes)
                              .seconds_at(
                                  bytes_per_s * constants.link_efficiency,
                                  {0, constants.link_latency_seconds}));
}

double operators_of(const Layer& layer, const Constants& constants) {
  return is_transformer(layer) ? constants.transformer_operators : 1;
}

} // namespace

bool is_transformer(const Layer& layer) {
  return layer.kind == "transformer_layer";
}

double measured_seconds(
    const Layer& layer,
    const MeasuredLayer& times,
    const std::string& device,
    int degree) {
  const auto by_device = times.forward_seconds_per_sample.find(device);
  if (by_device == times.forward_seconds_per_sample.end()) {
    throw ConfigError(
        str("model: layer \"",
            layer.name,
            "\" was not measured on device \"",
            device,
            "\", which the cluster has; add forward_seconds_per_sample.",
            device));
  }
  const auto by_degree = by_device->second.find(degree);
  if (by_degree == by_device->second.end()) {
    throw ConfigError(
        str("model: layer \"",
            layer.name,
            "\" was not measured at tensor-parallel degree ",
            degree,
            " on device \"",
            device,
            "\"; add it or choose another degree"));
  }
  return by_degree->second;
}

double
launch_seconds(const DescribedModel& model, const DeviceKind& kind, const Constants& constants) {
  double launch = kind.launch_seconds;
  if (launch == 0 && kind.speed.measured()) {
    launch = kind.speed.moves.front().seconds;
  }
  const std::vector<MeasuredLayer>& times = model.measured().layers;
  for (std::size_t i = 0; launch > 0 && i < model.layers.size(); ++i) {
    const Layer& layer = model.layers[i];
    const double shortest = kClearlyShorter * operators_of(layer, constants) * launch;
    if (is_transformer(layer) && measured_seconds(layer, times[i], kind.name, 1) < shortest) {
      return 0;
    }
  }
  return launch;
}

LayerSeconds layer_seconds(
    const DescribedModel& model,
    std::size_t index,
    const Cluster& cluster,
    const DeviceKind& kind,
    int degree,
    double launch,
    const Constants& constants) {
  const Layer& layer = model.layers[index];
  const MeasuredLayer& times = model.measured().layers[index];
  const bool divided = is_transformer(layer) && degree > 1;
  const auto said = times.fixed_seconds.find(kind.name);
  const bool is_said = said != times.fixed_seconds.end();
  const double launching = is_said ? said->second : launch * operators_of(layer, constants);
  double seconds = measured_seconds(layer, times, kind.name, degree);
  LayerSeconds result;
  if (!divided) {
    result.launching = std::min(seconds, launching);
    result.work = seconds - result.launching;
    return result;
  }
  seconds =
      std::max(0.0, seconds - all_reduces_inside(model, layer, cluster, kind, degree, constants));
  result.launching = std::min(seconds, launching);
  const double whole = measured_seconds(layer, times, kind.name, 1);
  const double part = (whole - std::min(whole, launching)) / degree;
  const double beyond = std::max(0.0, seconds - result.launching - part);
  result.dividing = is_said ? 0 : std::min(beyond, launching);
  result.work = seconds - result.launching - result.dividing;
  return result;
}

} // namespace tessera::cost
