// What the trainer writes down: log, partition, traffic, timeline, samples.
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <torch/torch.h>

#include "tessera/base/json/parse.h"
#include "tessera/context/context.h"
#include "tessera/model/decision.h"
#include "tessera/plan/plan.h"
#include "tessera/report/partition_tree.h"

#include "cli/train/run_facts.h"
#include "cli/train/trainer.h"
#include "models/data/data_folder.h"
#include "models/generate.h"

namespace tessera::cli {

namespace {

std::string now_utc() {
  return report::utc_of_seconds(static_cast<double>(std::time(nullptr)));
}

/// A file that cannot be written is found before the first step, not after the last.
void check_writable(const std::string& path) {
  const bool there = std::filesystem::exists(path);
  errno = 0;
  if (!std::ofstream(path, std::ios::app)) {
    throw ConfigError(
        str("--timeline '",
            path,
            "' cannot be written: ",
            std::system_category().message(errno),
            "; name a file in a folder that is there"));
  }
  if (!there) {
    std::filesystem::remove(path);
  }
}

/// Returns under which name the log of an earlier run stays, "" where there is none.
std::string set_aside(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored) || fs::file_size(path, ignored) == 0) {
    return "";
  }
  std::string other;
  for (int i = 1; other.empty() || fs::exists(other); ++i) {
    other = str(path, ".", i);
  }
  fs::rename(path, other, ignored);
  return ignored ? "" : other; // whoever writes the new one says why it cannot be
}

} // namespace

void Trainer::start_log() {
  started_ = std::chrono::steady_clock::now();
  const std::string started = now_utc();
  const auto type = distributed_->converted_to().value_or(torch::kFloat);
  const double peak = arguments_.log.empty() ? 0 : measured_peak(type);
  if (rank() != 0) {
    return;
  }
  const auto sizes = models::language_model_sizes(model_->preset.options);
  run_id_ = new_run_id();
  if (!arguments_.timeline.empty()) {
    check_writable(arguments_.timeline);
  }
  tell(
      str(model_name(job_),
          " of ",
          models::count_parameters(model_->preset.options),
          " parameters",
          sizes ? str(" (", sizes->layers, " layers of width ", sizes->width, ")") : str(""),
          ", ",
          job_.precision,
          ", on ",
          size(),
          " ranks: ",
          pp_size(),
          " pipeline x ",
          tp_size(),
          " tensor x ",
          rdp_size(),
          " replicas, ",
          job_.parallel.microbatches,
          " microbatches, ",
          job_.parallel.pipeline));
  for (const std::string& note : objective_->facts().notes) {
    tell(note);
  }
  if (arguments_.log.empty()) {
    return;
  }
  using Mode = report::RunLogWriter::Mode;
  const Mode mode = first_step_ > 0 ? Mode::kContinue : Mode::kNew;
  if (const std::string kept = mode == Mode::kNew ? set_aside(arguments_.log) : ""; !kept.empty()) {
    tell(str("the log of an earlier run is kept as ", kept));
  }
  log_.emplace(arguments_.log, mode);
  report::RunFacts facts;
  facts.model = model_name(job_);
  facts.run_id = run_id_;
  facts.started = started;
  facts.command = own_command_line();
  facts.program = program_version();
  facts.data = data::to_text(folders_);
  facts.precision = job_.precision;
  facts.schedule = job_.parallel.pipeline;
  facts.world_size = size();
  facts.pipeline_parallel_degree = pp_size();
  facts.tensor_parallel_degree = tp_size();
  facts.data_parallel_degree = dp_size();
  facts.microbatches = job_.parallel.microbatches;
  facts.parameters = models::count_parameters(model_->preset.options);
  facts.tokens_per_step = job_.data.batch * job_.data.sequence * job_.accumulation;
  facts.first_step = first_step_ + 1;
  facts.steps = job_.optimizer.rate.total;
  facts.flops_per_token = models::flops_per_token(
      model_->preset.options, job_.data.sequence, objective_->facts().decoder_positions);
  facts.peak_flops_per_second = peak;
  facts.hosts = context().world->hosts();
  facts.config_json = effective_job(job_);
  log_->write(facts);
}

void Trainer::log_partition() {
  const auto decision = distributed_->decision();
  if (!log_ || decision == nullptr || pp_size() == 1) {
    return;
  }
  const report::PartitionView view{
      decision->graph,
      decision->result.tree,
      decision->result.cost,
      decision->result.partition_of_node,
      decision->result.total,
      decision->result.warnings,
      job_.parallel.effective_memory_weight()};
  log_->write_partition(report::partition_tree_svg(view));
}

void Trainer::sample(std::int64_t step) {
  const torch::NoGradGuard no_grad;
  model_->module->eval();
  const data::Tokenizer tokenizer(data::tokenizer_path(folders_.front().directory));
  const auto forward = tessera::step(
      [&](torch::Tensor ids) { return model_->forward({ids}).at(0); },
      {.static_mode = false}); // the text grows
  models::GenerateOptions options;
  options.tokens = job_.sample.tokens;
  options.temperature = job_.sample.temperature;
  options.top_k = job_.sample.top_k;
  options.context = models::language_model_sizes(model_->preset.options).value().positions;
  options.stop = tokenizer.end_of_document();
  options.seed = static_cast<std::uint64_t>(job_.parallel.seed);
  // Every rank draws the same tokens from the same logits; a step needs a row
  // for each microbatch, of which one is looked at.
  const auto tokens = models::generate(
      [&](const torch::Tensor& ids) {
        return forward(ids.expand({job_.parallel.microbatches, -1})).outputs().at(0);
      },
      tokenizer.encode(job_.sample.prompt),
      options);
  context().recorder->take();
  const std::string text = tokenizer.decode(tokens);
  tell("sample: " + job_.sample.prompt + text);
  if (log_) {
    log_->write(report::SampleRecord{step, job_.sample.prompt, text});
  }
}

void Trainer::log_end(const std::string& state, const std::string& reason) {
  if (log_) {
    log_->write(report::EndRecord{state, steps_done_, elapsed(), reason});
    log_.reset(); // nothing follows an end
  }
}

void Trainer::failed(const std::string& reason) noexcept {
  try {
    log_end("failed", reason);
  } catch (const std::exception&) {
    // A log that cannot be written may be why the run failed, which is thrown already.
  }
}

void Trainer::log_traffic(std::int64_t step) {
  const Context& s = context();
  std::vector<report::TrafficRecord> mine;
  for (const Group kind : topology::kAllGroups) {
    auto& traffic = s.group(kind).traffic();
    mine.push_back(
        {step, std::string(topology::name_of(kind)), traffic.calls.load(), traffic.bytes.load()});
  }
  if (s.transport != nullptr) {
    const auto counters = s.transport->counters();
    mine.push_back({step, "transport", counters.messages_sent, counters.bytes_sent});
  }
  for (auto& record : mine) {
    torch::Tensor sum = torch::tensor({record.calls, record.bytes});
    s.group(Group::kWorld).all_reduce(sum);
    record.calls = sum[0].item<std::int64_t>();
    record.bytes = sum[1].item<std::int64_t>();
    if (log_ && record.calls > 0) {
      log_->write(record);
    }
  }
}

void Trainer::write_timeline() {
  if (arguments_.timeline.empty()) {
    return;
  }
  timeline::Timeline whole;
  whole.world_size = size();
  whole.run_id = run_id_;
  timeline::Timeline mine;
  mine.world_size = size();
  mine.events = kept_events_;
  for (const std::string& text : allgather(timeline::to_json(mine))) {
    auto part = timeline::timeline_from_json(text);
    whole.events.insert(
        whole.events.end(),
        std::make_move_iterator(part.events.begin()),
        std::make_move_iterator(part.events.end()));
  }
  // Where no step was left to do, the file of the start before says more than an empty one.
  std::error_code unreadable;
  const auto bytes = std::filesystem::file_size(arguments_.timeline, unreadable);
  const bool keeps_former = whole.events.empty() && !unreadable && bytes > 0;
  if (rank() == 0 && !keeps_former) {
    std::ofstream out(arguments_.timeline);
    out << timeline::to_json(whole) << '\n';
    if (!out) {
      throw Error(str("timeline '", arguments_.timeline, "' cannot be written"));
    }
  }
}

} // namespace tessera::cli
