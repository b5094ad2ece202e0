#include "cli/train/job_text.h"

#include "tessera/base/json/parse.h"

#include "cli/shortened.h"

namespace tessera::cli {

namespace {

constexpr std::size_t kLargestJob = std::size_t{16} << 20;

OrderedJson value_of(const std::string& text) {
  const bool structured = !text.empty() && std::string("{[\"").find(text[0]) != std::string::npos;
  try {
    return parse_json(text, "");
  } catch (const JsonError&) {
    if (structured) {
      throw;
    }
    return text;
  }
}

void apply(OrderedJson& root, const std::string& setting) {
  const auto equals = setting.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw ConfigError("write KEY=VALUE with the path of a key, as in data.batch=8");
  }
  OrderedJson* at = &root;
  for (std::size_t begin = 0; begin <= equals;) {
    const std::size_t end = std::min(setting.find('.', begin), equals);
    const std::string key = setting.substr(begin, end - begin);
    if (key.empty()) {
      throw ConfigError("the path has an empty part; write it as in data.batch=8");
    }
    if (!at->is_object()) {
      throw ConfigError(
          str("'",
              shortened(setting.substr(0, begin - 1)),
              "' is ",
              shortened(one_line(*at)),
              ", which has no keys"));
    }
    if (end < equals && !at->contains(key)) {
      (*at)[key] = OrderedJson::object();
    }
    at = &(*at)[key];
    begin = end + 1;
  }
  *at = value_of(setting.substr(equals + 1));
}

} // namespace

JobText read_job_text(
    const std::string& text,
    const std::string& origin,
    const std::vector<std::string>& settings) {
  JobText job;
  try {
    const std::string plain = without_comments(text);
    for (const RepeatedKey& repeated : repeated_keys(plain, {.most_bytes = kLargestJob})) {
      job.errors.push_back(to_text(repeated));
    }
    job.root = OrderedJson::parse(plain);
  } catch (const JsonError& error) {
    throw ConfigError(str(origin, ": ", error.what()));
  } catch (const OrderedJson::exception& error) {
    throw ConfigError(str(origin, ": not valid JSON: ", cause_of(error)));
  }
  if (!job.root.is_object()) {
    throw ConfigError(str(
        origin, ": expected an object with sections such as \"data\", found ", briefly(job.root)));
  }
  for (const std::string& setting : settings) {
    try {
      apply(job.root, setting);
    } catch (const Error& error) {
      job.errors.push_back(str("--set ", shortened(setting), ": ", error.what()));
    }
  }
  return job;
}

OrderedJson job_object(const std::string& text, const std::string& origin) {
  JobText job = read_job_text(text, origin);
  if (!job.errors.empty()) {
    throw ConfigError(str(origin, ": ", job.errors.front()));
  }
  return std::move(job.root);
}

OrderedJson with_precision(OrderedJson parallel, const std::string& precision) {
  const char* key = precision == "fp16" ? "fp16" : "bf16";
  for (const char* asks : {"fp32_grad_accumulation", "_fp32_grad_accumulation"}) {
    if (precision != "f32" && parallel.is_object() && parallel.contains(asks) &&
        !parallel.contains(key)) {
      parallel[key] = true;
    }
  }
  return parallel;
}

} // namespace tessera::cli
