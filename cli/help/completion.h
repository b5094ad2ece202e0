#pragma once

#include <string>

#include "cli/help/described.h"

namespace tessera::cli {

/// Each returns a script that completes commands and options, made of what `--help` describes.
/// Values are completed where only some are taken, and as files where they may be files. A script
/// is sourced, or lies where its shell looks for completions of a program of this name.
std::string bash_completion(const DescribedCommand& program);
std::string zsh_completion(const DescribedCommand& program);
std::string fish_completion(const DescribedCommand& program);

} // namespace tessera::cli
