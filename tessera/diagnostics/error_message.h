#pragma once

#include <exception>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::diagnostics {

/// How the text of an error that has an origin begins: "rank 2, ...".
inline constexpr std::string_view kOriginPrefix = "rank ";

/// The exception's own text. One of libtorch's comes without its C++ stack unless
/// the environment has TORCH_SHOW_CPP_STACKTRACES=1.
/// Threads: any thread. Not collective.
std::string message_of(const std::exception_ptr& error);

/// The rank that a text names as its origin; nullopt for other texts.
/// Threads: any thread. Not collective.
std::optional<int> origin_of(const std::string& text);

} // namespace tessera::diagnostics
