#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace tessera::cli {

/// One option, flag or argument of a command, as completions and man pages need it.
struct DescribedOption {
  std::vector<std::string> names; // "-o", "--output"; one word for an argument by position
  std::string value; // what follows it: "INT", "TEXT"; "" for a flag
  std::vector<std::string> choices; // the only values that are taken; empty: others as well
  std::string help;
  std::string initial; // its value when it is not given, "" for none that can be shown
  bool by_position = false;
  bool required = false;
  bool repeated = false;

  /// A value that is no number and no choice may be a file.
  bool may_be_file() const;
};

/// A command with the commands below it, as its `--help` describes them. What help hides is left
/// out.
struct DescribedCommand {
  std::string name; // "prepare"
  std::string path; // "tessera data prepare"
  std::string help;
  std::string more; // the text at the end of its help
  std::vector<DescribedOption> options; // arguments by position among them, in the order of help
  std::vector<DescribedCommand> commands;
};

/// Describes the program with all its commands.
DescribedCommand describe(const CLI::App& program);

} // namespace tessera::cli
