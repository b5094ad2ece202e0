// Random models under random strategies equal one process:
//   mpirun -n N equivalence --cases N --seed S [--case K] [--features LIST] [--always FEATURE]
//       [--plant E] [--plant-in WHAT] [--show]
// A case is a pure function of seed, number, ranks and features; one that fails is
// printed with the options that repeat it alone.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>

#include <mpi.h>

#include <torch/torch.h>

#include "tessera/base/error.h"

#include "tests/equivalence/case.h"
#include "tests/equivalence/train_both.h"

namespace tessera::equivalence {
namespace {

constexpr std::size_t kMostLines = 8;

struct Arguments {
  int cases = 100;
  std::uint64_t seed = 1;
  int only = -1;
  Wishes wishes = {features_of("all"), {}};
  Plant plant;
  bool show = false;
};

Feature one_feature(const std::string& word) {
  const Features features = features_of(word);
  if (features.size() != 1) {
    throw std::invalid_argument("--always takes one feature");
  }
  return *features.begin();
}

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
    } else if (name == "--features") {
      arguments.wishes.allowed = features_of(value);
    } else if (name == "--always") {
      arguments.wishes.always = one_feature(value);
    } else if (name == "--plant") {
      arguments.plant.relative = std::stod(value);
    } else if (name == "--plant-in") {
      arguments.plant.what = value;
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
  Features has;
  bool failed = false;
  bool amplifies = false; // rounding, more than can be told from an error
  bool planted = false;
  double worst = 0;
};

std::string options_of(const Wishes& wishes) {
  std::string text;
  if (wishes.allowed.size() != all_features().size()) {
    text += " --features " + to_text(wishes.allowed);
  }
  if (wishes.always) {
    text += " --always " + to_text(*wishes.always);
  }
  return text;
}

Verdict run_case(const Arguments& arguments, const Ranks& ranks, int number) {
  const auto stream = static_cast<std::uint64_t>(number);
  const Case one = random_case(arguments.seed, stream, ranks.size, arguments.wishes);
  if (arguments.wishes.always && !one.has.contains(*arguments.wishes.always)) {
    return {}; // impossible for its tree or these ranks
  }
  const std::string text =
      str("equivalence: case ",
          number,
          ", repeated by: mpirun -n ",
          ranks.size,
          " equivalence --seed ",
          arguments.seed,
          " --case ",
          number,
          options_of(arguments.wishes),
          "\n",
          to_text(one));
  if (arguments.show && ranks.rank == 0) {
    std::printf("%s", text.c_str());
    std::fflush(stdout);
  }
  Outcome outcome;
  try {
    outcome = train_both(one, ranks.size, arguments.seed * 100003 + stream, arguments.plant);
  } catch (const UserError& error) { // on all ranks alike
    outcome.differences.push_back(error.what());
  } catch (const PlanError& error) {
    outcome.differences.push_back(error.what());
  } catch (const ConfigError& error) {
    outcome.differences.push_back(error.what());
  } catch (const CheckpointError& error) {
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
      !differences.empty() &&
      (outcome.diverges || (outcome.shaken > 0 && outcome.worst <= kSomeBits * outcome.shaken));
  Verdict verdict;
  verdict.has = one.has;
  verdict.failed = largest(differences.empty() || rounding ? 0 : 1) > 0;
  verdict.amplifies = !verdict.failed && largest(rounding ? 1 : 0) > 0;
  verdict.planted = largest(outcome.planted ? 1 : 0) > 0;
  verdict.worst = largest(verdict.amplifies || verdict.failed ? 0 : outcome.worst);
  const double off = largest(outcome.worst);
  const double shaken = largest(outcome.shaken);
  if (verdict.amplifies && arguments.plant.relative == 0 && ranks.rank == 0) {
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
  if (!verdict.failed || arguments.plant.relative > 0) {
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
  std::map<Feature, int> with;
  for (int number = first; number < end; ++number) {
    const Verdict verdict = run_case(arguments, ranks, number);
    for (const Feature feature : verdict.has) {
      ++with[feature];
    }
    failed += verdict.failed ? 1 : 0;
    amplify += verdict.amplifies ? 1 : 0;
    planted += verdict.planted ? 1 : 0;
    missed += verdict.planted && !verdict.failed ? 1 : 0;
    worst = std::max(worst, verdict.worst);
  }
  if (ranks.rank == 0 && arguments.plant.relative > 0) {
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
    for (const auto& [feature, cases] : with) {
      std::printf("  %d with %s\n", cases, to_text(feature).c_str());
    }
  }
  if (arguments.plant.relative > 0) {
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
        "[--features LIST] [--always FEATURE] [--plant E] [--plant-in WHAT] [--show]\n",
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
