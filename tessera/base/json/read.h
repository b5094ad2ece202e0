#pragma once

// Readers of described structs, see field.h. Private to .cpp files that read JSON; not installed,
// so that no public header needs nlohmann-json.

#include <algorithm>
#include <cmath>
#include <utility>

#include "tessera/base/json/faults.h"
#include "tessera/base/json/kinds.h"

namespace tessera::form {

/// Reads `found` into a value of any supported type; the value stays as it is where a fault is
/// gathered. `context` is handed to `describe` of structs.
template <typename T, typename... Context>
void read_value(
    const OrderedJson& found,
    T& into,
    const Field& field,
    const Place& at,
    Faults& faults,
    const Context&... context);

template <typename T>
bool read_scalar(const OrderedJson& found, T& into, const Field& field) {
  if constexpr (std::is_same_v<T, bool>) {
    return found.is_boolean() && (into = found.get<bool>(), true);
  } else if constexpr (std::is_integral_v<T>) {
    std::int64_t number = 0;
    const bool fits = to_integer(found, number) && std::in_range<T>(number) &&
                      field.bounds.contain(static_cast<double>(number));
    into = fits ? static_cast<T>(number) : into;
    return fits;
  } else if constexpr (std::is_floating_point_v<T>) {
    if (field.null_is_nan && found.is_null()) {
      into = std::numeric_limits<T>::quiet_NaN();
      return true;
    }
    const bool fits = found.is_number() && field.bounds.contain(found.get<double>());
    into = fits ? found.get<double>() * field.unit : into;
    return fits;
  } else {
    if (!found.is_string()) {
      return false;
    }
    const auto text = found.get<std::string>();
    const auto choices = choices_of<T>(field);
    if ((field.not_empty && text.empty()) ||
        (!choices.empty() && std::find(choices.begin(), choices.end(), text) == choices.end())) {
      return false;
    }
    if constexpr (NamedEnum<T>) {
      into = *choice_of<T>(text);
    } else {
      into = text;
    }
    return true;
  }
}

/// The visitor that fills a struct from its object.
class Reader {
 public:
  static constexpr bool kReads = true;

  Reader(
      const OrderedJson& object,
      const Place& at,
      Faults& faults,
      const std::vector<std::string>& known)
      : object_(object), at_(at), faults_(faults), known_(known) {}

  /// For some keys of an object that may hold others.
  Reader(const OrderedJson& object, Faults& faults) : Reader(object, kWholeFile, faults, kNoNames) {
    allow_unknown();
    if (!object.is_object()) {
      faults.wrong(at_, object, "an object");
    }
  }

  void allow_unknown() {
    looked_ = true;
  }

  void define(const char*) {}

  void head(const char* format, int version) {
    if (format != nullptr) {
      const OrderedJson* found = find("format");
      if (found != nullptr && *found != format) {
        faults_.wrong(Place(at_, "format"), *found, str("\"", format, "\""));
      }
    }
    const OrderedJson* found = find("version");
    if (found != nullptr && *found != version) {
      faults_.other_version(Place(at_, "version"), *found, version);
    }
  }

  template <typename M, typename... Context>
  void operator()(const Field& field, M& member, const Context&... context) {
    refuse_unknown();
    const auto found = object_.find(field.name);
    if (found != object_.end()) {
      read_value(*found, member, field, Place(at_, field.name), faults_, context...);
    } else if (field.presence == Presence::kRequired) {
      faults_.missing(Place(at_, field.name));
    }
  }

  /// `broken` returns what is wrong with the struct as a whole, or "". It is not asked when a field
  /// is wrong by itself.
  template <typename Broken>
  void check(Broken broken) {
    refuse_unknown();
    if (faults_.messages().size() == faults_before_) {
      const std::string what = broken();
      if (!what.empty()) {
        faults_.broken(at_, what);
      }
    }
  }

 private:
  const OrderedJson* find(const char* key) {
    const auto found = object_.find(key);
    if (found == object_.end()) {
      faults_.missing(Place(at_, key));
      return nullptr;
    }
    return &*found;
  }

  // After the head: fields of another version say nothing.
  void refuse_unknown() {
    if (std::exchange(looked_, true)) {
      return;
    }
    for (const auto& item : object_.items()) {
      if (std::find(known_.begin(), known_.end(), item.key()) == known_.end()) {
        faults_.unknown(at_, item.key(), known_);
      }
    }
  }

  static inline const Place kWholeFile;
  static inline const std::vector<std::string> kNoNames;

  const OrderedJson& object_;
  const Place& at_;
  Faults& faults_;
  const std::vector<std::string>& known_;
  std::size_t faults_before_ = faults_.messages().size();
  bool looked_ = false;
};

template <typename K, typename T, typename... Context>
void read_map(
    const OrderedJson& found,
    std::map<K, T>& into,
    const Field& field,
    const Place& at,
    Faults& faults,
    const Context&... context) {
  const auto& names = field.choices;
  for (const auto& item : found.items()) {
    const Place inner(at, item.key());
    if (!names.empty() && std::find(names.begin(), names.end(), item.key()) == names.end()) {
      faults.unknown(at, item.key(), names);
    } else if constexpr (std::is_same_v<K, std::string>) {
      read_value(item.value(), into[item.key()], field, inner, faults, context...);
    } else if (const int number = whole_number(item.key()); number > 0) {
      read_value(item.value(), into[number], field, inner, faults, context...);
    } else {
      faults.broken(
          at,
          str("'", item.key(), "' is no whole number; write names such as \"1\", \"2\", \"4\""));
    }
  }
}

template <typename T, typename... Context>
void read_value(
    const OrderedJson& found,
    T& into,
    const Field& field,
    const Place& at,
    Faults& faults,
    const Context&... context) {
  if constexpr (is_optional<T>) {
    read_value(found, into.emplace(), field, at, faults, context...);
  } else if constexpr (CustomForm<T>) {
    if (!Custom<T>::read(found, into)) {
      faults.wrong(at, found, Custom<T>::allowed());
    }
  } else if constexpr (std::is_same_v<T, OrderedJson>) {
    into = found;
  } else if constexpr (is_scalar<T>) {
    if (!read_scalar(found, into, field)) {
      Field shown = field;
      if (std::is_same_v<T, int> && std::isinf(field.bounds.max)) {
        // Then a number may be too large for the type alone.
        shown.bounds.max =
            std::isinf(field.bounds.min) ? field.bounds.max : std::numeric_limits<int>::max();
      }
      faults.wrong(at, found, allowed<T>(shown));
    }
  } else if constexpr (is_list<T>) {
    if (!found.is_array()) {
      return faults.wrong(at, found, "a list");
    }
    into.clear();
    into.reserve(found.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      read_value(found[i], into.emplace_back(), field, Place(at, i), faults, context...);
    }
  } else if (!found.is_object()) {
    faults.wrong(at, found, "an object");
  } else if constexpr (is_map<T>) {
    into.clear();
    read_map(found, into, field, at, faults, context...);
  } else if constexpr (is_by_name<T>) {
    into.entries.clear();
    for (const auto& item : found.items()) {
      auto& entry = into.entries.emplace_back();
      entry.*into.name = item.key();
      read_value(item.value(), entry, field, Place(at, item.key()), faults, context...);
    }
  } else {
    Reader reader(found, at, faults, field_names<T>());
    describe(reader, into, context...);
  }
}

/// Reads a described struct from an object.
/// Throws: Error in the mode of `faults` that throws.
template <typename T, typename... Context>
void read(const OrderedJson& object, T& into, Faults& faults, const Context&... context) {
  read_value(object, into, Field{.name = ""}, Place(), faults, context...);
}

/// Reads a described struct from the text of a file; messages begin with `root`.
/// Throws: `Failure` for the first fault.
template <typename T, typename Failure>
T read_text(const std::string& text, const std::string& root, Wording wording = Wording::kMust) {
  try {
    const OrderedJson object = parse_json(text, root);
    Faults faults(root, wording);
    T value{};
    read(object, value, faults);
    return value;
  } catch (const Error& error) {
    throw Failure(error.what());
  }
}

} // namespace tessera::form
