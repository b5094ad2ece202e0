#include "cli/train/job.h"

#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <sstream>
#include <vector>

#include "tessera/base/json_fields.h"
#include "tessera/base/text.h"
#include "tessera/planner/planned_config.h"

#include "cli/train/job_text.h"

namespace tessera::cli {

namespace {

using Setter = std::function<void(const OrderedJson&)>;

/// Collects errors, so that a file is mended in one go.
class Reader {
 public:
  explicit Reader(std::string origin) : origin_(std::move(origin)) {}

  void error(const std::string& what) {
    errors_.push_back(what);
  }

  /// Reads the keys of one section with the setter each has.
  void section(
      const OrderedJson& object,
      const std::string& name,
      const std::map<std::string, Setter>& setters) {
    const std::string prefix = name.empty() ? "" : name + ".";
    if (!object.is_object()) {
      error(str("'", name, "' must be an object, found ", one_line(object)));
      return;
    }
    for (const auto& item : object.items()) {
      const auto setter = setters.find(item.key());
      if (setter == setters.end()) {
        std::vector<std::string> known;
        for (const auto& [key, unused] : setters) {
          known.push_back(key);
        }
        error(
            str("unknown key '",
                prefix,
                item.key(),
                "'; the nearest is '",
                prefix,
                nearest(item.key(), known),
                "'"));
        continue;
      }
      try {
        setter->second(item.value());
      } catch (const Error& caught) {
        error(str("'", prefix, item.key(), "' ", caught.what()));
      }
    }
  }

  void finish() const {
    if (errors_.empty()) {
      return;
    }
    std::string text = origin_ + ": ";
    for (std::size_t i = 0; i < errors_.size(); ++i) {
      text += (i == 0 ? "" : "\n") + errors_[i];
    }
    throw ConfigError(text);
  }

 private:
  std::string origin_;
  std::vector<std::string> errors_;
};

Setter text(std::string& to) {
  return [&to](const OrderedJson& value) {
    if (!value.is_string()) {
      throw ConfigError(str("must be a string, found ", one_line(value)));
    }
    to = value.get<std::string>();
  };
}

Setter choice(std::string& to, std::vector<std::string> allowed) {
  return [&to, allowed](const OrderedJson& value) {
    std::string list;
    for (const auto& name : allowed) {
      list += (list.empty() ? "" : ", ") + name;
      if (value.is_string() && value.get<std::string>() == name) {
        to = name;
        return;
      }
    }
    throw ConfigError(str("must be one of ", list, "; found ", one_line(value)));
  };
}

template <typename T>
Setter integer(T& to, std::int64_t least) {
  return [&to, least](const OrderedJson& value) {
    if (!value.is_number_integer() || value.get<std::int64_t>() < least ||
        value.get<std::int64_t>() > std::numeric_limits<T>::max()) {
      throw ConfigError(str("must be an integer of ", least, " or more, found ", one_line(value)));
    }
    to = value.get<T>();
  };
}

Setter number(double& to, double least, double most = 1e30) {
  return [&to, least, most](const OrderedJson& value) {
    if (!value.is_number() || !(value.get<double>() >= least) || !(value.get<double>() <= most)) {
      throw ConfigError(
          str("must be a number from ", least, " to ", most, ", found ", one_line(value)));
    }
    to = value.get<double>();
  };
}

/// Without its upper end.
Setter number_below(double& to, double least, double limit) {
  return [&to, least, limit](const OrderedJson& value) {
    if (!value.is_number() || !(value.get<double>() >= least) || !(value.get<double>() < limit)) {
      throw ConfigError(
          str("must be a number from ", least, " to below ", limit, ", found ", one_line(value)));
    }
    to = value.get<double>();
  };
}

Setter above_zero(double& to) {
  return [&to](const OrderedJson& value) {
    if (!value.is_number() || !(value.get<double>() > 0) || !(value.get<double>() <= 1e30)) {
      throw ConfigError(str("must be a number above 0, found ", one_line(value)));
    }
    to = value.get<double>();
  };
}

Setter boolean(bool& to) {
  return [&to](const OrderedJson& value) {
    if (!value.is_boolean()) {
      throw ConfigError(str("must be true or false, found ", one_line(value)));
    }
    to = value.get<bool>();
  };
}

void check_couplings(const Job& job, bool has_warmup, Reader& reader) {
  if (job.data.directory.empty()) {
    reader.error(
        "'data.directory' is missing; name the folder that `tessera data "
        "prepare` wrote");
  }
  if (job.strategy == "auto") {
    for (const std::string& key : planner::planned_keys_said(job.parallel)) {
      reader.error(
          str("'parallel.",
              key,
              "' is what \"strategy\": \"auto\" decides; leave one of them "
              "out"));
    }
  }
  const std::int64_t microbatches = job.parallel.microbatches;
  if (job.data.batch % microbatches != 0) {
    reader.error(
        str("'data.batch' is ",
            job.data.batch,
            ", which parallel.microbatches = ",
            microbatches,
            " does not divide; write a multiple"));
  }
  try {
    job.optimizer.rate.validate();
  } catch (const ConfigError& caught) {
    reader.error(
        str("'optimizer': ",
            caught.what(),
            has_warmup ? "" : " (warmup_steps not said: a tenth of steps)"));
  }
  try {
    const BadStepJudge checked(job.bad_steps);
  } catch (const ConfigError& caught) {
    reader.error(caught.what());
  }
  if (job.checkpoint.every > 0 && job.checkpoint.directory.empty()) {
    reader.error("'checkpoint.every' needs 'checkpoint.directory'; write where to save");
  }
}

} // namespace

Job parse_job(
    const std::string& text_of_file,
    const std::string& origin,
    const std::vector<std::string>& settings) {
  const JobText read = read_job_text(text_of_file, origin, settings);
  const OrderedJson& root = read.root;
  Job job;
  job.said = root.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  Reader reader(origin);
  for (const std::string& error : read.errors) {
    reader.error(error);
  }
  auto& rate = job.optimizer.rate;
  bool has_warmup = false;
  const auto sub = [&](const char* name, std::map<std::string, Setter> keys) {
    return [&reader, name, keys = std::move(keys)](const OrderedJson& value) {
      reader.section(value, name, keys);
    };
  };
  const Setter warmup = integer(rate.warmup, 0);
  reader.section(
      root,
      "",
      {{"parallel",
        [&](const OrderedJson& value) {
          try {
            job.parallel = config::parse_config(value.dump(), "parallel");
          } catch (const ConfigError& error) {
            reader.error(error.what());
          }
        }},
       {"model",
        sub("model",
            {{"name", text(job.model.name)},
             {"options",
              [&](const OrderedJson& value) {
                if (!value.is_object()) {
                  throw ConfigError("must be an object of the model's options");
                }
                job.model.options = value.dump();
              }}})},
       {"data",
        sub("data",
            {{"directory", text(job.data.directory)},
             {"sequence", integer(job.data.sequence, 1)},
             {"batch", integer(job.data.batch, 1)}})},
       {"optimizer",
        sub("optimizer",
            {{"type", choice(job.optimizer.type, {"adamw", "adam", "sgd"})},
             {"learning_rate", above_zero(rate.peak)},
             {"min_learning_rate", number(rate.minimum, 0)},
             {"warmup_steps",
              [&](const OrderedJson& value) {
                warmup(value);
                has_warmup = true;
              }},
             {"decay", choice(rate.decay, {"constant", "linear", "cosine", "exponential"})},
             {"weight_decay", number(job.optimizer.weight_decay, 0)},
             {"beta1", number_below(job.optimizer.beta1, 0, 1)},
             {"beta2", number_below(job.optimizer.beta2, 0, 1)},
             {"eps", above_zero(job.optimizer.eps)},
             {"momentum", number_below(job.optimizer.momentum, 0, 1)},
             {"clip_norm", number(job.optimizer.clip_norm, 0)}})},
       {"checkpoint",
        sub("checkpoint",
            {{"directory", text(job.checkpoint.directory)},
             {"every", integer(job.checkpoint.every, 0)},
             {"keep", integer(job.checkpoint.keep, 0)},
             {"full", boolean(job.checkpoint.full)}})},
       {"bad_steps",
        sub("bad_steps",
            {{"not_finite", choice(job.bad_steps.not_finite, {"stop", "skip"})},
             {"spike", number(job.bad_steps.spike, 0)},
             {"most_skipped", integer(job.bad_steps.most_skipped, 0)}})},
       {"validation",
        sub("validation",
            {{"every", integer(job.validation.every, 0)},
             {"batches", integer(job.validation.batches, 1)}})},
       {"sample",
        sub("sample",
            {{"prompt", text(job.sample.prompt)},
             {"tokens", integer(job.sample.tokens, 1)},
             {"temperature", number(job.sample.temperature, 0)},
             {"top_k", integer(job.sample.top_k, 0)}})},
       {"strategy", choice(job.strategy, {"given", "auto"})},
       {"steps", integer(job.steps, 1)},
       {"accumulation", integer(job.accumulation, 1)},
       {"precision", choice(job.precision, {"f32", "bf16"})},
       {"log_every", integer(job.log_every, 1)}});
  rate.total = job.steps;
  if (!has_warmup) {
    rate.warmup = job.steps / 10;
  }
  check_couplings(job, has_warmup, reader);
  reader.finish();
  return job;
}

Job load_job(const std::string& path, const std::vector<std::string>& settings) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) {
    throw ConfigError(str("job file '", path, "' cannot be read"));
  }
  return parse_job(text.str(), path, settings);
}

std::string effective_job(const Job& job) {
  OrderedJson all = OrderedJson::parse(job.said);
  all["parallel"] = OrderedJson::parse(config::to_json(job.parallel));
  all["strategy"] = job.strategy;
  return all.dump();
}

} // namespace tessera::cli
