#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace tessera {

/// The root of every error this library throws. `what()` says what was
/// expected, what was found, where, and what to change.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The user asked for something impossible: names key, value, allowed range.
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// A ConfigError that one rank has printed for all: nobody prints it again.
class ReportedConfigError : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

/// No plan fits, or a plan contradicts itself or the model.
class PlanError : public Error {
 public:
  using Error::Error;
};

/// A tensor or a degree does not divide, or has another shape than agreed.
class ShapeError : public Error {
 public:
  using Error::Error;
};

/// A peer, a message or the communication library failed.
class CommError : public Error {
 public:
  using Error::Error;
};

/// A checkpoint is missing, torn, or belongs to something else.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

/// An exception in the user's own code, carried to another rank with its text.
class UserError : public Error {
 public:
  using Error::Error;
};

/// A broken invariant of the library itself.
class InternalError : public Error {
 public:
  using Error::Error;
};

/// Joins the arguments into one string through their stream operators.
template <typename... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

} // namespace tessera

/// Throws InternalError with the condition and its place when it is false.
#define TESSERA_CHECK(condition, ...)                  \
  do {                                                 \
    if (!(condition)) {                                \
      throw ::tessera::InternalError(::tessera::str(   \
          "internal error: ",                          \
          #condition,                                  \
          " failed at ",                               \
          __FILE__,                                    \
          ":",                                         \
          __LINE__ __VA_OPT__(, ": ", ) __VA_ARGS__)); \
    }                                                  \
  } while (false)
