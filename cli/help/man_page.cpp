#include "cli/help/man_page.h"

#include <algorithm>
#include <cctype>
#include <sstream>

#include "tessera/base/error.h"

namespace tessera::cli {

namespace {

/// Returns text of one line for the body of a page: nothing in it is a command of the formatter,
/// and a minus stays one that can be copied.
std::string text_of(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '\\':
        out += "\\e";
        break;
      case '-':
        out += "\\-";
        break;
      case '\n':
        out += ' ';
        break;
      default:
        out += c;
    }
  }
  const bool command = !out.empty() && (out[0] == '.' || out[0] == '\'');
  return command ? "\\&" + out : out;
}

/// Returns an argument of a macro: in quotes, which are doubled inside.
std::string argument(const std::string& text) {
  std::string out = "\"";
  for (const char c : text_of(text)) {
    out += c == '"' ? "\"\"" : std::string(1, c);
  }
  return out + "\"";
}

std::string bold(const std::string& text) {
  return "\\fB" + text_of(text) + "\\fR";
}

std::string italic(const std::string& text) {
  return "\\fI" + text_of(text) + "\\fR";
}

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) {
    return static_cast<char>(std::toupper(c));
  });
  return text;
}

std::string with_dashes(std::string path) {
  std::replace(path.begin(), path.end(), ' ', '-');
  return path;
}

/// Returns one line: "tessera report [options] runs ...".
std::string synopsis(const DescribedCommand& command) {
  std::string out = bold(command.path);
  const bool options = std::any_of(
      command.options.begin(), command.options.end(), [](auto& o) { return !o.by_position; });
  out += options ? " [" + italic("options") + "]" : "";
  for (const DescribedOption& option : command.options) {
    if (option.by_position) {
      const std::string name = italic(option.names[0]) + (option.repeated ? " ..." : "");
      out += option.required ? " " + name : " [" + name + "]";
    }
  }
  out += command.commands.empty() ? "" : " " + italic("command");
  return out + "\n";
}

/// Returns paragraphs with the options, or with the arguments by position.
std::string options_of(const DescribedCommand& command, bool by_position) {
  std::string out;
  for (const DescribedOption& option : command.options) {
    if (option.by_position != by_position) {
      continue;
    }
    out += ".TP\n";
    std::string names;
    for (const std::string& name : option.names) {
      names += (names.empty() ? "" : ", ") + bold(name);
    }
    std::string choices;
    for (const std::string& choice : option.choices) {
      choices += (choices.empty() ? "" : "|") + choice;
    }
    const std::string value = choices.empty() ? option.value : choices;
    out += names + (value.empty() || by_position ? "" : " " + italic(value));
    out += option.repeated ? " ...\n" : "\n";
    std::string help = option.help.empty() ? "(no description)" : option.help;
    help += by_position && !choices.empty() ? str(" (", choices, ")") : "";
    help += option.initial.empty() ? "" : str(" (default: ", option.initial, ")");
    out += text_of(help) + "\n";
  }
  return out;
}

/// Returns what is printed as it stands, with its line breaks.
std::string as_it_stands(const std::string& text) {
  std::string out = ".nf\n";
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    out += text_of(line) + "\n";
  }
  return out + ".fi\n";
}

std::string section(const char* name, const std::string& content) {
  return content.empty() ? "" : str(".SH ", name, "\n", content);
}

/// Returns the body of a command that stands in the page of the command above it.
std::string inner_command(const DescribedCommand& command) {
  std::string out = ".SS " + argument(command.path) + "\n";
  out += text_of(command.help) + ".\n.PP\n" + synopsis(command);
  out += options_of(command, true) + options_of(command, false);
  if (!command.more.empty()) {
    out += ".PP\n" + as_it_stands(command.more);
  }
  for (const DescribedCommand& below : command.commands) {
    out += inner_command(below);
  }
  return out;
}

std::string begin(const DescribedCommand& command, const std::string& version) {
  const std::string name = with_dashes(command.path);
  std::string help = command.help;
  if (!help.empty() && help.back() == '.') {
    help.pop_back(); // the list of pages that apropos prints has no sentences
  }
  return str(
      ".TH ",
      argument(upper(name)),
      " 1 \"\" ",
      argument(version),
      " ",
      argument("Tessera"),
      "\n",
      // Words are short and options many: no filling with blanks, and no breaking of words.
      ".ad l\n.nh\n",
      section("NAME", str(text_of(name), " \\- ", text_of(help), "\n")),
      section("SYNOPSIS", synopsis(command)));
}

std::string see_also(const std::vector<std::string>& pages) {
  std::string out;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    out += str(".BR ", argument(pages[i]), " (1)", i + 1 == pages.size() ? "" : ",", "\n");
  }
  return section("SEE ALSO", out);
}

std::string program_page(const DescribedCommand& program, const std::string& version) {
  std::string out = begin(program, version);
  std::string commands;
  std::vector<std::string> pages;
  for (const DescribedCommand& command : program.commands) {
    commands += str(".TP\n", bold(command.name), "\n", text_of(command.help), "\n");
    pages.push_back(with_dashes(command.path));
  }
  out += section("COMMANDS", commands);
  out += section("OPTIONS", options_of(program, false));
  out += section(
      "EXIT STATUS",
      "0 for success; 1 for an error; 2 for a wrong command line or configuration; of a training,\n"
      "75 when it stopped with everything saved.\n");
  return out + see_also(pages);
}

std::string command_page(
    const DescribedCommand& command,
    const DescribedCommand& program,
    const std::string& version) {
  std::string out = begin(command, version);
  out += section("ARGUMENTS", options_of(command, true));
  out += section("OPTIONS", options_of(command, false));
  std::string commands;
  for (const DescribedCommand& below : command.commands) {
    commands += inner_command(below);
  }
  out += section("COMMANDS", commands);
  out += section("NOTES", command.more.empty() ? "" : as_it_stands(command.more));
  return out + see_also({program.name});
}

} // namespace

std::vector<std::pair<std::string, std::string>> man_pages(
    const DescribedCommand& program,
    const std::string& version) {
  std::vector<std::pair<std::string, std::string>> pages;
  pages.emplace_back(program.name + ".1", program_page(program, version));
  for (const DescribedCommand& command : program.commands) {
    pages.emplace_back(with_dashes(command.path) + ".1", command_page(command, program, version));
  }
  return pages;
}

} // namespace tessera::cli
