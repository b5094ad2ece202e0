#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/types.h>

namespace tessera::cli {

/// Operations per second of all ranks together in a matrix product of 512 x 512 in `type`, the
/// best of several rounds in which all ranks multiply at once: the peak that MFU is measured by.
/// Takes about a fifth of a second. Collective over the world.
double measured_peak(torch::ScalarType type);

/// 16 hexadecimal digits, another value at each call.
std::string new_run_id();

/// Program and arguments as this process was started with them; empty when not known.
std::vector<std::string> own_command_line();

/// "tessera 0.1.0, libtorch 1.13.1".
std::string program_version();

} // namespace tessera::cli
