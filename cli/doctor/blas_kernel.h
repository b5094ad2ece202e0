#pragma once

#include <optional>
#include <set>
#include <string>

namespace tessera::cli {

/// What the processor can do, in the words of /proc/cpuinfo ("avx2",
/// "avx512_bf16", ...). Empty where the system does not say.
std::set<std::string> processor_features();

/// The kernels OpenBLAS picked when it was loaded ("Haswell", "SkylakeX", ...),
/// empty when this process has no OpenBLAS that says so.
std::string picked_blas_kernel();

/// The kernel to ask for with OPENBLAS_CORETYPE, when the one picked uses
/// narrower vectors than the processor has: OpenBLAS knows processors by family
/// and model, and takes one it has never heard of (a new one, or what a virtual
/// machine shows) for an old one. None when the pick is right or unknown here.
std::optional<std::string> better_blas_kernel(
    const std::string& picked,
    const std::set<std::string>& features);

} // namespace tessera::cli
