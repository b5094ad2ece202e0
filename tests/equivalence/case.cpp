#include "tests/equivalence/case.h"

#include <algorithm>
#include <functional>
#include <set>
#include <sstream>

#include "tests/equivalence/random.h"

namespace tessera::equivalence {

namespace {

// Percent of the cases that could have it.
int share_of(Feature feature) {
  switch (feature) {
    case Feature::kRecompute:
    case Feature::kOptimizer:
    case Feature::kBetween:
      return 50;
    case Feature::kHalf:
      return 15;
    case Feature::kOperations: // excludes most others
      return 20;
    case Feature::kResume:
      return 25;
    default:
      return 35;
  }
}

constexpr double kNoClipping = 1e30;

std::vector<int> divisors(int number, int least) {
  std::vector<int> list;
  for (int i = least; i <= number; ++i) {
    if (number % i == 0) {
      list.push_back(i);
    }
  }
  return list;
}

class CaseMaker {
 public:
  CaseMaker(std::uint64_t seed, std::uint64_t number, int world, const Wishes& wishes)
      : seed_(seed), number_(number), world_(world), wishes_(wishes) {}

  Case make() {
    made_.tree = random_tree(seed_, number_);
    if (!wishes_.allowed.empty()) {
      add_layers();
    }
    draw_course();
    draw_dropout();
    made_.parts.push_back(part(0));
    if (has_parameters() && draws(Feature::kResume)) {
      made_.parts.push_back(part(1));
      made_.has.insert(Feature::kResume);
    }
    // Parameters of replaced modules have other names.
    made_.course.two_groups = made_.course.two_groups && !made_.has.contains(Feature::kTensor);
    // A block that is replaced has other parameters, and norms are of these.
    if (made_.has.contains(Feature::kTensor) && has_blocks() &&
        made_.has.erase(Feature::kNormwise) > 0) {
      made_.course.optimizer = OptimizerKind::kAdam;
    }
    draw_recomputation();
    draw_steps();
    return std::move(made_);
  }

 private:
  // `part` counts strategies, so that the second one is another.
  Random random_for(Feature feature, int part = 0) const {
    const auto place = static_cast<std::uint64_t>(feature) + 1;
    return {seed_, (place << 40) + (static_cast<std::uint64_t>(part) << 32) + number_};
  }

  bool draws(Feature feature, int part = 0) const {
    if (wishes_.always == feature) {
      return true;
    }
    return wishes_.allowed.contains(feature) &&
           Random(random_for(feature, part)).chance(share_of(feature));
  }

  bool has_blocks() const {
    const auto& modules = made_.tree.modules;
    return std::any_of(modules.begin(), modules.end(), [](const ModuleProgram& module) {
      return std::any_of(module.children.begin(), module.children.end(), [](const Child& child) {
        return child.kind == ChildKind::kBlock;
      });
    });
  }

  bool has_parameters() const {
    const auto& modules = made_.tree.modules;
    return std::any_of(modules.begin(), modules.end(), [](const ModuleProgram& module) {
      return module.weight || module.table ||
             std::any_of(module.children.begin(), module.children.end(), [](const Child& child) {
               const auto& layers = child.modules;
               return child.kind != ChildKind::kProgram &&
                      (child.kind != ChildKind::kSequential ||
                       std::count(layers.begin(), layers.end(), kLinearLayer) > 0);
             });
    });
  }

  // Some layers become others, which may be divided.
  void add_layers() {
    Random random(seed_, (std::uint64_t{99} << 40) + number_);
    for (ModuleProgram& module : made_.tree.modules) {
      for (Child& child : module.children) {
        if (child.kind == ChildKind::kLinear && random.chance(60)) {
          child.kind = random.chance(40) ? ChildKind::kEmbedding : ChildKind::kBlock;
        }
        child.divided = random.chance(75);
      }
    }
  }

  void draw_course() {
    Course& course = made_.course;
    if (draws(Feature::kOptimizer)) {
      Random random = random_for(Feature::kOptimizer, 2);
      course.optimizer = static_cast<OptimizerKind>(random.integer(0, 5));
      course.two_groups = random.chance(40);
      made_.has.insert(Feature::kOptimizer);
    }
    if (draws(Feature::kNormwise)) {
      Random random = random_for(Feature::kNormwise, 2);
      course.optimizer = random.chance(50) ? OptimizerKind::kLamb : OptimizerKind::kNovoGrad;
      course.most_norm = random.pick<double>({0, 0.05, 1});
      made_.has.insert(Feature::kNormwise);
    }
    if (draws(Feature::kClip)) {
      Random random = random_for(Feature::kClip, 2);
      course.asks_norm = random.chance(40);
      if (!course.asks_norm || random.chance(50)) {
        course.clip = random.pick<double>({0.02, 0.2, 1, 100});
      }
      made_.has.insert(Feature::kClip);
    }
    // With fp16 an optimizer refuses what is no parameter of the model, and needs one.
    if (has_parameters() && draws(Feature::kHalf)) {
      Random random = random_for(Feature::kHalf, 2);
      course.type = random.chance(40) ? at::kHalf : at::kBFloat16;
      if (course.type == at::kHalf) {
        course.loss_scale.dynamic_loss_scale = random.chance(60);
        course.loss_scale.static_loss_scale = course.loss_scale.dynamic_loss_scale ? 1 : 128;
        const double first = random.chance(30) ? 1048576 : 256;
        const int window = random.integer(1, 3);
        if (course.loss_scale.dynamic_loss_scale) {
          course.loss_scale.dynamic_loss_args.init_scale = first;
          course.loss_scale.dynamic_loss_args.scale_window = window;
        }
      }
      made_.has.insert(Feature::kHalf);
    }
  }

  // Some operations become dropout.
  void draw_dropout() {
    if (!draws(Feature::kDropout)) {
      return;
    }
    Random random = random_for(Feature::kDropout, 2);
    seed_of_masks_ = random.integer(0, 1'000'000);
    for (ModuleProgram& module : made_.tree.modules) {
      add_dropout(random, module.code);
    }
    if (made_.course.drops) {
      made_.has.insert(Feature::kDropout);
    }
  }

  void add_dropout(Random& random, std::vector<Instruction>& code) {
    static const std::set<Op> kReplaced = {
        Op::kTanh, Op::kSin, Op::kScale, Op::kRoll, Op::kSoftmax};
    for (Instruction& one : code) {
      for (Body& body : one.bodies) {
        add_dropout(random, body.code);
      }
      if (kReplaced.contains(one.op) && random.chance(60)) {
        one.op = Op::kDropout;
        made_.course.drops = true;
      }
    }
  }

  // What recorded operations cannot do: branches on numbers, 16 bits.
  bool can_be_recorded() const {
    return world_ > 1 && !made_.tree.depends_on_data && made_.course.type == at::kFloat;
  }

  Strategy part(int index) {
    const std::uint64_t number = number_ + (static_cast<std::uint64_t>(index) << 32);
    Degrees degrees;
    int shards = 1;
    if (can_be_recorded() && draws(Feature::kOperations, index)) {
      Random random = random_for(Feature::kOperations, 2 + index);
      degrees.pipeline = random.pick(divisors(world_, 2));
      degrees.operations = true;
      made_.has.insert(Feature::kOperations);
    } else if (world_ > 1 && draws(Feature::kTensor, index)) {
      Random random = random_for(Feature::kTensor, 2 + index);
      degrees.tensor = random.pick(divisors(world_, 2));
      degrees.pipeline = random.pick(divisors(world_ / degrees.tensor, 1));
      // Ranks of a TP_GROUP call the same modules.
      degrees.prescaled = made_.tree.depends_on_data || random.chance(50);
      made_.has.insert(Feature::kTensor);
    } else if (world_ > 1 && draws(Feature::kShardParameters, index)) {
      Random random = random_for(Feature::kShardParameters, 2 + index);
      degrees.pipeline = random.chance(50) ? random.pick(divisors(world_ / 2, 1)) : 1;
      shards = random.pick(divisors(world_ / degrees.pipeline, 2));
      made_.has.insert(Feature::kShardParameters);
    }
    const int replicas = degrees.tensor > 1 ? world_ / degrees.pipeline / degrees.tensor : 1;
    if (degrees.prescaled && replicas > 1 && draws(Feature::kShardParameters, index)) {
      Random random = random_for(Feature::kShardParameters, 2 + index);
      shards = random.pick(divisors(replicas, 2));
      made_.has.insert(Feature::kShardParameters);
    }
    Strategy strategy = random_strategy(made_.tree, world_, seed_, number, degrees);
    config::Config& config = strategy.config;
    if (degrees.tensor > 1) {
      divide(strategy, index);
    }
    if (shards > 1) {
      Random random = random_for(Feature::kShardParameters, 4 + index);
      shard_parameters(random, shards, config);
      config.sdp_gradient_clipping = made_.course.clip.value_or(kNoClipping);
    }
    if (shards == 1 && config.ddp && draws(Feature::kShardState, index)) {
      config.shard_optimizer_state = true;
      made_.has.insert(Feature::kShardState);
    }
    config.bf16 = made_.course.type == at::kBFloat16;
    config.fp16 = made_.course.type == at::kHalf;
    if (made_.course.drops) {
      config.random = "layout_independent";
      config.seed = seed_of_masks_;
    }
    // Each row of a mesh takes as many of the samples that all ranks bring.
    const bool rows_of_mesh = config.prescaled_batch && degrees.tensor == 4 &&
                              config.tensor_parallel_kind == config::TensorParallelKind::k2d;
    strategy.rows *= rows_of_mesh ? 2 : 1;
    // Replicas and ranks with samples of their own are the same.
    const bool one_rank_each = degrees.tensor == 1 || config.prescaled_batch;
    if (config.ddp && one_rank_each && !rows_of_mesh && draws(Feature::kShares, index)) {
      Random random = random_for(Feature::kShares, 2 + index);
      for (int i = 0; i < replicas_of(config, world_); ++i) {
        strategy.rows_of_replica.push_back(random.integer(1, 4));
        config.replica_samples.push_back(strategy.rows_of_replica.back() * config.microbatches);
      }
      made_.has.insert(Feature::kShares);
    } else if (!rows_of_mesh && draws(Feature::kUneven, index)) {
      Random random = random_for(Feature::kUneven, 2 + index);
      // Masks are found by the place of a sample among those of equally large replicas; the ranks
      // of a mesh row bring equally many.
      const bool on_mesh =
          degrees.tensor > 1 && config.tensor_parallel_kind == config::TensorParallelKind::k2d;
      strategy.more_rows_of_odd_replicas = random.chance(70) && !made_.course.drops && !on_mesh;
      strategy.more_rows_in_odd_steps = !config.static_mode && random.chance(70);
      made_.has.insert(Feature::kUneven);
    }
    if (draws(Feature::kBetween, index)) {
      Random random = random_for(Feature::kBetween, 2 + index);
      // A buffer that only some flows change has no order.
      config.reproducible = random.chance(20) && !made_.tree.depends_on_data;
      config.trace_memory_usage = !config.skip_tracing && !degrees.operations && random.chance(10);
      strategy.steps += config.static_mode ? 0 : random.integer(0, 2);
    }
    draw_ways(strategy, index);
    return strategy;
  }

  void draw_ways(Strategy& strategy, int index) {
    const config::Config& config = strategy.config;
    const bool divided = config.tensor_parallel_degree > 1;
    // Where averages go to one rank, no hook makes them.
    if (config.ddp && !config.shard_optimizer_state && config.sharded_data_parallel_degree == 1 &&
        draws(Feature::kHook, index)) {
      Random random = random_for(Feature::kHook, 2 + index);
      // One that waits hangs where a replica's flow leaves a bucket to the end of the step.
      strategy.ways.hook = random_hook(
          random, !divided && made_.course.type == at::kFloat && !made_.tree.depends_on_data);
      strategy.overlap = true;
      made_.has.insert(Feature::kHook);
    }
    // Ranks of a TP_GROUP are out of data together.
    const bool on_mesh = config.tensor_parallel_kind == config::TensorParallelKind::k2d;
    const int replicas = replicas_of(config, world_);
    if (replicas > 1 && (!divided || (config.prescaled_batch && !on_mesh)) &&
        draws(Feature::kJoin, index)) {
      Random random = random_for(Feature::kJoin, 2 + index);
      draw_join(random, replicas, strategy.steps, strategy.ways);
      made_.has.insert(Feature::kJoin);
    }
  }

  void divide(Strategy& strategy, int index) {
    Random random = random_for(Feature::kTensor, 4 + index);
    config::Config& config = strategy.config;
    strategy.build.divides = true;
    config.tensor_parallel_kind = random.pick<std::string>({"1d", "1d", "2d"});
    config.optimize = random.pick<std::string>({"memory", "speed"});
    // Memory of a mesh that is managed is for one call of each layer.
    config.mesh_memory = "autograd";
  }

  // Whether all that a call of the place runs is on its pipeline rank.
  bool is_whole(const Strategy& strategy, const Place& place, bool flagged) const {
    if (strategy.config.pipeline_parallel_degree == 1) {
      return true;
    }
    if (strategy.ranks.empty()) { // automatic: a flag that does not fit is left out
      return flagged || is_leaf(place);
    }
    std::set<int> ranks;
    std::function<void(const Place&)> enter = [&](const Place& at) {
      const auto [module, child, layer] = at;
      ranks.insert(strategy.ranks.at(at));
      if (child < 0) {
        const auto& children = made_.tree.modules[module].children;
        for (int c = 0; c < static_cast<int>(children.size()); ++c) {
          if (children[c].kind == ChildKind::kProgram) {
            enter({children[c].modules[0], -1, -1});
          } else if (children[c].kind != ChildKind::kPartOfParent) {
            enter({module, c, -1});
          }
        }
      } else if (layer < 0) {
        const Child& held = made_.tree.modules[module].children[child];
        if (held.kind == ChildKind::kSequential) {
          for (int i = 0; i < static_cast<int>(held.modules.size()); ++i) {
            enter({module, child, i});
          }
        }
      }
    };
    enter(place);
    return ranks.size() == 1;
  }

  bool is_leaf(const Place& place) const {
    const auto [module, child, layer] = place;
    if (child < 0) { // what libtorch holds is a node, too
      return made_.tree.modules[module].children.empty();
    }
    const ChildKind kind = made_.tree.modules[module].children[child].kind;
    return kind == ChildKind::kLinear || kind == ChildKind::kEmbedding || layer >= 0;
  }

  // Children of a Sequential are looked at one by one.
  bool is_sequential(const Place& place) const {
    const auto [module, child, layer] = place;
    return child >= 0 && layer < 0 &&
           made_.tree.modules[module].children[child].kind == ChildKind::kSequential;
  }

  bool is_tanh(const Place& place) const {
    const auto [module, child, layer] = place;
    return layer >= 0 && made_.tree.modules[module].children[child].modules[layer] == kTanhLayer;
  }

  std::string strategy_for(Random& random, const Place& place) const {
    const std::string drawn =
        is_sequential(place)
            ? random.pick<std::string>({"each", "selective", "contiguous", "group_2"})
            : random.pick<std::string>({"each", "each", "selective"});
    // What a region keeps of its products must stay as it is, a layer's own result too.
    const bool refused = drawn == "selective" && changes_in_place();
    return refused ? "each" : drawn;
  }

  // Whether a result of any call is changed in place.
  bool changes_in_place() const {
    const std::function<bool(const std::vector<Instruction>&)> changes =
        [&](const std::vector<Instruction>& code) {
          return std::any_of(code.begin(), code.end(), [&](const Instruction& one) {
            return one.op == Op::kCallInPlace ||
                   std::any_of(one.bodies.begin(), one.bodies.end(), [&](const Body& body) {
                     return changes(body.code);
                   });
          });
        };
    const auto& modules = made_.tree.modules;
    return std::any_of(modules.begin(), modules.end(), [&](const ModuleProgram& module) {
      return changes(module.code);
    });
  }

  void draw_recomputation() {
    if (!draws(Feature::kRecompute)) {
      return;
    }
    for (int index = 0; index < static_cast<int>(made_.parts.size()); ++index) {
      Strategy& strategy = made_.parts[index];
      if (by_operations(strategy)) { // refuses it
        continue;
      }
      made_.has.insert(Feature::kRecompute);
      Random random = random_for(Feature::kRecompute, 2 + index);
      const bool attentions = random.chance(30);
      strategy.config.checkpoint_attentions = attentions;
      for (const Node& node : nodes_of(made_.tree)) {
        const Place place{node.module, node.child, node.layer};
        const bool wanted = random.chance(35);
        const std::string how = strategy_for(random, place);
        if (wanted && !is_tanh(place) &&
            (is_sequential(place) || is_whole(strategy, place, true))) {
          strategy.build.recomputed[place] = how;
        }
      }
      strategy.build.recomputes_calls = true;
      if (draws(Feature::kOffload, index)) {
        Random of_offload = random_for(Feature::kOffload, 2 + index);
        strategy.config.offload_activations = true;
        strategy.config.activation_loading_horizon = of_offload.integer(1, 6);
        made_.has.insert(Feature::kOffload);
      }
    }
    Random random = random_for(Feature::kRecompute, 4);
    for (int m = 0; m < static_cast<int>(made_.tree.modules.size()); ++m) {
      flag_calls(random, m, made_.tree.modules[m].code);
    }
  }

  static bool by_operations(const Strategy& strategy) {
    return strategy.config.partition_mode == config::PartitionMode::kOperations;
  }

  void flag_calls(Random& random, int module, std::vector<Instruction>& code) {
    for (Instruction& one : code) {
      for (Body& body : one.bodies) {
        flag_calls(random, module, body.code);
      }
      if (one.child < 0 || one.op == Op::kCallVoid || !random.chance(20)) {
        continue;
      }
      const Child& child = made_.tree.modules[module].children[one.child];
      if (child.kind == ChildKind::kPartOfParent) {
        continue;
      }
      const Place place = child.kind == ChildKind::kProgram ? Place{child.modules[0], -1, -1}
                                                            : Place{module, one.child, -1};
      const bool fits = is_sequential(place) ||
                        std::all_of(made_.parts.begin(), made_.parts.end(), [&](const auto& part) {
                          return is_whole(part, place, false);
                        });
      if (fits) {
        one.recomputed = strategy_for(random, place);
      }
    }
  }

  void draw_steps() {
    made_.course.steps.resize(made_.optimizer_steps());
    if (!draws(Feature::kBetween)) {
      return;
    }
    made_.has.insert(Feature::kBetween);
    Random random = random_for(Feature::kBetween, 5);
    int first_of_part = 0;
    int part = 0;
    for (int i = 0; i < made_.optimizer_steps(); ++i) {
      if (i == first_of_part + made_.parts[part].steps) {
        first_of_part = i;
        ++part;
      }
      Around& around = made_.course.steps[i];
      around.zeroing = random.pick<Zeroing>(
          {Zeroing::kNone, Zeroing::kNone, Zeroing::kZeros, Zeroing::kOfModel, Zeroing::kKept});
      // What is kept was multiplied by another scale, or is gone.
      // With several passes what is kept cannot be told from their sum, where averages are apart.
      const Strategy& strategy = made_.parts[part];
      const bool apart = strategy.passes > 1 && (strategy.config.shard_optimizer_state ||
                                                 strategy.config.tensor_parallel_degree > 1);
      if (around.zeroing == Zeroing::kKept &&
          (i == first_of_part || made_.course.type == at::kHalf || apart)) {
        around.zeroing = Zeroing::kNone;
      }
      around.zeroes_after = random.chance(25);
      around.evaluates = random.chance(30);
      around.rate = random.pick<double>({1, 1, 0.5, 2});
      const int frozen = random.chance(30) ? random.integer(0, 2) : -1;
      around.frozen = made_.has.contains(Feature::kTensor) ? -1 : frozen;
    }
  }

  std::uint64_t seed_;
  std::uint64_t number_;
  int world_;
  const Wishes& wishes_;
  std::int64_t seed_of_masks_ = 0;
  Case made_;
};

} // namespace

int Case::optimizer_steps() const {
  int sum = 0;
  for (const Strategy& part : parts) {
    sum += part.steps;
  }
  return sum;
}

Case random_case(std::uint64_t seed, std::uint64_t number, int world, const Wishes& wishes) {
  return CaseMaker(seed, number, world, wishes).make();
}

std::string to_text(const Case& one) {
  std::ostringstream out;
  out << "features: " << to_text(one.has) << '\n' << to_text(one.tree) << to_text(one.course);
  for (std::size_t i = 0; i < one.parts.size(); ++i) {
    if (i > 0) {
      out << "saved, loaded under:\n";
    }
    out << to_text(one.parts[i]);
  }
  return out.str();
}

} // namespace tessera::equivalence
