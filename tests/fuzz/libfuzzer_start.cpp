// What a target linked with libFuzzer needs besides libFuzzer's own main:
//   PROGRAM --write-seeds FOLDER    writes the target's seeds as files and ends
// at the end of every run, how many inputs were accepted and refused; and
// besides libFuzzer's own changes those of mutate.h, which keep more inputs
// valid.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/mutate.h"

namespace {

void print_counts() {
  std::fprintf(
      stderr, "%ld accepted, %ld refused\n", tessera::fuzz::accepted(), tessera::fuzz::refused());
}

void write_seeds(const std::string& folder) {
  int number = 0;
  for (const std::string& seed : tessera::fuzz::seeds()) {
    const long before = tessera::fuzz::accepted();
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(seed.data()), seed.size());
    if (tessera::fuzz::accepted() == before) {
      tessera::fuzz::broken("a seed is accepted");
    }
    std::ofstream file(folder + "/seed_" + std::to_string(number++), std::ios::binary);
    file << seed << std::flush;
    if (!file) {
      std::fprintf(stderr, "fuzz: cannot write into %s\n", folder.c_str());
      std::exit(2);
    }
  }
}

} // namespace

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

extern "C" std::size_t
LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  std::mt19937_64 random(seed);
  if (random() % 2 == 0) {
    return LLVMFuzzerMutate(data, size, most);
  }
  const std::string changed =
      tessera::fuzz::mutated({std::string(reinterpret_cast<const char*>(data), size)}, 0, random);
  const std::size_t kept = std::min(changed.size(), most);
  std::copy_n(changed.data(), kept, reinterpret_cast<char*>(data));
  return kept;
}

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc == 3 && std::strcmp((*argv)[1], "--write-seeds") == 0) {
    write_seeds((*argv)[2]);
    std::exit(0);
  }
  std::atexit(print_counts);
  return 0;
}
