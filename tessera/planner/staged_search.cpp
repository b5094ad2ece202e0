#include "tessera/planner/staged_search.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/index.h"
#include "tessera/planner/space.h"

namespace tessera::planner {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// What sums in another order may differ by.
constexpr double kRounding = 1 - 1e-9;

constexpr int kMostSamples = 64; // of a microbatch in all replicas
constexpr int kMostUnits = 8; // runs of devices that stages are made of
constexpr int kMostGroups = 24; // runs of layers

std::vector<cost::TensorWay> ways_of(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster) {
  std::vector<cost::TensorWay> ways;
  for (int tp = 1; tp <= cluster.device_count(); ++tp) {
    const bool known =
        std::all_of(cluster.kinds.begin(), cluster.kinds.end(), [&](const cost::DeviceKind& kind) {
          const std::vector<int> degrees = model.measured_degrees(kind.name);
          return std::find(degrees.begin(), degrees.end(), tp) != degrees.end();
        });
    if (!known) {
      continue;
    }
    ways.push_back({tp});
    const int side = static_cast<int>(std::lround(std::sqrt(tp)));
    if (model.sized() != nullptr && tp > 1) {
      ways.push_back({tp, cost::Distribution::kSpeed});
      if (side * side == tp) {
        ways.push_back({tp, cost::Distribution::kMesh});
      }
    }
  }
  return ways;
}

// The seconds below which no strategy with so many samples a microbatch goes.
double least_seconds(
    cost::StagedTables& tables,
    const std::vector<cost::TensorWay>& ways,
    int samples,
    int microbatches) {
  const cost::Cluster& cluster = tables.cluster();
  const int devices = cluster.device_count();
  const std::size_t kinds = cluster.kinds.size();
  std::vector<int> count(kinds, 0);
  for (const cost::Node& node : cluster.nodes) {
    count[at(node.kind)] += node.count;
  }
  std::vector<double> slower(kinds, kNever);
  double work = 0; // seconds of one device for a sample
  double passing = 0; // of a microbatch through all layers, on as many devices as there are
  for (int layer = 0; layer < static_cast<int>(tables.model().layers.size()); ++layer) {
    std::vector<double> own(kinds, kNever);
    double through = kNever;
    for (const cost::TensorWay& way : ways) {
      const int fewest = std::min(samples, (samples * way.degree + devices - 1) / devices);
      for (int s = 1; s <= samples; ++s) {
        const cost::LayerTable& table = tables.of(way, s, false);
        for (std::size_t k = 0; k < kinds; ++k) {
          const double seconds = table.compute_seconds(static_cast<int>(k), layer, layer + 1);
          if (count[k] > 0) {
            own[k] = std::min(own[k], way.degree * seconds / s);
            through = s >= fewest ? std::min(through, seconds) : through;
          }
        }
      }
    }
    const double least = *std::min_element(own.begin(), own.end());
    work += least;
    passing += through;
    for (std::size_t k = 0; k < kinds && least > 0; ++k) {
      slower[k] = std::min(slower[k], own[k] / least);
    }
  }
  double capacity = 0;
  for (std::size_t k = 0; k < kinds; ++k) {
    capacity += count[k] > 0 ? count[k] / (std::isinf(slower[k]) ? 1 : slower[k]) : 0;
  }
  const double period = work * samples / capacity;
  return ((microbatches - 1) * period + std::max(period, passing)) * kRounding;
}

// The dynamic program of one number of microbatches and one order of devices.
class Program {
 public:
  Program(
      cost::StagedTables& tables,
      const std::vector<cost::TensorWay>& ways,
      const std::vector<int>& devices,
      const SearchOptions& options,
      int microbatches,
      const StagedResult& grain)
      : tables_(tables),
        ways_(ways),
        devices_(devices),
        links_(tables.cluster()),
        node_of_device_(tables.cluster().node_of_device()),
        samples_(tables.model().global_batch_size / microbatches),
        layers_(static_cast<int>(tables.model().layers.size())),
        layer_grain_(grain.layers_together),
        device_grain_(grain.devices_together),
        groups_((layers_ + layer_grain_ - 1) / layer_grain_),
        units_(static_cast<int>(devices.size()) / device_grain_) {
    base_.microbatches = microbatches;
    base_.schedule = options.schedule;
    base_.shard_optimizer_state = options.shard_optimizer_state;
    known_.resize(at((most_stages() + 1) * (groups_ + 1) * (groups_ + 1) * (units_ + 1)));
  }

  // Returns the fastest strategy that it finds below `beat` seconds.
  std::optional<StagedCandidate> run(double beat) {
    std::optional<StagedCandidate> best;
    double bound = kNever;
    constexpr int kMostRuns = 40;
    for (int i = 0; i < kMostRuns; ++i) {
      const Answer answer = run_bounded(bound, best ? best->cost.seconds : beat, best);
      if (answer.longest <= 0) {
        break;
      }
      bound = std::nextafter(answer.longest, 0.0);
    }
    return best;
  }

 private:
  // A stage that was looked at: with a division of the samples, or nothing that fits.
  struct Choice {
    int units = 0;
    cost::OwnStage stage;
    double seconds = kNever;
  };
  // The stages from one to the last: the least sum so far with this front.
  struct Label {
    double sum = kNever;
    double longest = 0;
    const Choice* front = nullptr;
    const Label* behind = nullptr;
  };
  struct Answer {
    double longest = 0; // 0: there is none
  };

  int most_stages() const {
    return std::min(groups_, units_);
  }
  int layer(int group) const {
    return std::min(layers_, group * layer_grain_);
  }

  // Returns the stages that run the groups [first, last) on devices that end at unit `end`, with
  // `behind` stages behind them.
  const std::vector<Choice>& choices(int behind, int first, int last, int end) {
    const std::size_t index =
        at(((behind * (groups_ + 1) + first) * (groups_ + 1) + last) * (units_ + 1) + end);
    std::optional<std::vector<Choice>>& known = known_[index];
    if (!known) {
      known.emplace();
      for (int units = 1; units <= end; ++units) {
        for (const cost::TensorWay& way : ways_) {
          const int width = units * device_grain_;
          if (width % way.degree == 0 && width / way.degree <= samples_) {
            Choice choice;
            choice.units = units;
            choice.stage.first_layer = layer(first);
            choice.stage.last_layer = layer(last);
            choice.stage.way = way;
            const auto begin = devices_.begin() + (end - units) * device_grain_;
            choice.stage.devices.assign(begin, begin + width);
            complete(choice, behind);
            if (choice.seconds < kNever) {
              known->push_back(std::move(choice));
            }
          }
        }
      }
    }
    return *known;
  }

  // Divides the samples and decides on recomputation.
  void complete(Choice& choice, int behind) {
    const int replicas = static_cast<int>(choice.stage.devices.size()) / choice.stage.way.degree;
    cost::StagedStrategy one = base_;
    one.stages = {choice.stage};
    one.stages[0].samples.assign(at(replicas), 1);
    const cost::StageLinks placed =
        cost::place_groups(one, tables_.cluster(), tables_.constants()).front();
    const int held = base_.schedule == cost::Schedule::kInterleaved
                         ? std::min(base_.microbatches, behind + 1)
                         : base_.microbatches;
    for (const bool recomputes : {false, true}) {
      one.stages[0].recomputes = recomputes;
      const double seconds = divided(one, placed, held);
      if (seconds < choice.seconds) {
        choice.seconds = seconds;
        choice.stage = one.stages[0];
      }
    }
  }

  // Gives every replica its samples, one after the other to the one that has then done first, and
  // returns the seconds of the slowest; infinity where memory does not hold them.
  double divided(cost::StagedStrategy& one, const cost::StageLinks& placed, int held) {
    cost::OwnStage& stage = one.stages[0];
    const int replicas = stage.replicas();
    std::map<std::pair<std::vector<int>, int>, double> known; // kinds and samples
    const auto seconds_of = [&](int replica, int samples) {
      std::vector<int> kinds;
      for (int t = 0; t < stage.way.degree; ++t) {
        const int device = stage.devices[at(replica * stage.way.degree + t)];
        kinds.push_back(tables_.cluster().nodes[at(node_of_device_[at(device)])].kind);
      }
      const auto [place, is_new] = known.emplace(std::pair(kinds, samples), kNever);
      if (is_new) {
        const int before = stage.samples[at(replica)];
        stage.samples[at(replica)] = samples;
        const bool between_nodes = tables_.cluster().nodes.size() > 1;
        const cost::StageCost cost =
            cost::price_replica(one, 0, replica, held, placed, between_nodes, tables_);
        stage.samples[at(replica)] = before;
        if (cost.needed_bytes <= cost.device_bytes) {
          place->second = cost.seconds();
        }
      }
      return place->second;
    };
    stage.samples.assign(at(replicas), 0);
    double longest = 0;
    for (int sample = 0; sample < samples_; ++sample) {
      int least = 0;
      double least_seconds = kNever;
      for (int d = 0; d < replicas; ++d) {
        // The first samples go round, since every replica needs one.
        if (sample < replicas && d != sample) {
          continue;
        }
        const double seconds = seconds_of(d, stage.samples[at(d)] + 1);
        if (seconds < least_seconds) {
          least_seconds = seconds;
          least = d;
        }
      }
      if (least_seconds == kNever) {
        stage.samples.assign(at(replicas), 1);
        return kNever;
      }
      ++stage.samples[at(least)];
      longest = std::max(longest, least_seconds);
    }
    return longest;
  }

  // Finds the least sums with no stage and no transfer longer than `bound`, and prices them.
  Answer run_bounded(double bound, double beat, std::optional<StagedCandidate>& best) {
    std::deque<Label> kept; // whose addresses stay
    // By layers left and units left: labels with different fronts.
    std::vector<std::vector<Label*>> ends(at((groups_ + 1) * (units_ + 1)));
    const auto cell = [&](auto& table, int group, int unit) -> std::vector<Label*>& {
      return table[at(group * (units_ + 1) + unit)];
    };
    Label none;
    none.sum = 0;
    cell(ends, groups_, units_).push_back(&none);
    const double weight = base_.microbatches - 1;
    double least_sum = kNever;
    Answer answer;
    for (int behind = 0; behind < most_stages(); ++behind) {
      std::vector<std::vector<Label*>> longer(ends.size());
      for (int last = groups_; last > 0; --last) {
        for (int end = units_; end > 0; --end) {
          for (const Label* label : cell(ends, last, end)) {
            for (int first = last - 1; first >= 0; --first) {
              bool any = false;
              for (const Choice& choice : choices(behind, first, last, end)) {
                if (choice.seconds > bound) {
                  continue;
                }
                Label next = {
                    .front = &choice, .behind = label->front == nullptr ? nullptr : label};
                next.sum = label->sum + choice.seconds;
                next.longest = std::max(label->longest, choice.seconds);
                if (weight * next.longest + next.sum >= beat) {
                  continue;
                }
                any = true;
                if (label->front != nullptr) {
                  const cost::StageTransfer sent =
                      cost::transfer_between(choice.stage, label->front->stage, links_, tables_);
                  const double send = std::max(sent.forward, sent.backward);
                  next.sum += sent.forward + sent.backward;
                  next.longest = std::max(next.longest, send);
                  if (send > bound || weight * next.longest + next.sum >= beat) {
                    continue;
                  }
                }
                keep(next, cell(longer, first, end - choice.units), kept);
              }
              if (!any) {
                break; // more layers take longer on every width
              }
            }
          }
        }
      }
      for (int unit = 0; unit <= units_; ++unit) {
        for (const Label* label : cell(longer, 0, unit)) {
          StagedCandidate candidate = candidate_of(*label);
          if (candidate.cost.fits() && candidate.cost.seconds < beat) {
            beat = candidate.cost.seconds;
            best = std::move(candidate);
          }
          if (label->sum < least_sum) {
            least_sum = label->sum;
            answer.longest = label->longest;
          }
        }
      }
      ends = std::move(longer);
    }
    return answer;
  }

  // Keeps a label unless one with as wide and as divided a front has a smaller sum.
  static void keep(const Label& label, std::vector<Label*>& cell, std::deque<Label>& kept) {
    for (Label* other : cell) {
      if (other->front->units == label.front->units &&
          other->front->stage.way == label.front->stage.way) {
        if (label.sum < other->sum) {
          *other = label;
        }
        return;
      }
    }
    kept.push_back(label);
    cell.push_back(&kept.back());
  }

  StagedCandidate candidate_of(const Label& label) {
    StagedCandidate candidate;
    candidate.strategy = base_;
    for (const Label* one = &label; one != nullptr; one = one->behind) {
      candidate.strategy.stages.push_back(one->front->stage);
    }
    candidate.cost = cost::price(candidate.strategy, tables_);
    return candidate;
  }

  cost::StagedTables& tables_;
  const std::vector<cost::TensorWay>& ways_;
  const std::vector<int>& devices_;
  cost::NodeLinks links_;
  std::vector<int> node_of_device_;
  cost::StagedStrategy base_;
  int samples_;
  int layers_;
  int layer_grain_;
  int device_grain_;
  int groups_;
  int units_;
  std::vector<std::optional<std::vector<Choice>>> known_;
};

// Returns how many devices are taken together: the least divisor that leaves few enough runs, or
// what leaves a remainder out where that would leave hardly any.
int devices_together(int devices) {
  const int least = (devices + kMostUnits - 1) / kMostUnits;
  for (int grain = least; grain <= devices && devices / grain >= kMostUnits / 2; ++grain) {
    if (devices % grain == 0) {
      return grain;
    }
  }
  return least;
}

} // namespace

StagedResult search_staged(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options,
    double beat) {
  if (model.traced() != nullptr || model.returns_home || options.runnable_only) {
    throw ConfigError(
        "stages of own widths are priced for described models (--model-file) alone, and the "
        "runtime executes none of them; leave out --runnable and what writes a strategy");
  }
  cost::StagedTables tables(model, cluster, options.constants);
  const std::vector<cost::TensorWay> ways = ways_of(model, cluster);
  StagedResult result;
  result.devices_together = devices_together(cluster.device_count());
  result.layers_together = (static_cast<int>(model.layers.size()) + kMostGroups - 1) / kMostGroups;
  const std::vector<std::vector<int>> orders = node_orders(model, cluster, options);
  for (int samples = 1; samples <= std::min(kMostSamples, model.global_batch_size); ++samples) {
    if (model.global_batch_size % samples != 0) {
      continue;
    }
    const int microbatches = model.global_batch_size / samples;
    const double least = least_seconds(tables, ways, samples, microbatches);
    result.lower_bound = std::min(result.lower_bound, least);
    std::optional<StagedCandidate> best;
    for (const std::vector<int>& order : orders) {
      if (options.stop != nullptr && options.stop->load()) {
        result.interrupted = true;
        break;
      }
      const double limit = best ? best->cost.seconds : beat;
      if (least >= limit) {
        break;
      }
      const std::vector<int> devices = devices_in_order(cluster, order);
      Program program(tables, ways, devices, options, microbatches, result);
      if (auto found = program.run(limit)) {
        best = std::move(found);
      }
    }
    if (best) {
      result.best.push_back(std::move(*best));
    }
  }
  std::stable_sort(result.best.begin(), result.best.end(), [](const auto& a, const auto& b) {
    return a.cost.seconds < b.cost.seconds;
  });
  if (result.best.size() > at(options.keep)) {
    result.best.resize(at(options.keep));
  }
  return result;
}

std::string staged_text(const StagedResult& result, const cost::Cluster& cluster) {
  std::string text =
      "stages of own widths, not executable by the runtime (all its stages have as many devices, "
      "and divide a batch alike):\n";
  if (result.best.empty()) {
    return text + "  none is faster\n";
  }
  const std::vector<int> node_of_device = cluster.node_of_device();
  for (const StagedCandidate& candidate : result.best) {
    text += str(
        "  ", candidate.cost.seconds, " s, ", candidate.strategy.microbatches, " microbatches\n");
    for (const cost::OwnStage& stage : candidate.strategy.stages) {
      text +=
          str("    layers ",
              stage.first_layer,
              " to ",
              stage.last_layer - 1,
              ": dp ",
              stage.replicas(),
              ", tp ",
              stage.way.degree);
      if (stage.way.degree > 1 && stage.way.distribution != cost::Distribution::kAsMeasured) {
        text += str(" ", text_of(stage.way.distribution));
      }
      text += ", samples ";
      for (std::size_t d = 0; d < stage.samples.size(); ++d) {
        text += str(d == 0 ? "" : "+", stage.samples[d]);
      }
      text +=
          str(", devices ",
              *std::min_element(stage.devices.begin(), stage.devices.end()),
              " to ",
              *std::max_element(stage.devices.begin(), stage.devices.end()),
              stage.recomputes ? ", recomputed\n" : "\n");
    }
  }
  text += str("  lower bound of these: ", result.lower_bound, " s\n");
  if (result.devices_together > 1 || result.layers_together > 1) {
    text +=
        str("  only widths that are multiples of ",
            result.devices_together,
            " devices and cuts between runs of ",
            result.layers_together,
            " layers were tried\n");
  }
  return text;
}

} // namespace tessera::planner
