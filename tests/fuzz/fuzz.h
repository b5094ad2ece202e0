#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// A fuzz target is one file that defines these two functions. It is linked with
// driver.cpp (any compiler, deterministic) or with libFuzzer (clang).

namespace tessera::fuzz {

/// Inputs to begin with, written by the project's own code.
std::vector<std::string> seeds();

/// A target says of every input whether it was accepted, so that the driver can
/// tell that its mutations reach both sides.
void count(bool accepted);
long accepted();
long refused();

/// Ends the process: what the target promises does not hold for this input.
[[noreturn]] void broken(const std::string& promise);

} // namespace tessera::fuzz

/// Runs the code under test on one input. Errors of the documented type are
/// caught and counted; anything else that is thrown is a finding.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
