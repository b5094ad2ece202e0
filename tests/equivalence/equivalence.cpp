// Random models under random strategies equal one process:
//   mpirun -n N equivalence --cases N --seed S [--case K] [--plant E] [--show]
// A case is a pure function of seed, number and ranks; one that fails is
// printed with the options that repeat it alone.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include <mpi.h>

#include <torch/torch.h>

#include "tessera/base/error.h"

#include "tests/equivalence/program.h"
#include "tests/equivalence/strategy.h"
#include "tests/equivalence/train_both.h"

namespace tessera::equivalence {
namespace {

constexpr std::size_t kMostLines = 8;

struct Arguments {
  int cases = 100;
  std::uint64_t seed = 1;
  int only = -1;
  double plant = 0;
  bool show = false;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--show") {
      arguments.show = true;
      continue;
    }
    if (i + 1 == argc) {
      throw std::invalid_argument(name + " needs a value");
    }
    const std::string value = argv[++i];
    if (name == "--cases") {
      arguments.cases = std::stoi(value);
    } else if (name == "--seed") {
      arguments.seed = std::stoull(value);
    } else if (name == "--case") {
      arguments.only = std::stoi(value);
    } else if (name == "--plant") {
      arguments.plant = std::stod(value);
    } else {
      throw std::invalid_argument("unknown option " + name);
    }
  }
  return arguments;
}

struct Ranks {
  int rank = 0;
  int size = 1;
};

double largest(double value) {
  double result = 0;
  MPI_Allreduce(&value, &result, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return result;
}

struct Verdict {
  bool failed = false;
  bool amplifies = false; // rounding, more than can be told from an error
  bool planted = false;
  double worst = 0;
};

Verdict run_case(const Arguments& arguments, const Ranks& ranks, int number) {
  const auto stream = static_cast<std::uint64_t>(number);
  const Tree tree = random_tree(arguments.seed, stream);
  const Strategy strategy = random_strategy(tree, ranks.size, arguments.seed, stream);
  const std::string text =
      str("equivalence: case ",
          number,
          ", repeated by: mpirun -n ",
          ranks.size,
          " equivalence --seed ",
          arguments.seed,
          " --case ",
          number,
          "\n",
          to_text(tree),
          to_text(strategy));
  if (arguments.show && ranks.rank == 0) {
    std::printf("%s", text.c_str());
    std::fflush(stdout);
  }
  Outcome outcome;
  try {
    outcome =
        train_both(tree, strategy, ranks.size, arguments.seed * 100003 + stream, arguments.plant);
  } catch (const UserError& error) { // on all ranks alike
    outcome.differences.push_back(error.what());
  } catch (const PlanError& error) {
    outcome.differences.push_back(error.what());
  } catch (const ConfigError& error) {
    outcome.differences.push_back(error.what());
  } catch (const std::exception& error) {
    // Other ranks may still wait for this one.
    std::fprintf(stderr, "%s[rank %d] %s\n", text.c_str(), ranks.rank, error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  // Another order of sums is worth some last bits.
  constexpr double kSomeBits = 10;
  const auto& differences = outcome.differences;
  const bool rounding =
      !differences.empty() && outcome.shaken > 0 && outcome.worst <= kSomeBits * outcome.shaken;
  Verdict verdict;
  verdict.failed = largest(differences.empty() || rounding ? 0 : 1) > 0;
  verdict.amplifies = !verdict.failed && largest(rounding ? 1 : 0) > 0;
  verdict.planted = largest(outcome.planted ? 1 : 0) > 0;
  verdict.worst = largest(verdict.amplifies ? 0 : outcome.worst);
  const double off = largest(outcome.worst);
  const double shaken = largest(outcome.shaken);
  if (verdict.amplifies && arguments.plant == 0 && ranks.rank == 0) {
    std::printf(
        "equivalence: case %d on %d ranks, seed %llu, amplifies rounding and "
        "says nothing: off by %.1e, and one process by %.1e when the last bit "
        "of its parameters is another\n",
        number,
        ranks.size,
        static_cast<unsigned long long>(arguments.seed),
        off,
        shaken);
    std::fflush(stdout);
  }
  if (!verdict.failed || arguments.plant > 0) {
    return verdict;
  }
  if (ranks.rank == 0) {
    std::fprintf(stderr, "%s", text.c_str());
  }
  MPI_Barrier(MPI_COMM_WORLD);
  for (std::size_t i = 0; i < std::min(differences.size(), kMostLines); ++i) {
    std::fprintf(stderr, "[rank %d] %s\n", ranks.rank, differences[i].c_str());
  }
  MPI_Barrier(MPI_COMM_WORLD);
  return verdict;
}

int run(const Arguments& arguments) {
  Ranks ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &ranks.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks.size);
  const int first = std::max(arguments.only, 0);
  const int end = arguments.only < 0 ? arguments.cases : arguments.only + 1;
  int failed = 0;
  int amplify = 0;
  int missed = 0;
  int planted = 0;
  double worst = 0;
  for (int number = first; number < end; ++number) {
    const Verdict verdict = run_case(arguments, ranks, number);
    failed += verdict.failed ? 1 : 0;
    amplify += verdict.amplifies ? 1 : 0;
    planted += verdict.planted ? 1 : 0;
    missed += verdict.planted && !verdict.failed ? 1 : 0;
    worst = std::max(worst, verdict.worst);
  }
  if (ranks.rank == 0 && arguments.plant > 0) {
    std::printf("equivalence: %d errors planted, %d not found\n", planted, missed);
  } else if (ranks.rank == 0) {
    std::printf(
        "equivalence: %d of %d cases on %d ranks differ, %d amplify rounding; "
        "largest relative error of the others %.1e\n",
        failed,
        end - first,
        ranks.size,
        amplify,
        worst);
  }
  if (arguments.plant > 0) {
    return planted > 0 && missed == 0 ? 0 : 1;
  }
  // Were they many, the generator would be of no use.
  const int most = std::max(1, (end - first) / 100);
  return failed == 0 && end > first && amplify <= most ? 0 : 1;
}

} // namespace
} // namespace tessera::equivalence

int main(int argc, char** argv) {
  tessera::equivalence::Arguments arguments;
  try {
    arguments = tessera::equivalence::parse(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(
        stderr,
        "equivalence: %s\nusage: equivalence [--cases N] [--seed S] [--case K] "
        "[--plant E] [--show]\n",
        error.what());
    return 2;
  }
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  if (provided != MPI_THREAD_MULTIPLE) {
    std::fprintf(stderr, "MPI grants no MPI_THREAD_MULTIPLE\n");
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  torch::set_num_threads(1);
  const int status = tessera::equivalence::run(arguments);
  MPI_Finalize();
  return status;
}
