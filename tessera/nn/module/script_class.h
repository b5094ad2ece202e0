#pragma once

#include <string>
#include <typeinfo>

#include <torch/nn/module.h>

namespace tessera::nn {

/// Names the class of the script behind an object whose own class is the library's.
class ScriptClass {
 public:
  virtual const std::type_info& script_class() const = 0;

 protected:
  ~ScriptClass() = default;
};

/// The class that the script wrote: NetImpl, not what a holder made of it.
const std::type_info& script_class(const torch::nn::Module& module);

/// "torch::nn::LinearImpl", "(anonymous namespace)::NetImpl".
std::string script_class_name(const torch::nn::Module& module);

/// Class name without namespace and "Impl", for people: "GPTBlock".
std::string type_name(const torch::nn::Module& module);

} // namespace tessera::nn
