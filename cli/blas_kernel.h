#pragma once

#include <optional>
#include <set>
#include <string>

namespace tessera::cli {

/// Returns the instruction sets of the processor as /proc/cpuinfo calls them ("avx2",
/// "avx512_bf16", ...); none where the system does not list them.
std::set<std::string> processor_features();

/// Returns the kernels that OpenBLAS chose when it was loaded ("Haswell", "SkylakeX", ...), which
/// this does where libtorch has not; "" when there is no OpenBLAS, or one that does not report its
/// choice.
std::string picked_blas_kernel();

/// Returns the kernel to ask for with OPENBLAS_CORETYPE when the chosen one uses narrower vectors
/// than the processor has, else nothing. OpenBLAS identifies processors by family and model, and
/// takes a model that it does not know (a new one, or that of a virtual machine) for an old one.
/// Nothing is returned either when `picked` is a kernel that is not known here.
std::optional<std::string> better_blas_kernel(
    const std::string& picked,
    const std::set<std::string>& features);

} // namespace tessera::cli
