#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "tessera/cost/device_speed.h"

namespace tessera::cost {

/// Device name -> microbatch size -> seconds of a microbatch.
using MicrobatchSeconds = std::map<std::string, std::map<int, PassSeconds>>;

/// A collective of a tensor-parallel group: `times` of them.
struct TensorCollective {
  std::string operation; // as CollectiveTime
  int ranks = 0;
  double bytes = 0; // of one rank's tensor before it
  int times = 1;
};

struct PassCollectives {
  std::vector<TensorCollective> forward;
  std::vector<TensorCollective> backward;
};

/// Microbatch size -> what is exchanged for one microbatch.
using MicrobatchCollectives = std::map<int, PassCollectives>;

/// How the modules of a tensor-parallel group are distributed.
enum class Distribution {
  kAsMeasured, // the layers were measured at the degree, however it was reached
  kSpeed,
  kMemory,
  kMesh
};

constexpr std::array<std::string_view, 4> choice_names(Distribution /*type*/) {
  return {"", "speed", "memory", "2d"};
}

/// How tensor-parallel ranks divide a model.
struct TensorWay {
  int degree = 1;
  Distribution distribution = Distribution::kAsMeasured;
  /// Whether the ranks of a group bring the same samples, or each its own.
  bool same_samples = false;

  bool operator==(const TensorWay&) const = default;
};

/// One layer of a model; what a pipeline is cut between.
struct Layer {
  std::string name;
  /// Of a measured model "transformer_layer": two tensor-parallel blocks with an all-reduce each;
  /// "lm_head": its outputs are the logits; others are taken as measured. Of a traced one the
  /// module's type.
  std::string kind;
  std::int64_t parameters = 0;
  /// Name of the layer whose parameters this one uses; "" for none.
  std::string shares_parameters_with;
  std::int64_t output_elements_per_sample = 0;
};

/// What somebody measured of one layer.
struct MeasuredLayer {
  /// Device name -> tensor-parallel degree -> seconds of the forward of one sample.
  std::map<std::string, std::map<int, double>> forward_seconds_per_sample;
  /// Device name -> seconds of them that a microbatch costs whatever its size:
  /// starting operators, weights from memory. Where none is said the
  /// `Constants` say it.
  std::map<std::string, double> fixed_seconds = {};
};

/// A model whose layers were measured one by one, and sizes of which memory follows.
struct MeasuredModel {
  std::vector<MeasuredLayer> layers; // as DescribedModel::layers
  /// 0 when not said; only the size of attention scores follows from them.
  std::int64_t sequence_length = 0;
  std::int64_t hidden_size = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t vocabulary_size = 0;
};

/// What follows from a layer's traced operators.
struct TracedLayer {
  MicrobatchSeconds microbatch_seconds;
  double kept_bytes_per_sample = 0; // by the forward of a sample
  /// Of tensor-parallel ranks: what they exchange, and the parameters that each of them holds whole
  /// and has met its own samples with, so that their gradients are averaged over all of them.
  MicrobatchCollectives collectives = {};
  std::int64_t whole_parameters = 0;
};

/// What one rank runs: a whole model, or the part of the first rank of a tensor-parallel group.
struct TracedPart {
  std::vector<TracedLayer> layers; // as the Layers beside it
  /// The part of the first layer's seconds that runs behind the others.
  MicrobatchSeconds tail_seconds;
  MicrobatchCollectives tail_collectives = {};
};

/// A model as one rank of a tensor-parallel group holds it: the layers of the whole model, sizes
/// per sample of the group's microbatch.
struct DividedModel {
  TensorWay way;
  std::vector<Layer> layers;
  TracedPart part;
};

/// A model of which the operators were traced. The first layer is what stays on pipeline rank 0, in
/// front of the other layers and behind them (embedding, output layer, loss).
struct TracedModel {
  TracedPart whole;
  std::vector<DividedModel> divided; // every way of dividing it that was traced
};

/// A model as a pipeline sees it: uneven layers in order of execution.
struct DescribedModel {
  std::string name;
  int global_batch_size = 0;
  Precision precision = Precision::kHalf;
  bool activation_checkpointing = false;
  std::vector<Layer> layers;
  /// Outputs of the last stage return to pipeline rank 0, and so does everything
  /// between two other stages, since the module that calls both is there.
  bool returns_home = false;
  /// Where its seconds and bytes come from.
  std::variant<MeasuredModel, TracedModel> source;

  /// nullptr for a measured model.
  const TracedModel* traced() const {
    return std::get_if<TracedModel>(&source);
  }
  /// Of a model that is not traced.
  const MeasuredModel& measured() const {
    return std::get<MeasuredModel>(source);
  }
  MeasuredModel& measured() {
    return std::get<MeasuredModel>(source);
  }
  /// Index of the layer this one shares parameters with, or -1.
  std::vector<int> shared_with() const;
  /// nullptr for degree 1.
  /// Throws: ConfigError when the model was not traced so.
  const DividedModel* divided_in(const TensorWay& way) const;
  /// Tensor-parallel degrees that every layer was measured at on `device`; of a
  /// traced model those it was traced at.
  std::vector<int> measured_degrees(const std::string& device) const;
};

/// Throws: ConfigError naming the layer, what was found and what to write: no
/// layer, a name twice, a negative or infinite time, a size below 0, a shared
/// layer that does not exist.
void validate(const DescribedModel& model);

} // namespace tessera::cost
