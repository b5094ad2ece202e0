// What a target linked with libFuzzer needs besides libFuzzer's own main:
//   PROGRAM --write-seeds FOLDER    writes the target's seeds as files and ends
// and, at the end of every run, how many inputs were accepted and refused.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "tests/fuzz/fuzz.h"

namespace {

void print_counts() {
  std::fprintf(
      stderr,
      "%ld accepted, %ld refused\n",
      tessera::fuzz::accepted(),
      tessera::fuzz::refused());
}

void write_seeds(const std::string& folder) {
  int number = 0;
  for (const std::string& seed : tessera::fuzz::seeds()) {
    const long before = tessera::fuzz::accepted();
    LLVMFuzzerTestOneInput(
        reinterpret_cast<const std::uint8_t*>(seed.data()), seed.size());
    if (tessera::fuzz::accepted() == before) {
      tessera::fuzz::broken("a seed is accepted");
    }
    std::ofstream file(
        folder + "/seed_" + std::to_string(number++), std::ios::binary);
    file << seed << std::flush;
    if (!file) {
      std::fprintf(stderr, "fuzz: cannot write into %s\n", folder.c_str());
      std::exit(2);
    }
  }
}

} // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc == 3 && std::strcmp((*argv)[1], "--write-seeds") == 0) {
    write_seeds((*argv)[2]);
    std::exit(0);
  }
  std::atexit(print_counts);
  return 0;
}
