// How a run keeps what it has: a folder that can be written, one run in it, no
// update and no checkpoint with numbers that are not finite.
#include <algorithm>
#include <cmath>

#include <torch/torch.h>

#include "tessera/context/context.h"
#include "tessera/optim/optimizer_access.h"

#include "cli/agreed_error.h"
#include "cli/train/checkpoint_folder.h"
#include "cli/train/trainer.h"

namespace tessera::cli {

namespace {

constexpr std::size_t kNamedTensors = 3; // in a message, of all that are not finite

/// Every rank throws what the first failing rank says.
void agree(const std::string& error) {
  for (const std::string& text : allgather(error)) {
    if (!text.empty()) {
      throw ConfigError(text);
    }
  }
}

bool finite(const at::Tensor& tensor) {
  return !tensor.is_floating_point() || tensor.isfinite().all().item<bool>();
}

/// Gradients that are not finite although every loss is.
bool overflow(const std::vector<StepHealth>& ranks) {
  const auto all = [&](double StepHealth::*figure) {
    return std::all_of(ranks.begin(), ranks.end(), [figure](const StepHealth& rank) {
      return std::isfinite(rank.*figure);
    });
  };
  return all(&StepHealth::loss) && !all(&StepHealth::grad_norm);
}

/// "a (rank 0), b (rank 2) and 5 more" of all ranks' lists; "" when all are
/// empty. Collective over the world.
std::string of_all_ranks(const std::vector<std::string>& mine) {
  std::string text;
  std::size_t more = 0;
  std::size_t named = 0;
  const auto all = allgather(mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    for (const std::string& what : all[rank]) {
      if (named == kNamedTensors) {
        ++more;
        continue;
      }
      text += str(named++ == 0 ? "" : ", ", what, " (rank ", rank, ")");
    }
  }
  return more > 0 ? str(text, " and ", more, " more") : text;
}

} // namespace

void Trainer::prepare_folders(std::int64_t parameters) {
  const std::string& folder = job_.checkpoint.directory;
  const auto attempt = [&](const auto& work) {
    std::string error;
    try {
      work();
    } catch (const Error& caught) {
      error = caught.what();
    }
    agree(error);
  };
  attempt([&] {
    if (!arguments_.log.empty() && rank() == 0) {
      log_lock_.emplace(arguments_.log + ".lock", str("log '", arguments_.log, "'"));
      tell_taken(*log_lock_);
    }
  });
  if (folder.empty()) {
    return;
  }
  std::optional<FolderProbe> probe;
  attempt([&] {
    try {
      probe.emplace(folder, rank());
    } catch (const CheckpointError& error) {
      throw ConfigError(not_writable(folder, str(" (rank ", rank(), ")"), error.what()));
    }
  });
  attempt([&] {
    if (rank() == 0) {
      folder_lock_.emplace(folder + "/.lock", str("'checkpoint.directory' ", folder));
      tell_taken(*folder_lock_);
    }
  });
  const auto probes = allgather(probe->path());
  attempt([&] {
    const std::string wrong =
        rank() == 0 ? judge_folder(folder, probes, checkpoint_bytes(job_, parameters)) : "";
    if (!wrong.empty()) {
      throw ConfigError(wrong);
    }
  });
}

void Trainer::tell_taken(const RunLock& lock) {
  if (!lock.taken_from().empty()) {
    std::printf("took over a lock that was left behind by %s\n", lock.taken_from().c_str());
  }
}

bool Trainer::judge_update(std::int64_t step, double loss) {
  const torch::Tensor mine = torch::tensor({loss, *grad_norm_}, torch::kDouble);
  const torch::Tensor all = torch::empty({size(), 2}, torch::kDouble);
  context().group(Group::kWorld).all_gather(all.view({-1}), mine);
  std::vector<StepHealth> ranks;
  for (int i = 0; i < size(); ++i) {
    ranks.push_back({all[i][0].item<double>(), all[i][1].item<double>()});
  }
  loss_scale_ = optimizer_->loss_scale();
  if (job_.precision == "fp16" && loss_scale_ > job_.loss_scale.min_scale && overflow(ranks)) {
    ++overflows_;
    skipped_ = str("gradients overflow in fp16 at loss scale ", loss_scale_);
    tell(str("step ", step + 1, ": update left out: ", skipped_));
    return true;
  }
  const auto where = [&] {
    std::vector<std::string> found;
    for (const auto& [name, parameter] : distributed_->local_parameters()) {
      if (!finite(parameter.detach())) {
        found.push_back("parameter " + name);
      }
      const at::Tensor gradient = optim::OptimizerAccess::own_part(*optimizer_, parameter).grad();
      if (gradient.defined() && !finite(gradient)) {
        found.push_back("gradient of " + name);
      }
    }
    const std::string text = of_all_ranks(found);
    return text.empty() ? text : "not finite: " + text;
  };
  skipped_ = judge_.judge(step + 1, ranks, where);
  if (!skipped_.empty()) {
    tell(str("step ", step + 1, ": update left out: ", skipped_));
  }
  return skipped_.empty();
}

void Trainer::check_state_is_finite(std::int64_t steps_done) {
  const torch::NoGradGuard no_grad;
  std::vector<std::string> found;
  for (const auto& [name, parameter] : distributed_->local_parameters()) {
    if (!finite(parameter.detach())) {
      found.push_back("parameter " + name);
    }
  }
  for (const auto& [name, fields] : optimizer_->local_state_dict(false).parameters) {
    for (const auto& [field, value] : fields) {
      if (value.isTensor() && !finite(value.toTensor())) {
        found.push_back(str(field, " of ", name));
      }
    }
  }
  const std::string text = of_all_ranks(found);
  if (!text.empty()) {
    throw AgreedError(
        str("after step ",
            steps_done,
            " the model's state is not finite: ",
            text,
            ". It was not saved, and earlier checkpoints in ",
            job_.checkpoint.directory,
            " are as they were. Lower optimizer.learning_rate and go on with --resume"));
  }
}

} // namespace tessera::cli
