#include "tests/equivalence/train_both.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <set>

#include <mpi.h>

#include <torch/torch.h>

#include "tessera/optim/optimizer_access.h"
#include "tessera/tessera.h"

#include "tests/equivalence/compare.h"
#include "tests/equivalence/plain.h"

namespace tessera::equivalence {

namespace {

// Ends the library whichever way a case is left.
struct Ended {
  Ended() = default;
  Ended(const Ended&) = delete;
  Ended& operator=(const Ended&) = delete;
  ~Ended() {
    shutdown();
  }
};

// A folder that all ranks of this machine see, until rank 0 is done with it.
class SharedFolder {
 public:
  SharedFolder() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    std::string name =
        (std::filesystem::temp_directory_path() / "tessera_equivalence_XXXXXX").string();
    if (rank_ == 0) {
      TORCH_CHECK(::mkdtemp(name.data()) != nullptr, "no folder at ", name);
    }
    MPI_Bcast(name.data(), static_cast<int>(name.size()), MPI_CHAR, 0, MPI_COMM_WORLD);
    path_ = name;
  }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;
  // All ranks have loaded before rank 0 has trained on.
  ~SharedFolder() {
    if (rank_ == 0) {
      std::error_code ignored;
      std::filesystem::remove_all(path_, ignored);
    }
  }
  const std::string& path() const {
    return path_;
  }

 private:
  int rank_ = 0;
  std::string path_;
};

// What the ranks of a group hold, by name.
State gathered(const State& local, Group group) {
  State all;
  for (auto& part : allgather(local, group)) {
    all.merge(part);
  }
  return all;
}

double relative_error(const torch::Tensor& got, const torch::Tensor& wanted) {
  const double norm = wanted.to(torch::kDouble).norm().item<double>();
  const double error = (got.to(torch::kDouble) - wanted.to(torch::kDouble)).norm().item<double>();
  return norm > 0 ? error / norm : 0;
}

/// The largest relative error of what a case compares, between two trainings of
/// one process. An optimizer step that lets parameters grow without bound
/// makes any rounding large.
double furthest(const Trained& one, const Trained& other) {
  double result = 0;
  for (std::size_t i = 0; i < one.input_gradients.size(); ++i) {
    for (std::size_t replica = 0; replica < one.losses[i].size(); ++replica) {
      for (std::size_t m = 0; m < one.losses[i][replica].size(); ++m) {
        result = std::max(
            result,
            relative_error(
                one.input_gradients[i][replica][m], other.input_gradients[i][replica][m]));
      }
    }
  }
  for (std::size_t step = 0; step < one.snapshots.size(); ++step) {
    for (const auto& [name, tensor] : one.snapshots[step].values) {
      result = std::max(result, relative_error(tensor, other.snapshots[step].values.at(name)));
    }
  }
  return result;
}

/// Where a case is, over its parts.
struct Progress {
  int optimizer_step = 0;
  int trained = 0;
  int evaluated = 0;
  std::string loss_scale; // of f16, as the script saves it
};

/// The training of one part of a case under its strategy, beside what one process has computed.
class PartTraining {
 public:
  PartTraining(
      const Case& one,
      const Strategy& strategy,
      const Trained& wanted,
      std::uint64_t seed,
      std::uint64_t seed_of_parameters,
      const Plant& plant,
      Outcome& outcome,
      Comparison& compare)
      : case_(one),
        strategy_(strategy),
        config_(strategy.config),
        wanted_(wanted),
        seed_(seed),
        plant_(plant),
        outcome_(outcome),
        compare_(compare),
        signature_(one.tree.modules[one.tree.root].signature),
        model_(
            [&] {
              // Only the first replica's parameters may count.
              torch::manual_seed(seed_of_parameters + (rdp_rank() == 0 ? 0 : 1));
              return make_program(std::make_shared<const Tree>(one.tree), strategy.build);
            }(),
            options_of(strategy)),
        optimizer_(
            make_optimizer(one.course, parameters_of(model_), /*plain=*/false),
            one.course.type == at::kHalf ? one.course.loss_scale : LossScaleOptions{}) {
    for (const auto& [name, tensor] : named(model_.named_parameters())) {
      trainable_[name] = tensor.requires_grad();
    }
    if (strategy_.ways.hook != HookKind::kLibrary) {
      model_.register_comm_hook(hook_of(strategy_.ways.hook));
    }
  }

  template <typename Step>
  auto run(const Step& step, StepKind kind, int number) {
    const Batch mine = batch_of(strategy_, size(), seed_, kind, number, data_rank());
    return step(mine.x, mine.y, mine.ids);
  }

  void train(Progress& progress) {
    auto train_step = tessera::step([this](torch::Tensor in, torch::Tensor y, torch::Tensor ids) {
      auto x = in.clone().requires_grad_();
      const auto parts = losses_of(model_, signature_, x, {in, y, ids}, at::kFloat);
      if (strategy_.two_losses) {
        model_.backward(parts);
      } else {
        model_.backward(parts[0] + parts[1]);
      }
      return std::make_pair((parts[0] + parts[1]).detach(), gradient_or_zeros(x));
    });
    auto evaluation = tessera::step([this](torch::Tensor in, torch::Tensor y, torch::Tensor ids) {
      const torch::NoGradGuard no_grad;
      const auto parts = losses_of(model_, signature_, in, {in, y, ids}, at::kFloat);
      return parts[0] + parts[1];
    });
    std::optional<Join> join;
    if (strategy_.ways.uses_join()) {
      join.emplace(
          model_, JoinOptions{.divide_by_initial_world_size = strategy_.ways.divides_by_all});
    }
    for (int i = 0; i < strategy_.steps; ++i, ++progress.optimizer_step) {
      joined_ = strategy_.ways.is_joined(i, data_rank());
      first_ = strategy_.ways.first(i);
      if (join && (!join->next(!joined_) || join->joined() != joined_)) {
        compare_.add(tessera::str("Join differs at step ", i));
      }
      const Around& around = case_.course.steps.at(progress.optimizer_step);
      begin(around);
      if (around.evaluates) {
        model_.eval();
        const auto losses = run(evaluation, StepKind::kEvaluation, progress.evaluated++);
        compare_evaluation(losses, progress.optimizer_step);
        model_.train();
      }
      for (int pass = 0; pass < strategy_.passes; ++pass, ++progress.trained) {
        const auto [loss, gradient] = run(train_step, StepKind::kTraining, progress.trained);
        compare_step(loss, gradient, progress.trained);
      }
      update(around, progress.optimizer_step);
    }
    if (join && join->next(false)) {
      compare_.add("Join goes on behind the last step");
    }
  }

  void save(Progress& progress, const std::string& folder) {
    tessera::save(model_, optimizer_, folder, "middle");
    progress.loss_scale = optimizer_.fp16_states();
  }

  void load(const Progress& progress, const std::string& folder) {
    tessera::load(model_, optimizer_, folder);
    optimizer_.load_fp16_states(progress.loss_scale, "the script");
    if (!model_.partitioned()) {
      return;
    }
    State values;
    for (const auto& [name, tensor] : model_.state_dict()) {
      values[name] = tensor;
    }
    compare_values(values, progress.optimizer_step - 1, " after loading", "loaded", true);
  }

 private:
  static ModelOptions options_of(const Strategy& strategy) {
    ModelOptions options;
    options.overlapping_allreduce = strategy.overlap;
    options.backward_passes_per_step = strategy.passes;
    options.average_grads_across_microbatches = strategy.average;
    options.bucket_cap_mb = strategy.bucket_mb;
    return options;
  }

  static Named parameters_of(const DistributedModel<Program>& model) {
    Named list;
    for (const auto& [name, tensor] : named(model.named_parameters())) {
      list.emplace_back(name, tensor);
    }
    return list;
  }

  bool shards_parameters() const {
    return config_.sharded_data_parallel_degree > 1;
  }
  bool divides() const {
    return config_.tensor_parallel_degree > 1;
  }

  // Whether an error of this kind is to be added here and now.
  bool plants(const std::string& what) {
    if (plant_.relative == 0 || plant_.what != what || outcome_.planted) {
      return false;
    }
    outcome_.planted = true;
    return true;
  }

  void zero(Zeroing how) {
    switch (how) {
      case Zeroing::kNone:
        return optimizer_.zero_grad(true);
      case Zeroing::kZeros:
        return optimizer_.zero_grad(false);
      case Zeroing::kOfModel:
        return model_.zero_grad();
      case Zeroing::kKept:
        return;
    }
  }

  void begin(const Around& around) {
    for (auto& [name, tensor] : named(model_.named_parameters())) {
      tensor.set_requires_grad(trainable_.at(name) && kind_of(name) != around.frozen);
    }
    zero(around.zeroing);
  }

  template <typename Losses>
  void compare_evaluation(const Losses& losses, int step) {
    const auto& all = wanted_.snapshots[step].evaluated;
    for (int i = 0; i < config_.microbatches; ++i) {
      const torch::Tensor& loss = all[data_rank()][i];
      torch::Tensor got = losses[i];
      if (plants("evaluation")) {
        got = got + plant_.relative * loss.abs().clamp_min(1);
      }
      compare_.same(
          got,
          loss,
          tessera::str("evaluation before optimizer step ", step, ", microbatch ", i),
          compare_.allowed.loss_noise);
    }
  }

  template <typename Losses, typename Gradients>
  void compare_step(const Losses& loss, const Gradients& gradient, int number) {
    if (joined_) {
      return; // what it computes means nothing
    }
    for (int i = 0; i < config_.microbatches; ++i) {
      const std::string where = tessera::str(", step ", number, ", microbatch ", i);
      compare_.same(
          loss[i],
          wanted_.losses[number][data_rank()][i],
          "loss" + where,
          compare_.allowed.loss_noise);
      const torch::Tensor& wanted = wanted_.input_gradients[number][data_rank()][i];
      if (torch::isfinite(wanted).all().item<bool>()) {
        compare_.same(gradient[i], wanted, "input gradient" + where);
      }
    }
  }

  /// This rank's gradients and those of one process, for the same elements.
  void compare_gradients(int step) {
    const Snapshot& snapshot = wanted_.snapshots[step];
    const double norm = norm_of(snapshot.gradients);
    const double noise = compare_.allowed.gradient_noise * norm;
    const std::string when = tessera::str(" at optimizer step ", step);
    std::map<std::string, torch::Tensor> existing;
    for (const auto& [name, parameter] : model_.local_parameters()) {
      const torch::Tensor part = optim::OptimizerAccess::own_part(optimizer_, parameter);
      const bool whole = part.is_same(parameter);
      if (!part.grad().defined()) {
        continue;
      }
      existing[name] = torch::ones({1});
      const auto found = snapshot.gradients.find(name);
      if (found == snapshot.gradients.end()) {
        continue;
      }
      torch::Tensor gradient = part.grad().clone();
      const torch::Tensor wanted = whole ? found->second : part_of(found->second, part.numel());
      if (wanted.norm().item<double>() > 0.1 * norm && plants("gradient")) {
        gradient.mul_(1 + plant_.relative);
      }
      compare_.same(gradient, wanted, "gradient of " + name + when, noise);
    }
    // One rank of several may have a gradient, where the optimizer's state is shared out.
    const bool elsewhere = config_.shard_optimizer_state || shards_parameters();
    const State all = elsewhere ? gathered(existing, Group::kWorld) : existing;
    for (const auto& [name, parameter] : model_.local_parameters()) {
      const bool exists = all.contains(name);
      if (exists != snapshot.gradients.contains(name)) {
        compare_.add(
            tessera::str("gradient of ", name, when, exists ? " exists" : " is undefined"));
      }
    }
  }

  /// Ranks of a shard group have consecutive elements, the last ones fewer.
  torch::Tensor part_of(const torch::Tensor& whole, std::int64_t count) const {
    const auto flat = whole.flatten();
    const auto place = dp_rank() % config_.sharded_data_parallel_degree;
    const auto begin = std::min(count * place, flat.numel());
    const auto here = std::min(count, flat.numel() - begin);
    auto part = torch::zeros({count}, flat.options());
    part.narrow(0, 0, here).copy_(flat.narrow(0, begin, here));
    return part;
  }

  void compare_norm(double norm, int step, const char* of) {
    const double wanted = wanted_.snapshots[step].norm;
    if (plants("norm")) {
      norm *= 1 + plant_.relative;
    }
    compare_.same(norm, wanted, tessera::str("norm of ", of, " at optimizer step ", step));
  }

  void update(const Around& around, int step) {
    const Snapshot& snapshot = wanted_.snapshots[step];
    const auto& course = case_.course;
    if (!divides() && !snapshot.overflow) {
      compare_gradients(step);
    }
    if (course.asks_norm && !snapshot.overflow) {
      compare_norm(
          optimizer_.clip_grad_norm(std::numeric_limits<double>::infinity()), step, "gradients");
    }
    if (course.clip && !shards_parameters()) {
      const double norm = optimizer_.clip_grad_norm(*course.clip);
      if (!snapshot.overflow) {
        compare_norm(norm, step, "clipped gradients");
      }
    }
    set_rate(optimizer_.inner(), course, around.rate);
    optimizer_.step();
    if (shards_parameters() && !snapshot.overflow) {
      compare_norm(optimizer_.global_grad_norm(), step, "sharded gradients");
    }
    if (optimizer_.overflow() != snapshot.overflow) {
      compare_.add(tessera::str(
          "optimizer step ", step, snapshot.overflow ? " found no overflow" : " overflowed"));
    }
    if (optimizer_.loss_scale() != snapshot.loss_scale) {
      compare_.add(tessera::str(
          "loss scale ", optimizer_.loss_scale(), " instead of ", snapshot.loss_scale));
    }
    const std::string when = tessera::str(" at optimizer step ", step);
    State values;
    if (divides()) {
      for (const auto& [name, tensor] : model_.state_dict()) {
        values[name] = tensor;
      }
      keep_buffers_of_first(values, rdp_rank());
      compare_values(values, step, when, "value", rdp_rank() == first_);
    } else {
      for (const auto& held : {model_.local_parameters(), model_.local_buffers()}) {
        for (const auto& [name, tensor] : held) {
          values[name] = tensor.detach().clone();
        }
      }
      values = gathered(values, Group::kPP);
      keep_buffers_of_first(values, dp_rank());
      compare_values(values, step, when, "value", dp_rank() == first_);
    }
    if (around.zeroes_after) {
      optimizer_.zero_grad(true);
    }
  }

  /// Buffers are those of the first replica with data.
  void keep_buffers_of_first(State& values, int replica) {
    if (replica != first_) {
      for (const auto& item : model_.net()->named_buffers()) {
        values.erase(item.key());
      }
    }
  }

  /// `complete`: all of the model is there.
  void compare_values(
      State& values,
      int step,
      const std::string& when,
      const std::string& plant,
      bool complete) {
    const Snapshot& snapshot = wanted_.snapshots[step];
    std::size_t compared = 0;
    for (auto& [name, tensor] : values) {
      const auto found = snapshot.values.find(name);
      if (found == snapshot.values.end()) {
        compare_.add(tessera::str("the model has no tensor '", name, "'", when));
        continue;
      }
      ++compared;
      if (tensor.is_floating_point() && tensor.norm().item<double>() > 0 && plants(plant)) {
        tensor = tensor * (1 + plant_.relative);
      }
      compare_.same(tensor, found->second, name + when);
    }
    if (complete && compared != snapshot.values.size()) {
      compare_.add(tessera::str(
          snapshot.values.size() - compared, " tensors of the model are on no rank", when));
    }
  }

  const Case& case_;
  const Strategy& strategy_;
  const Config& config_;
  const Trained& wanted_;
  std::uint64_t seed_;
  const Plant& plant_;
  Outcome& outcome_;
  Comparison& compare_;
  Signature signature_;
  DistributedModel<Program> model_;
  DistributedOptimizer optimizer_;
  std::map<std::string, bool> trainable_;
  bool joined_ = false; // this replica, in this step
  int first_ = 0; // replica with data
};

/// A model of the strategy says it once it has its place: after a step, here an evaluation.
std::set<std::string> summed_over_group(const Case& one, const Strategy& strategy) {
  if (one.course.type != at::kHalf || strategy.config.tensor_parallel_degree == 1) {
    return {};
  }
  init(strategy.config);
  const Ended ended;
  DistributedModel<Program> model(
      make_program(std::make_shared<const Tree>(one.tree), strategy.build));
  const Signature signature = one.tree.modules[one.tree.root].signature;
  auto evaluation = tessera::step([&](torch::Tensor in, torch::Tensor y, torch::Tensor ids) {
    const torch::NoGradGuard no_grad;
    return losses_of(model, signature, in, {in, y, ids}, at::kFloat)[0];
  });
  const Batch batch = batch_of(strategy, size(), 0, StepKind::kEvaluation, 0, data_rank());
  evaluation(batch.x, batch.y, batch.ids);
  State here;
  for (const auto& [name, tensor] : model.scaled_batch_reducer_named_parameters()) {
    here[name] = torch::ones({1});
  }
  std::set<std::string> summed;
  for (const auto& [name, tensor] : gathered(here, Group::kWorld)) {
    summed.insert(name);
  }
  return summed;
}

bool diverges(const Trained& trained) {
  for (const PerReplica& of_step : trained.losses) {
    for (const auto& of_replica : of_step) {
      for (const torch::Tensor& loss : of_replica) {
        if (!torch::isfinite(loss).all().item<bool>()) {
          return true;
        }
      }
    }
  }
  return false;
}

} // namespace

Outcome train_both(const Case& one, int world, std::uint64_t seed, const Plant& plant) {
  SummedOverGroup summed;
  for (const Strategy& strategy : one.parts) {
    summed.push_back(summed_over_group(one, strategy));
  }
  const Trained wanted = train_plain(one, world, seed, false, summed);
  Outcome outcome;
  Comparison compare(one.course.type);
  std::unique_ptr<SharedFolder> folder;
  if (one.parts.size() > 1) {
    folder = std::make_unique<SharedFolder>();
  }
  Progress progress;
  for (std::size_t i = 0; i < one.parts.size(); ++i) {
    const Strategy& strategy = one.parts[i];
    init(strategy.config);
    const Ended ended;
    // Parameters of the second part come from the checkpoint alone.
    PartTraining training(one, strategy, wanted, seed, seed + 2 * i, plant, outcome, compare);
    if (i > 0) {
      training.load(progress, folder->path());
    }
    training.train(progress);
    if (i + 1 < one.parts.size()) {
      training.save(progress, folder->path());
    }
  }
  outcome.differences = std::move(compare.differences);
  outcome.worst = compare.worst;
  outcome.diverges = one.course.type != at::kHalf && diverges(wanted);
  if (!outcome.differences.empty() && compare.only_numbers) {
    outcome.shaken = furthest(wanted, train_plain(one, world, seed, true, summed));
  }
  return outcome;
}

} // namespace tessera::equivalence
