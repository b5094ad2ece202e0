#include "cli/help/described.h"

#include <algorithm>
#include <sstream>

namespace tessera::cli {

namespace {

/// Returns the words of "TEXT:{a,b,c}", which is how CLI11 says that nothing else is taken.
std::vector<std::string> choices_of(const std::string& type) {
  const std::size_t begin = type.find('{');
  if (begin == std::string::npos || type.back() != '}') {
    return {};
  }
  std::vector<std::string> choices;
  std::istringstream words(type.substr(begin + 1, type.size() - begin - 2));
  for (std::string word; std::getline(words, word, ',');) {
    choices.push_back(word);
  }
  return choices;
}

DescribedOption describe(const CLI::Option& option) {
  DescribedOption described;
  described.by_position = !option.nonpositional();
  if (described.by_position) {
    described.names = {option.get_name(true, false)};
  }
  for (const std::string& name : option.get_snames()) {
    described.names.push_back("-" + name);
  }
  for (const std::string& name : option.get_lnames()) {
    described.names.push_back("--" + name);
  }
  if (option.get_type_size() != 0) {
    described.value = option.get_type_name();
    described.choices = choices_of(described.value);
    // What a value must be (":POSITIVE", ":{a,b}") belongs to no name of a value.
    described.value = described.value.substr(0, described.value.find(':'));
    described.value = described.value.empty() ? "TEXT" : described.value;
    described.initial = option.get_default_str();
    described.repeated = option.get_expected_max() >= CLI::detail::expected_max_vector_size;
  }
  described.help = option.get_description();
  described.required = option.get_required();
  return described;
}

DescribedCommand describe(const CLI::App& app, const std::string& above) {
  DescribedCommand described;
  described.name = app.get_name();
  described.path = above.empty() ? described.name : above + " " + described.name;
  described.help = app.get_description();
  described.more = app.get_footer();
  const auto add = [&described](const CLI::App& from) {
    for (const CLI::Option* option : from.get_options()) {
      if (!option->get_group().empty()) { // options of no group are hidden
        described.options.push_back(describe(*option));
      }
    }
  };
  add(app);
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name().empty()) {
      add(*command); // a group of options
    } else {
      described.commands.push_back(describe(*command, described.path));
    }
  }
  return described;
}

} // namespace

bool DescribedOption::may_be_file() const {
  return choices.empty() && !value.empty() && value != "INT" && value != "UINT" && value != "FLOAT";
}

DescribedCommand describe(const CLI::App& program) {
  return describe(program, "");
}

} // namespace tessera::cli
