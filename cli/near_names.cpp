#include "cli/near_names.h"

#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::cli {

namespace {

/// The command that the line came to: `data prepare` of `tessera data prepare`.
const CLI::App& deepest(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().back();
  }
  return *at;
}

std::vector<std::string> names_of(const CLI::App& app, bool options) {
  std::vector<std::string> names;
  if (options) {
    for (const CLI::Option* option : app.get_options()) {
      for (const std::string& name : option->get_lnames()) {
        names.push_back("--" + name);
      }
    }
    return names;
  }
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!command->get_name().empty()) { // a group of options has none
      names.push_back(command->get_name());
    }
  }
  return names;
}

} // namespace

std::string near_names(const CLI::App& app) {
  const CLI::App& command = deepest(app);
  std::string text;
  for (const std::string& word : app.remaining(true)) {
    const bool option = word.size() > 2 && word[0] == '-';
    // A value belongs to the word: --resum=x.
    const std::string name = option ? word.substr(0, word.find('=')) : word;
    const auto names = names_of(command, option);
    if (names.empty()) {
      continue;
    }
    const std::string closest = nearest(name, names);
    // Half of a word's letters may be wrong, but not more.
    const int letters = static_cast<int>(name.size()) - (option ? 2 : 0);
    const int distance = edit_distance(name, closest);
    if (distance > 0 && distance <= std::max(1, letters / 3)) {
      text += str("'", name, "': did you mean ", closest, "?\n");
    } else if (!option && distance > 0 && text.empty()) {
      text = str("'", name, "' is no command");
      for (const std::string& other : names) {
        text += str(other == names.front() ? "; there are " : ", ", other);
      }
      text += "\n";
    }
  }
  return text;
}

} // namespace tessera::cli
