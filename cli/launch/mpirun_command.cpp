#include "cli/launch/mpirun_command.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <set>
#include <sstream>

#include "tessera/base/error.h"

#include "cli/launch/rank_script.h"

namespace tessera::cli {

namespace {

int positive(const std::string& text, const std::string& what) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end || value < 1) {
    throw ConfigError(str(what, " must be a positive integer, found '", text, "'"));
  }
  return value;
}

/// Returns the name of an option: "--mca" and "-mca" are "mca"; -np and -c are -n.
std::string bare(const std::string& option) {
  const std::string name = option.substr(option.find_first_not_of('-'));
  return name == "np" || name == "c" ? "n" : name;
}

/// The options that the user gave, as "bind-to", "mca NAME" or "x VARIABLE".
struct UserOptions {
  std::set<std::string> given;
  std::optional<int> ranks;
};

UserOptions read_user_options(const std::vector<std::string>& words) {
  UserOptions user;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i].size() < 2 || words[i][0] != '-' ||
        words[i].find_first_not_of('-') == std::string::npos) {
      continue; // a value
    }
    const std::string name = bare(words[i]);
    const bool has_value = i + 1 < words.size();
    if ((name == "mca" || name == "gmca") && has_value) {
      user.given.insert("mca " + words[i + 1]);
      i += 2;
    } else if (name == "x" && has_value) {
      user.given.insert("x " + words[i + 1].substr(0, words[i + 1].find('=')));
      i += 1;
    } else {
      user.given.insert(name);
      if (name == "n" && has_value) {
        user.ranks = positive(words[i + 1], "custom_mpi_options: '-n'");
      }
    }
  }
  return user;
}

/// Collects the options of mpirun that the user has not given.
class Options {
 public:
  explicit Options(const std::set<std::string>& given) : given_(given) {}

  /// Adds `words` unless the user gave `key` or one of `others`.
  void put(
      const std::string& key,
      const std::vector<std::string>& words,
      const std::vector<std::string>& others = {}) {
    bool replaced = given_.count(key) > 0;
    for (const std::string& other : others) {
      replaced = replaced || given_.count(other) > 0;
    }
    if (!replaced) {
      words_.insert(words_.end(), words.begin(), words.end());
    }
  }
  void mca(const std::string& name, const std::string& value) {
    put("mca " + name, {"--mca", name, value});
  }
  const std::vector<std::string>& words() const {
    return words_;
  }

 private:
  const std::set<std::string>& given_;
  std::vector<std::string> words_;
};

struct Layout {
  int ranks = 0;
  int most_on_a_host = 0;
  bool over_slots = false;
};

/// Returns how mpirun will place the ranks: it fills the slots of one host after the
/// other, or puts processes_per_host on each.
/// Throws: ConfigError when the number of ranks is unknown or too large.
Layout
lay_out(const LaunchRequest& request, const UserOptions& user, const std::vector<Host>& hosts) {
  std::optional<int> ranks = user.ranks ? user.ranks : request.ranks;
  const auto host_count = static_cast<int>(hosts.size());
  if (!ranks && request.processes_per_host) {
    ranks = host_count * *request.processes_per_host;
  }
  if (!ranks) {
    throw ConfigError(
        "the number of ranks is not known: give -n, or processes_per_host in "
        "the configuration's \"mpi\"");
  }
  Layout layout;
  layout.ranks = *ranks;
  if (request.processes_per_host) {
    const int room = host_count * *request.processes_per_host;
    if (*ranks > room) {
      throw ConfigError(
          str("-n ",
              *ranks,
              " ranks do not fit: processes_per_host is ",
              *request.processes_per_host,
              " and there ",
              host_count == 1 ? "is 1 host" : str("are ", host_count, " hosts"),
              "; give at most -n ",
              room));
    }
    layout.most_on_a_host = std::min(*ranks, *request.processes_per_host);
    for (const Host& host : hosts) {
      layout.over_slots = layout.over_slots || layout.most_on_a_host > host.slots;
    }
    return layout;
  }
  int left = *ranks;
  for (const Host& host : hosts) {
    const int here = std::min(left, host.slots);
    layout.most_on_a_host = std::max(layout.most_on_a_host, here);
    left -= here;
  }
  if (left > 0) {
    // mpirun distributes the rest over the hosts in turn.
    layout.over_slots = true;
    layout.most_on_a_host += (left + host_count - 1) / host_count;
  }
  return layout;
}

} // namespace

std::vector<Host> parse_hostfile(const std::string& text, const std::string& path) {
  std::vector<Host> hosts;
  std::map<std::string, int> lines_with_slots; // by host
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string word;
    if (!(words >> word)) {
      continue;
    }
    const std::string place = str(path, ": line ", number, ": slots");
    Host host;
    bool says_slots = false;
    const auto colon = word.find(':');
    host.name = word.substr(0, colon);
    if (colon != std::string::npos) {
      host.slots = positive(word.substr(colon + 1), place);
      says_slots = true;
    }
    while (words >> word) {
      const auto equals = word.find('=');
      const std::string key = word.substr(0, equals);
      if (equals == std::string::npos ||
          (key != "slots" && key != "max_slots" && key != "max-slots")) {
        throw ConfigError(
            str(path, ": line ", number, ": expected slots=N or max_slots=N, found '", word, "'"));
      }
      const int value = positive(word.substr(equals + 1), place);
      if (key == "slots") {
        host.slots = value;
        says_slots = true;
      }
    }
    // mpirun refuses it, but its reason is lost with the rest of what it says of hosts.
    if (says_slots) {
      const auto [first, is_new] = lines_with_slots.emplace(host.name, number);
      if (!is_new) {
        throw ConfigError(
            str(path,
                ": line ",
                number,
                ": the host '",
                host.name,
                "' has its slots on line ",
                first->second,
                " already; write it once, with their sum"));
      }
    }
    hosts.push_back(host);
  }
  if (hosts.empty()) {
    throw ConfigError(str(path, ": names no host; write one a line, as 'node1 slots=4'"));
  }
  return hosts;
}

std::vector<std::string> split_words(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  char quote = '\0';
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\\' && quote != '\'' && i + 1 < text.size()) {
      word += text[++i];
      in_word = true;
    } else if (quote != '\0') {
      if (c == quote) {
        quote = '\0';
      } else {
        word += c;
      }
    } else if (c == '\'' || c == '"') {
      quote = c;
      in_word = true;
    } else if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      if (in_word) {
        words.push_back(word);
      }
      word.clear();
      in_word = false;
    } else {
      word += c;
      in_word = true;
    }
  }
  if (quote != '\0') {
    throw ConfigError(str("custom_mpi_options: a quote (", quote, ") is not closed: ", text));
  }
  if (in_word) {
    words.push_back(word);
  }
  return words;
}

std::vector<std::string> mpirun_command(const LaunchRequest& request, const Machine& machine) {
  if (request.program.empty()) {
    throw ConfigError("no program: write tessera launch -n N -- PROGRAM ...");
  }
  const auto user_words = split_words(request.custom_mpi_options);
  const UserOptions user = read_user_options(user_words);
  const bool alone = request.hostfile.empty();
  const std::vector<Host> hosts = alone ? std::vector<Host>{{"localhost", machine.cores}}
                                        : parse_hostfile(request.hostfile_text, request.hostfile);
  const Layout layout = lay_out(request, user, hosts);
  const bool crowded = layout.most_on_a_host > machine.cores;

  Options options(user.given);
  options.put("n", {"-n", str(layout.ranks)});
  if (!alone) {
    options.put("hostfile", {"--hostfile", request.hostfile}, {"machinefile", "host", "H"});
  }
  if (request.processes_per_host && !alone) {
    options.put(
        "map-by",
        {"--map-by", str("ppr:", *request.processes_per_host, ":node")},
        {"npernode", "N", "ppr"});
  }
  if (machine.root) {
    options.put("allow-run-as-root", {"--allow-run-as-root"});
  }
  if (crowded || layout.over_slots) {
    options.put("oversubscribe", {"--oversubscribe"}, {"nooversubscribe"});
  }
  // mpirun would bind a rank to one core, which all threads of the rank would share; the ranks'
  // script gives each its share of a host's cores.
  options.put(
      "bind-to",
      {"--bind-to", "none", "-x", "TESSERA_SHARE_CORES=1"},
      {"bind-to-core", "bind-to-socket", "cpu-set", "rankfile", "rf"});
  if (crowded) {
    // A rank that waits must yield its core to one that computes.
    options.mca("mpi_yield_when_idle", "1");
  }
  // The script reports in one line which rank failed, and how; without -q mpirun adds
  // twelve. Its other messages stay.
  options.put("q", {"-q"}, {"quiet", "v", "verbose"});
  // Containers forbid copies between processes, about which Open MPI would warn in every run.
  options.mca("btl_vader_single_copy_mechanism", "none");
  if (request.threads_are_set) {
    options.put("x OMP_NUM_THREADS", {"-x", "OMP_NUM_THREADS"});
  } else {
    const int threads = std::max(1, machine.cores / layout.most_on_a_host);
    options.put("x OMP_NUM_THREADS", {"-x", str("OMP_NUM_THREADS=", threads)});
  }
  // The kernel is for this machine's processor; other hosts may have other ones.
  if (alone && !request.blas_kernel.empty()) {
    options.put("x OPENBLAS_CORETYPE", {"-x", "OPENBLAS_CORETYPE=" + request.blas_kernel});
  }
  for (const std::string& name : request.passed_on) {
    options.put("x " + name, {"-x", name});
  }
  if (request.restart > 0) {
    options.put("x TESSERA_RESTART", {"-x", str("TESSERA_RESTART=", request.restart)});
  }
  std::vector<std::string> command = {"mpirun"};
  const auto append = [&command](const std::vector<std::string>& words) {
    command.insert(command.end(), words.begin(), words.end());
  };
  append(options.words());
  append(user_words);
  append({"/bin/sh", "-c", kRankScript, "tessera-rank"});
  append(request.program);
  return command;
}

std::string quoted(const std::vector<std::string>& command) {
  constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
      "_-+=./:,@%^";
  std::string line;
  for (const std::string& word : command) {
    line += line.empty() ? "" : " ";
    if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) {
      line += word;
      continue;
    }
    line += '\'';
    for (const char c : word) {
      line += c == '\'' ? "'\\''" : std::string(1, c);
    }
    line += '\'';
  }
  return line;
}

} // namespace tessera::cli
