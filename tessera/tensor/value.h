#pragma once

/// Says how a C++ type travels between ranks: to and from c10::IValue. Arguments and results of a
/// module call and inputs and outputs of a step all go through `tessera::Value`. Built in are
///
/// - tensors, numbers, enums, strings, c10::IValue (value_core.h);
/// - structs of 1 to 12 public fields without constructors, bases, references and C arrays, whose
///   fields are of these types (value_core.h);
/// - optional, vector, array, pair, tuple, variant, map and set of these (value_containers.h);
/// - the types that libtorch's layers take and return (value_torch.h).
///
/// Any other type of the user's own opts in by a specialisation:
///
///     template <>
///     struct tessera::Value<MyOutput> {
///       static c10::IValue pack(const MyOutput& v) {
///         return tessera::pack(std::make_tuple(v.logits(), v.mask()));
///       }
///       static MyOutput unpack(const c10::IValue& v) {
///         auto [logits, mask] = tessera::unpack<std::tuple<at::Tensor, at::Tensor>>(v);
///         return MyOutput(logits, mask);
///       }
///     };
///
/// A specialisation takes precedence over the built-in conversions, for a struct as well.
/// Threads: any thread. Not collective.
#include "tessera/tensor/map_tensors.h"
#include "tessera/tensor/value_containers.h"
#include "tessera/tensor/value_core.h"
#include "tessera/tensor/value_torch.h"
