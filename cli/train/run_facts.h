#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/types.h>

#include "models/presets.h"

namespace tessera::cli {

/// Floating-point operations that training needs for one token: 6 for each weight that takes part
/// in a matrix product (a product and its two gradients, a multiplication and an addition each;
/// the output layer counts, the look-up of embeddings does not) and 12 x layers x width x
/// `sequence` for attention, counted as if it were not causal.
/// Source: Chowdhery et al. 2022, appendix B.
double flops_per_token(const models::LanguageModelSizes& model, std::int64_t sequence);

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
