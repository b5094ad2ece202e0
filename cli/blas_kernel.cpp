#include "cli/blas_kernel.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <map>
#include <sstream>

#include <dlfcn.h>

namespace tessera::cli {

namespace {

// Vector width class of each kernel set of OpenBLAS 0.3 for x86-64.
enum : int { kSse = 0, kAvx = 1, kAvx2 = 2, kAvx512 = 3 };

std::optional<int> width_class(std::string kernel) {
  static const std::map<std::string, int> kKnown = {
      {"prescott", kSse},    {"core2", kSse},         {"penryn", kSse},
      {"dunnington", kSse},  {"nehalem", kSse},       {"atom", kSse},
      {"nano", kSse},        {"opteron", kSse},       {"opteron_sse3", kSse},
      {"barcelona", kSse},   {"bobcat", kSse},        {"sandybridge", kAvx},
      {"bulldozer", kAvx},   {"piledriver", kAvx},    {"steamroller", kAvx},
      {"excavator", kAvx2},  {"haswell", kAvx2},      {"zen", kAvx2},
      {"skylakex", kAvx512}, {"cooperlake", kAvx512}, {"sapphirerapids", kAvx512}};
  std::transform(kernel.begin(), kernel.end(), kernel.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  const auto found = kKnown.find(kernel);
  return found == kKnown.end() ? std::nullopt : std::optional(found->second);
}

} // namespace

std::set<std::string> processor_features() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const auto colon = line.find(':');
    if (line.rfind("flags", 0) == 0 && colon != std::string::npos) {
      std::istringstream words(line.substr(colon + 1));
      std::set<std::string> features;
      std::string word;
      while (words >> word) {
        features.insert(word);
      }
      return features;
    }
  }
  return {};
}

std::string picked_blas_kernel() {
  constexpr const char* kName = "openblas_get_corename";
  void* found = dlsym(RTLD_DEFAULT, kName); // which is a null pointer too
  if (found == nullptr) {
    // This process has no libtorch; what one would load says the same.
    void* library = dlopen("libblas.so.3", RTLD_LAZY | RTLD_LOCAL);
    found = library == nullptr ? nullptr : dlsym(library, kName);
  }
  return found == nullptr ? "" : reinterpret_cast<char* (*)()>(found)();
}

std::optional<std::string> better_blas_kernel(
    const std::string& picked,
    const std::set<std::string>& features) {
  const std::optional<int> have = width_class(picked);
  if (!have) {
    return std::nullopt;
  }
  const auto has = [&features](const char* name) { return features.count(name) > 0; };
  if (*have < kAvx512 && has("avx512f") && has("avx512dq") && has("avx512bw") && has("avx512vl") &&
      has("avx512cd")) {
    return "SkylakeX";
  }
  if (*have < kAvx2 && has("avx2") && has("fma")) {
    return "Haswell";
  }
  if (*have < kAvx && has("avx")) {
    return "Sandybridge";
  }
  return std::nullopt;
}

} // namespace tessera::cli
