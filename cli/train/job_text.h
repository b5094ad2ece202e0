#pragma once

#include <string>
#include <vector>

#include "tessera/base/json/parse.h"

namespace tessera::cli {

/// A job file as an object of its sections, before they are read.
struct JobText {
  nlohmann::ordered_json root;
  /// Keys that stand twice, settings that cannot be made: to be told with the
  /// other errors of the file.
  std::vector<std::string> errors;
};

/// Reads a job file's text, in which comments and commas behind the last entry
/// may stand, and writes `settings` over it: "data.batch=8", a path of keys and
/// a JSON value. What is no JSON is taken as a text, so that model.name=gpt2
/// needs no quotes. Sections that are not there are made.
/// Throws: ConfigError that begins with `origin` when the text is no JSON
/// object.
JobText read_job_text(
    const std::string& text,
    const std::string& origin,
    const std::vector<std::string>& settings = {});

/// The same without settings, for what takes a job apart and writes another.
/// Throws: ConfigError for the first error.
nlohmann::ordered_json job_object(const std::string& text, const std::string& origin);

/// Returns a job's section `parallel` with the key of its precision, which a job says beside it,
/// where another key of the section asks for 16 bits (fp32_grad_accumulation).
nlohmann::ordered_json with_precision(
    nlohmann::ordered_json parallel,
    const std::string& precision);

} // namespace tessera::cli
