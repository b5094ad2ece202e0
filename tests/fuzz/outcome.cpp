#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/fuzz.h"

namespace tessera::fuzz {

namespace {
long accepted_count = 0;
long refused_count = 0;
} // namespace

void count(bool accepted) {
  ++(accepted ? accepted_count : refused_count);
}

long accepted() {
  return accepted_count;
}

long refused() {
  return refused_count;
}

void broken(const std::string& promise) {
  std::fprintf(stderr, "fuzz: broken promise: %s\n", promise.c_str());
  std::abort();
}

} // namespace tessera::fuzz
