// Runs a fuzz target on mutations of its seeds, the same ones every time, with
// any compiler and sanitizer. usage:
//   PROGRAM [--seconds S] [--iterations N] [--seed N]     random inputs
//   PROGRAM FILE...                                       these inputs
// Stops at S seconds or N inputs, whichever comes first. An input that fails is
// written to ./fuzz-failure-PROGRAM before the process ends.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>

#include <unistd.h>

#include <fcntl.h>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/mutate.h"

namespace {

using Clock = std::chrono::steady_clock;

// For the signal handler: the input that runs now.
const char* current_data = nullptr;
std::size_t current_size = 0;
char failure_file[256] = "fuzz-failure";

void save_input() {
  const int file = open(failure_file, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (file >= 0 && current_data != nullptr) {
    [[maybe_unused]] const auto written = write(file, current_data, current_size);
    close(file);
  }
}

void on_signal(int number) {
  save_input();
  std::signal(number, SIG_DFL);
  std::raise(number);
}

[[noreturn]] void fail(const std::string& what) {
  save_input();
  std::fprintf(
      stderr,
      "fuzz: %s; the input of %zu bytes is in %s\n",
      what.c_str(),
      current_size,
      failure_file);
  std::exit(1);
}

void run_one(const std::string& input) {
  // One input takes microseconds; this long means that its size does not bound
  // the work (sanitizers and a busy machine included).
  constexpr std::chrono::seconds kTooLong(10);
  current_data = input.data();
  current_size = input.size();
  const auto begin = Clock::now();
  try {
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
  } catch (const std::exception& error) {
    fail(std::string("an error of another type left the target: ") + error.what());
  }
  if (Clock::now() - begin > kTooLong) {
    fail("one input took more than 10 s");
  }
}

int replay(int count, char** files) {
  for (int i = 0; i < count; ++i) {
    std::ifstream file(files[i], std::ios::binary);
    if (!file) {
      std::fprintf(stderr, "fuzz: cannot read %s\n", files[i]);
      return 2;
    }
    run_one({std::istreambuf_iterator<char>(file), {}});
  }
  std::printf("%d files\n", count);
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  const char* slash = std::strrchr(argv[0], '/');
  std::snprintf(
      failure_file,
      sizeof(failure_file),
      "fuzz-failure-%s",
      slash == nullptr ? argv[0] : slash + 1);
  for (const int number : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL}) {
    std::signal(number, on_signal);
  }
  double seconds = 3;
  unsigned long long iterations = 100'000;
  unsigned long long seed = 1;
  int next = 1;
  for (; next + 1 < argc && std::strncmp(argv[next], "--", 2) == 0; next += 2) {
    const std::string option = argv[next];
    if (option == "--seconds") {
      seconds = std::atof(argv[next + 1]);
    } else if (option == "--iterations") {
      iterations = std::strtoull(argv[next + 1], nullptr, 10);
    } else if (option == "--seed") {
      seed = std::strtoull(argv[next + 1], nullptr, 10);
    } else {
      std::fprintf(stderr, "fuzz: unknown option %s\n", option.c_str());
      return 2;
    }
  }
  if (next < argc) {
    return replay(argc - next, argv + next);
  }

  const auto seeds = tessera::fuzz::seeds();
  for (const std::string& input : seeds) {
    const long before = tessera::fuzz::accepted();
    run_one(input);
    if (tessera::fuzz::accepted() == before) {
      fail("a seed is refused");
    }
  }
  const auto seeds_accepted = tessera::fuzz::accepted();
  std::mt19937_64 random(seed);
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  unsigned long long done = 0;
  for (; done < iterations && Clock::now() < end; ++done) {
    run_one(tessera::fuzz::mutated(seeds, random() % seeds.size(), random));
  }
  const long accepted = tessera::fuzz::accepted() - seeds_accepted;
  std::printf(
      "%zu seeds, %llu mutations: %ld accepted, %ld refused\n",
      seeds.size(),
      done,
      accepted,
      tessera::fuzz::refused());
  // Otherwise one side of the code was not reached, and this shows nothing.
  if (done > 1000 && (accepted == 0 || tessera::fuzz::refused() == 0)) {
    std::fprintf(stderr, "fuzz: the mutations reach one side only\n");
    return 1;
  }
  return 0;
}
