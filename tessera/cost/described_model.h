#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tessera/cost/device_speed.h"

namespace tessera::cost {

/// Device name -> microbatch size -> seconds of a microbatch.
using MicrobatchSeconds = std::map<std::string, std::map<int, PassSeconds>>;

/// The ranks of a tensor-parallel group that take part in a collective: all, or those of one row or
/// column of its mesh.
enum class MeshLine { kNone, kRow, kColumn };

/// A collective of a tensor-parallel group that runs `times` times. On a row or column of a mesh it
/// is a broadcast or a reduction. Where it brings the panels of a product, ranks of one node find
/// all of them at one time in memory that they share; others get one after the other.
struct TensorCollective {
  std::string operation; // as CollectiveTime
  int ranks = 0;
  double bytes = 0; // of one rank's input, or of one panel
  int times = 1;
  int panels = 1; // of each of the `times`
  MeshLine line = MeshLine::kNone;
};

/// The collectives of a forward and of its backward.
struct PassCollectives {
  std::vector<TensorCollective> forward;
  std::vector<TensorCollective> backward;
  /// Of `forward`, those of the results of TracedLayer::given_seconds and of `returned_seconds`.
  std::vector<TensorCollective> given = {};
  std::vector<TensorCollective> returned = {};
};

/// Microbatch size -> collectives of one microbatch.
using MicrobatchCollectives = std::map<int, PassCollectives>;

/// How the modules of a tensor-parallel group are distributed.
enum class Distribution {
  /// The layers were measured at the degree, however it was reached; of a model of sizes: in one
  /// dimension, sequences too.
  kAsMeasured,
  kSpeed,
  kMemory,
  kMesh
};

constexpr std::array<std::string_view, 4> choice_names(Distribution /*type*/) {
  return {"", "speed", "memory", "2d"};
}

/// One way to divide a model among tensor-parallel ranks.
struct TensorWay {
  int degree = 1;
  Distribution distribution = Distribution::kAsMeasured;
  /// Whether the ranks of a group bring the same samples; otherwise each brings its own.
  bool same_samples = false;

  bool operator==(const TensorWay&) const = default;
};

/// One layer of a model; stages of a pipeline are runs of layers.
struct Layer {
  std::string name;
  /// In a measured model "transformer_layer" means two tensor-parallel blocks with an all-reduce
  /// each, "lm_head" that the outputs are the logits; layers of other kinds are priced as measured.
  /// In a traced model it is the type of the module.
  std::string kind;
  std::int64_t parameters = 0;
  /// Name of the layer whose parameters this one uses; "" for none.
  std::string shares_parameters_with;
  std::int64_t output_elements_per_sample = 0;
};

/// The measured seconds of one layer.
struct MeasuredLayer {
  /// Device name -> tensor-parallel degree -> seconds of the forward of one sample.
  std::map<std::string, std::map<int, double>> forward_seconds_per_sample;
  /// Device name -> the part of these seconds that does not depend on the microbatch
  /// size: launching operators, reading weights from memory. `Constants` have
  /// a default for devices that are not listed.
  std::map<std::string, double> fixed_seconds = {};
};

/// A model whose layers were measured one by one, and sizes that determine its memory.
struct MeasuredModel {
  std::vector<MeasuredLayer> layers; // as DescribedModel::layers
  /// 0 when not given. They determine the size of attention scores, and which layers
  /// return logits.
  std::int64_t sequence_length = 0;
  std::int64_t hidden_size = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t vocabulary_size = 0;
};

/// Bytes of which a part grows with the samples of a microbatch.
struct SampleBytes {
  double per_sample = 0;
  double constant = 0;

  SampleBytes& operator+=(const SampleBytes& other) {
    per_sample += other.per_sample;
    constant += other.constant;
    return *this;
  }
  SampleBytes operator-(const SampleBytes& other) const {
    return {per_sample - other.per_sample, constant - other.constant};
  }
};

/// The most bytes that one of several operators needs; which one depends on the samples.
class MostBytes {
 public:
  MostBytes() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): one operator is a case of several
  MostBytes(const SampleBytes& one) : ones_{one} {}

  /// Adds what another operator needs.
  void take(const SampleBytes& one);
  /// Returns the bytes of a microbatch of so many samples, at least 0.
  double of(int samples) const;

 private:
  std::vector<SampleBytes> ones_; // none is at most another one in both parts
};

/// The costs of a layer that follow from its traced operators.
struct TracedLayer {
  MicrobatchSeconds microbatch_seconds;
  double kept_bytes_per_sample = 0; // activations that the forward keeps for the backward
  /// The most that stands beside the activations while the backward of one of its operators runs:
  /// gradients, without the activations that are freed by then.
  MostBytes working = {};
  /// As `working`, of a backward that another rank waits for: it puts off the gradients of weights
  /// that are parameters of products, and holds what these need until its end.
  MostBytes deferring = {};
  double deferred_bytes_per_sample = 0;
  /// The part of a backward's seconds that such a one computes when the other rank has its answer;
  /// empty: none.
  MicrobatchSeconds deferred_seconds = {};
  /// Of each buffer the largest of a stage's layers stands (graph::OperatorWork::buffer_bytes).
  std::array<MostBytes, 3> buffers = {};
  /// What selective recomputation leaves out of a second forward, and the bytes that it keeps for
  /// that: results of products with weights, and masks of dropout, a bit for an element.
  MicrobatchSeconds given_seconds = {};
  /// What any recomputation leaves out of it: the last product of a layer that says so
  /// (recompute::ReturnedCall).
  MicrobatchSeconds returned_seconds = {};
  double given_bytes_per_sample = 0;
  /// For tensor-parallel ranks: their collectives, and the number of parameters that each rank
  /// holds whole and uses with its own samples, so that their gradients are averaged over all
  /// ranks.
  MicrobatchCollectives collectives = {};
  std::int64_t whole_parameters = 0;
};

/// The part of a model that one rank runs: all of it, or that of the first rank of a
/// tensor-parallel group.
struct TracedPart {
  std::vector<TracedLayer> layers; // as the `layers` of the model that the part belongs to
  /// The part of the first layer's seconds that runs behind the others.
  MicrobatchSeconds tail_seconds;
  MicrobatchSeconds tail_deferred_seconds = {}; // as TracedLayer::deferred_seconds
  MicrobatchCollectives tail_collectives = {};
  /// As TracedLayer::working, of that part.
  MostBytes tail_working = {};
  /// Gradients that a backward gives parameters behind the other layers and holds until it comes to
  /// those in front, which use the same parameters; and what that part keeps for its backward.
  /// Units: bytes.
  double held_gradient_bytes = 0;
  double tail_kept_bytes_per_sample = 0;
};

/// A model divided among the ranks of a tensor-parallel group. It has the layers of the whole
/// model; sizes are those of one rank, per sample of the group's microbatch.
struct DividedModel {
  TensorWay way;
  std::vector<Layer> layers;
  TracedPart part;
};

/// A model whose operators were traced. Its first layer is what stays on pipeline rank 0, in
/// front of the other layers and behind them (embedding, output layer, loss).
struct TracedModel {
  TracedPart whole;
  std::vector<DividedModel> divided; // every way of dividing it that was traced
};

/// How attention runs on a device: as one kernel that keeps its scores in fast memory; operator by
/// operator, as frameworks did before, so that scores are written to memory; or so with scale, mask
/// and softmax in one kernel.
enum class AttentionKernels { kOne, kFusedSoftmax, kOperators };

/// The names under which model files choose them.
constexpr std::array<std::string_view, 3> choice_names(AttentionKernels /*type*/) {
  return {"one kernel", "fused softmax", "operators"};
}

/// The sizes of a model from which the operators of its layers follow, where nobody measured or
/// traced them. Layer::kind says what a layer is: "embedding", "transformer_layer", "lm_head",
/// "loss", "fused_loss", "cast" (of the logits) or "metric" (a figure of the logits that a trainer
/// computes in every microbatch); "norm" and "other" read and write their output once. Each has the
/// width that its output_elements_per_sample give, and what a transformer layer's parameters hold
/// beyond its attention is its feed-forward network, so layers may differ.
struct SizedModel {
  std::int64_t sequence_length = 0;
  std::int64_t hidden_size = 0; // 0: as the layers' outputs say
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0; // 0: as many
  std::int64_t vocabulary_size = 0;
  /// Whether the feed-forward network has three matrices, of which two are multiplied by elements.
  bool gated_feed_forward = false;
  AttentionKernels attention = AttentionKernels::kOne;
  /// Whether a layer that is recomputed ends where its backward needs nothing more, so that its
  /// last product runs once. PyTorch's checkpoints do so from 2.1 on (torch.utils.checkpoint,
  /// set_checkpoint_early_stop), older ones do not.
  bool recomputation_stops_early = false;
};

/// A model as a sequence of layers of uneven cost, in order of execution.
struct DescribedModel {
  std::string name;
  int global_batch_size = 0;
  Precision precision = Precision::kHalf;
  bool activation_checkpointing = false;
  /// Bytes of the optimizer's state for one parameter, f32 masters included. Not said: AdamW's, two
  /// f32 moments, and masters of half-precision parameters.
  std::optional<double> optimizer_state_bytes = {};
  std::vector<Layer> layers;
  /// Whether the outputs of every stage go to pipeline rank 0, because the module that
  /// calls the stages runs there. Tensors between two other stages pass through it.
  bool returns_home = false;
  /// The seconds and bytes, by their origin.
  std::variant<MeasuredModel, TracedModel, SizedModel> source;

  /// Returns nullptr for a measured model.
  const TracedModel* traced() const {
    return std::get_if<TracedModel>(&source);
  }
  /// Returns nullptr for a model of which more than sizes is known.
  const SizedModel* sized() const {
    return std::get_if<SizedModel>(&source);
  }
  /// Requires a model that was measured. Throws: std::bad_variant_access.
  const MeasuredModel& measured() const {
    return std::get<MeasuredModel>(source);
  }
  MeasuredModel& measured() {
    return std::get<MeasuredModel>(source);
  }
  /// Returns for each layer the index of the layer whose parameters it uses, or -1.
  std::vector<int> shared_with() const;
  /// Returns nullptr for degree 1 and for a measured model.
  /// Throws: ConfigError when the model was not traced in this way.
  const DividedModel* divided_in(const TensorWay& way) const;
  /// Returns the tensor-parallel degrees at which every layer was measured on `device`,
  /// at which the model was traced, or which divide the attention heads of a model of sizes.
  std::vector<int> measured_degrees(const std::string& device) const;
};

/// Returns the model with samples of another length; parameters stay as they are.
/// Requires a model of sizes. Throws: ConfigError when a layer's outputs are too many to count.
DescribedModel with_sequence(DescribedModel model, std::int64_t sequence_length);

/// Checks a model. Throws: ConfigError, naming the layer, what was found and what to
/// write, for no layer, a name used twice, a negative or infinite time, a size
/// below 0, and a shared layer that does not exist.
void validate(const DescribedModel& model);

} // namespace tessera::cost
