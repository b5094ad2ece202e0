#include "tessera/base/text.h"

#include <algorithm>
#include <cctype>

#include "tessera/base/error.h"

namespace tessera {

namespace {

// Longer names cannot be near any key; the bound keeps hostile input cheap.
constexpr std::size_t kLongest = 64;

char lower(char letter) {
  return static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
}

/// Whether `name` is the first letters of the words of `whole`, or has at least half of its
/// letters, the first one among them, in the same order.
bool is_short_form(std::string_view name, std::string_view whole) {
  if (name.size() < 2 || whole.empty() || name.front() != whole.front()) {
    return false;
  }
  std::string initials;
  std::size_t met = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    if (i == 0 || whole[i - 1] == '_') {
      initials += whole[i];
    }
    met += met < name.size() && name[met] == whole[i] ? 1 : 0;
  }
  return initials == name || (met == name.size() && 2 * name.size() >= whole.size());
}

} // namespace

int edit_distance(std::string_view a, std::string_view b) {
  a = a.substr(0, kLongest);
  b = b.substr(0, kLongest);
  // Three rows of the dynamic program; a swap looks back two.
  std::vector<int> before(b.size() + 1);
  std::vector<int> last(b.size() + 1);
  std::vector<int> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) {
    last[j] = static_cast<int>(j);
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = lower(a[i - 1]) == lower(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
          lower(a[i - 2]) == lower(b[j - 1])) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

std::string nearest(std::string_view name, const std::vector<std::string>& candidates) {
  TESSERA_CHECK(!candidates.empty());
  const std::string* best = &candidates.front();
  int best_distance = edit_distance(name, *best);
  for (const std::string& candidate : candidates) {
    const int distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best = &candidate;
      best_distance = distance;
    }
  }
  return *best;
}

std::string nearest_alike(std::string_view name, const std::vector<std::string>& candidates) {
  if (candidates.empty()) {
    return "";
  }
  std::string best = nearest(name, candidates);
  const auto letters = static_cast<int>(std::max(name.size(), best.size()));
  const int distance = edit_distance(name, best);
  if (distance < letters && distance <= std::max(1, letters / 3)) {
    return best;
  }
  const auto whole = std::find_if(candidates.begin(), candidates.end(), [&](const auto& candidate) {
    return is_short_form(name, candidate);
  });
  return whole == candidates.end() ? "" : *whole;
}

std::string join(const std::vector<std::string>& words, std::string_view separator) {
  std::string text;
  for (const std::string& word : words) {
    if (&word != &words.front()) {
      text += separator;
    }
    text += word;
  }
  return text;
}

std::string join_path(std::string_view parent, std::string_view name) {
  return parent.empty() ? std::string(name) : str(parent, ".", name);
}

} // namespace tessera
