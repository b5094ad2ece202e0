#pragma once

#include <string>
#include <vector>

/// f16 on the processor, for which older versions of libtorch have no kernels, and products of
/// bf16, for which they have slow ones; as for some other functions of bf16.
namespace tessera::half {

/// From now on, and for the rest of the process, operators that this libtorch cannot compute in f16
/// on the processor are computed in f32, their results rounded to f16: what a GPU does inside of a
/// product. Operators are those of `widened_operators`; where libtorch has f16 kernels of its own,
/// nothing changes. Harmless to repeat. Not collective. Threads: one at a time, before others run.
///
/// How: kernels of the dispatch key CPU that hand over to libtorch's own for every other type, so
/// backward formulas, layers of torch and of this library all come by.
/// Throws: ConfigError that names the operators of a transformer that are lacking all the same.
void support_processor();

/// From now on, and for the rest of the process, products of bf16 are computed in f32 and rounded
/// where the processor has no instructions that oneDNN needs for them (AVX-512): libtorch's own
/// loop takes 30 times as long as the f32 product. Elsewhere nothing changes. Harmless to repeat.
/// Not collective. Threads: one at a time, before others run.
void support_bf16_products();
/// The same on every processor.
void widen_bf16_products();

/// From now on, and for the rest of the process, GELU with a tanh, its gradient and, in the second
/// run of what is recomputed, layer norms (norm_rows.h) of bf16 are computed by kernels that have
/// the bits of libtorch's and take an eighth of their time; where this libtorch has other bits,
/// which is tried once, it keeps its own. Harmless to repeat. Not collective. Threads: one at a
/// time, before others run.
void quicken_bf16();

/// The operators that `support_processor` computes in f32 where libtorch lacks them, by name.
std::vector<std::string> widened_operators();

} // namespace tessera::half
