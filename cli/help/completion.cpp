#include "cli/help/completion.h"

#include <algorithm>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::cli {

namespace {

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size()) {
    text.replace(at, what.size(), by);
  }
  return text;
}

bool is_long(const std::string& name) {
  return name.rfind("--", 0) == 0;
}

std::string words_of(const DescribedCommand& command) {
  std::vector<std::string> words;
  for (const DescribedCommand& below : command.commands) {
    words.push_back(below.name);
  }
  for (const DescribedOption& option : command.options) {
    for (const std::string& name : option.names) {
      if (is_long(name)) {
        words.push_back(name);
      }
    }
  }
  return join(words, " ");
}

/// Returns the path of a command behind the name of the program: " data prepare".
std::string words_before(const DescribedCommand& command) {
  return command.path.substr(command.path.find(' '));
}

// One case for each command and, before it, for each of its own commands.
std::string bash_cases(const DescribedCommand& command) {
  std::string cases;
  for (const DescribedCommand& below : command.commands) {
    cases += bash_cases(below);
    cases += str("    '", words_before(below), "'*) words='", words_of(below), "' ;;\n");
  }
  return cases;
}

/// Quotes a word for zsh and other shells of its family.
std::string shell_quoted(const std::string& text) {
  return "'" + replaced(text, "'", "'\\''") + "'";
}

/// Returns a description without the letters that have a meaning in zsh's specifications.
std::string zsh_words(const std::string& text) {
  std::string out;
  for (const char c : text) {
    out += std::string("[]:\\").find(c) != std::string::npos ? "\\" : "";
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

/// Returns ":what:how to complete it".
std::string zsh_value(const DescribedOption& option) {
  const std::string what = ":" + zsh_words(option.by_position ? option.names[0] : option.value);
  if (!option.choices.empty()) {
    return what + ":(" + join(option.choices, " ") + ")";
  }
  return what + (option.may_be_file() ? ":_files" : ": ");
}

/// Returns one line of _arguments for each name of an option; a name excludes the others.
std::string zsh_option(const DescribedOption& option) {
  if (option.by_position) {
    return str("    ", shell_quoted((option.repeated ? "*" : "") + zsh_value(option)), " \\\n");
  }
  std::string out;
  for (const std::string& name : option.names) {
    const std::string before = option.repeated ? "*" : "(" + join(option.names, " ") + ")";
    const std::string after = option.value.empty() ? "" : is_long(name) ? "=" : "+";
    const std::string value = option.value.empty() ? "" : zsh_value(option);
    out +=
        str("    ",
            shell_quoted(str(before, name, after, "[", zsh_words(option.help), "]", value)),
            " \\\n");
  }
  return out;
}

std::string zsh_name(const DescribedCommand& command) {
  return "_" + replaced(replaced(command.path, " ", "_"), "-", "_");
}

/// Returns a function for a command, behind those of the commands below it.
std::string zsh_functions(const DescribedCommand& command) {
  std::string out;
  std::string names;
  std::string cases;
  for (const DescribedCommand& below : command.commands) {
    out += zsh_functions(below);
    names += str("        ", shell_quoted(below.name + ":" + below.help), "\n");
    cases += str("        ", below.name, ") ", zsh_name(below), " ;;\n");
  }
  out += zsh_name(command) + "() {\n";
  std::string options;
  for (const DescribedOption& option : command.options) {
    options += zsh_option(option);
  }
  if (command.commands.empty()) {
    // The empty line ends what the last option goes on with.
    return out + "  _arguments -s \\\n" + options + "\n}\n\n";
  }
  return str(
      out,
      "  local curcontext=\"$curcontext\" state line\n"
      "  _arguments -C \\\n",
      options,
      "    '1:command:->command' '*::argument:->argument'\n"
      "  case $state in\n"
      "    command)\n"
      "      local -a commands\n"
      "      commands=(\n",
      names,
      "      )\n"
      "      _describe command commands ;;\n"
      "    argument)\n"
      "      case $line[1] in\n",
      cases,
      "      esac ;;\n"
      "  esac\n"
      "}\n\n");
}

std::string fish_quoted(const std::string& text) {
  const std::string one_line = replaced(text, "\n", " ");
  return "'" + replaced(replaced(one_line, "\\", "\\\\"), "'", "\\'") + "'";
}

/// Returns the condition under which words of a command are completed: its own words have been
/// typed, and none of those below it.
std::string fish_condition(const DescribedCommand& command, bool before_commands) {
  std::vector<std::string> parts;
  std::string words = command.path.substr(std::min(command.path.find(' '), command.path.size()));
  for (std::size_t begin = 0; begin < words.size();) {
    const std::size_t end = std::min(words.find(' ', begin + 1), words.size());
    parts.push_back("__fish_seen_subcommand_from" + words.substr(begin, end - begin));
    begin = end;
  }
  if (before_commands && !command.commands.empty()) {
    std::string below = "not __fish_seen_subcommand_from";
    for (const DescribedCommand& one : command.commands) {
      below += " " + one.name;
    }
    parts.push_back(below);
  }
  return parts.empty() ? "" : "-n " + shell_quoted(join(parts, "; and ")) + " ";
}

std::string fish_lines(const std::string& program, const DescribedCommand& command) {
  std::string out;
  const std::string begin = str("complete -c ", program, " ", fish_condition(command, true));
  for (const DescribedCommand& below : command.commands) {
    out += str(begin, "-f -a ", below.name, " -d ", fish_quoted(below.help), "\n");
  }
  for (const DescribedOption& option : command.options) {
    std::string line = begin;
    if (option.by_position) {
      if (option.choices.empty()) {
        continue; // files, which fish completes by itself
      }
      line += "-f ";
    }
    for (const std::string& name : option.names) {
      if (!option.by_position) {
        line += is_long(name) ? "-l " + name.substr(2) + " " : "-s " + name.substr(1) + " ";
      }
    }
    if (!option.choices.empty()) {
      line +=
          str(option.by_position ? "" : "-x ", "-a ", fish_quoted(join(option.choices, " ")), " ");
    } else if (!option.value.empty()) {
      line += option.may_be_file() ? "-r " : "-x ";
    }
    out += line + "-d " + fish_quoted(option.help) + "\n";
  }
  for (const DescribedCommand& below : command.commands) {
    out += fish_lines(program, below);
  }
  return out;
}

} // namespace

std::string bash_completion(const DescribedCommand& program) {
  const std::string& name = program.name;
  return str(
      "_",
      name,
      "() {\n"
      "  local words line=\"${COMP_WORDS[*]:1:COMP_CWORD-1}\"\n"
      "  case \" $line\" in\n",
      bash_cases(program),
      "    *) words='",
      words_of(program),
      "' ;;\n"
      "  esac\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"${COMP_WORDS[COMP_CWORD]}\"))\n"
      "}\n"
      "complete -o default -F _",
      name,
      " ",
      name,
      "\n");
}

std::string zsh_completion(const DescribedCommand& program) {
  const std::string function = zsh_name(program);
  // As a file in $fpath it is the function's body, and ends by calling it; sourced, it names it.
  return str(
      "#compdef ",
      program.name,
      "\n\n",
      zsh_functions(program),
      "if [ \"$funcstack[1]\" = ",
      function,
      " ]; then\n  ",
      function,
      " \"$@\"\nelse\n  compdef ",
      function,
      " ",
      program.name,
      "\nfi\n");
}

std::string fish_completion(const DescribedCommand& program) {
  return fish_lines(program.name, program);
}

} // namespace tessera::cli
