#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/cost/layer_rows.h"

namespace tessera::cost {

namespace {

PassSeconds seconds_of(
    const MicrobatchSeconds& seconds,
    const std::string& model,
    const std::string& device,
    int samples) {
  const auto found = seconds.find(device);
  if (found == seconds.end() || found->second.count(samples) == 0) {
    throw ConfigError(
        str("model: ",
            model,
            " was not priced on device \"",
            device,
            "\" with microbatches of ",
            samples,
            " samples"));
  }
  return found->second.at(samples);
}

double deferred_seconds_of(
    const MicrobatchSeconds& seconds,
    const std::string& model,
    const std::string& device,
    int samples) {
  return seconds.empty() ? 0 : seconds_of(seconds, model, device, samples).backward;
}

// Returns `all` less so many times of each as `left_out` has, which is a part of them.
std::vector<TensorCollective> without(
    std::vector<TensorCollective> all,
    const std::vector<TensorCollective>& left_out) {
  for (TensorCollective& one : all) {
    for (const TensorCollective& less : left_out) {
      if (less.operation == one.operation && less.ranks == one.ranks && less.bytes == one.bytes &&
          less.panels == one.panels) {
        one.times -= less.times;
      }
    }
  }
  std::erase_if(all, [](const TensorCollective& one) { return one.times <= 0; });
  return all;
}

} // namespace

LayerRows
traced_rows(const DescribedModel& model, const Cluster& cluster, const Strategy& strategy) {
  const DividedModel* divided =
      model.divided_in({strategy.tp, strategy.distribution, strategy.same_samples});
  const TracedPart& part = divided != nullptr ? divided->part : model.traced()->whole;
  const std::vector<Layer>& layers = divided != nullptr ? divided->layers : model.layers;
  const int group_samples = strategy.microbatch_size;
  const double waiting = 1 + cluster.waiting_share(strategy.tp);
  LayerRows rows;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const bool whole = divided != nullptr && strategy.is_whole(i);
    const TracedLayer& traced = whole ? model.traced()->whole.layers[i] : part.layers[i];
    const Layer& layer = whole ? model.layers[i] : layers[i];
    const int samples = whole ? group_samples / strategy.tp : group_samples;
    const double waits = whole ? 1 : waiting; // for the group's other ranks
    const bool recomputed = strategy.activation_checkpointing && i > 0;
    LayerRow row;
    row.parameters = static_cast<double>(layer.parameters);
    row.whole_parameters = whole ? row.parameters : static_cast<double>(traced.whole_parameters);
    row.output_bytes = static_cast<double>(layer.output_elements_per_sample) * samples *
                       value_bytes(model.precision);
    const double all = traced.kept_bytes_per_sample * samples;
    const bool keeps_products = recomputed && strategy.keeps_products;
    row.recomputed = recomputed;
    row.kept_bytes = !recomputed      ? all
                     : keeps_products ? row.output_bytes + traced.given_bytes_per_sample * samples
                                      : row.output_bytes;
    row.working_bytes = traced.working.of(samples) + (recomputed ? all : 0);
    row.deferring_bytes = recomputed ? row.working_bytes : traced.deferring.of(samples);
    for (std::size_t b = 0; b < row.buffer_bytes.size(); ++b) {
      row.buffer_bytes[b] = traced.buffers[b].of(samples);
    }
    // A backward that recomputes holds no more for later than it has freed.
    const double deferred = traced.deferred_bytes_per_sample * samples;
    row.deferred_bytes = recomputed ? std::min(deferred, row.kept_bytes) : deferred;
    for (const DeviceKind& kind : cluster.kinds) {
      const PassSeconds pass =
          seconds_of(traced.microbatch_seconds, model.name, kind.name, samples);
      row.forward_seconds.push_back(waits * pass.forward);
      const MicrobatchSeconds& left_out =
          keeps_products ? traced.given_seconds : traced.returned_seconds;
      const double given = recomputed && !left_out.empty()
                               ? seconds_of(left_out, model.name, kind.name, samples).forward
                               : 0;
      row.seconds.push_back(waits * ((recomputed ? 2 : 1) * pass.forward - given + pass.backward));
      const double part = deferred > 0 ? row.deferred_bytes / deferred : 0;
      row.deferred_seconds.push_back(
          part * waits *
          deferred_seconds_of(traced.deferred_seconds, model.name, kind.name, samples));
    }
    const auto exchanged = traced.collectives.find(samples);
    if (exchanged != traced.collectives.end()) {
      row.exchanged = exchanged->second;
      if (recomputed) {
        const std::vector<TensorCollective> again = without(
            row.exchanged.forward, keeps_products ? row.exchanged.given : row.exchanged.returned);
        row.exchanged.backward.insert(row.exchanged.backward.end(), again.begin(), again.end());
      }
    }
    rows.layers.push_back(std::move(row));
  }
  if (model.returns_home) {
    for (const DeviceKind& kind : cluster.kinds) {
      rows.tail_seconds.push_back(
          seconds_of(part.tail_seconds, model.name, kind.name, group_samples));
      rows.tail_deferred_seconds.push_back(
          deferred_seconds_of(part.tail_deferred_seconds, model.name, kind.name, group_samples));
    }
  }
  const auto tail = part.tail_collectives.find(group_samples);
  if (tail != part.tail_collectives.end()) {
    rows.tail_exchanged = tail->second;
  }
  rows.tail_working_bytes = part.tail_working.of(group_samples);
  rows.held_gradient_bytes = part.held_gradient_bytes;
  rows.between_bytes =
      std::max(0.0, part.held_gradient_bytes - part.tail_kept_bytes_per_sample * group_samples);
  return rows;
}

} // namespace tessera::cost
