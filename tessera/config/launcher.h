#pragma once

#include <string>
#include <vector>

#include "tessera/config/config.h"

namespace tessera::config {

/// The environment variable in which a launcher gives a program its configuration.
inline constexpr const char* kLauncherVariable = "SM_HP_MP_PARAMETERS";

struct Launched {
  Config config;
  /// For people, one for each key that the launcher changed:
  ///   "microbatches" is 4 by SM_HP_MP_PARAMETERS, not 2
  std::vector<std::string> changes;
};

/// Returns `given` with the keys of the launcher's variable in the place of its own: `text` is one
/// of the JSON forms that parse_config reads. Empty, or an object without keys, changes nothing.
/// Threads: any thread.
/// Throws: ConfigError as parse_config, also where the launcher's keys and those given do not go
/// together.
/// Source: the library's documentation of `init`: what the launcher says overrides the script.
Launched with_launcher_values(const Config& given, const std::string& text);

/// The argument in which a launcher gives a program its configuration: `--mp_parameters
/// microbatches=4,ddp=true`, or with a JSON object in place of the list.
inline constexpr const char* kLauncherArgument = "--mp_parameters";

/// Takes the launcher's argument out of `argc` and `argv`, in both forms (`--mp_parameters TEXT`
/// and
/// `--mp_parameters=TEXT`), and returns `given` with its keys in the place of its own. A value is
/// JSON, or else a text without quotes; a comma inside of brackets or quotes belongs to the value.
/// Without the argument nothing changes. Threads: any thread.
/// Throws: ConfigError as with_launcher_values, for the argument without a value or twice, and for
/// an entry without '='.
/// Source: the library's documentation: what the launcher says overrides the script.
Launched take_launcher_argument(const Config& given, int& argc, char** argv);

} // namespace tessera::config
