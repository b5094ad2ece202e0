#include "cli/help/completion.h"

#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::cli {

namespace {

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::string words_of(const CLI::App& app) {
  std::vector<std::string> words;
  for (const CLI::App* command : commands_of(app)) {
    words.push_back(command->get_name());
  }
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      words.push_back("--" + name);
    }
  }
  return join(words, " ");
}

// One case for each command and, before it, for each of its own commands.
std::string cases_of(const CLI::App& app, const std::string& path) {
  std::string cases;
  for (const CLI::App* command : commands_of(app)) {
    const std::string deeper = path + " " + command->get_name();
    cases += cases_of(*command, deeper);
    cases += str("    '", deeper, "'*) words='", words_of(*command), "' ;;\n");
  }
  return cases;
}

} // namespace

std::string bash_completion(const CLI::App& program) {
  const std::string name = program.get_name();
  return str(
      "_",
      name,
      "() {\n"
      "  local words line=\"${COMP_WORDS[*]:1:COMP_CWORD-1}\"\n"
      "  case \" $line\" in\n",
      cases_of(program, ""),
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

} // namespace tessera::cli
