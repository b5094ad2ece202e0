#include "models/data/json_tokenizer/fields.h"

#include "tessera/base/error.h"

namespace tessera::data {

namespace {

const OrderedJson kNull;

} // namespace

Fields::Fields(const OrderedJson& object, std::string place)
    : object_(object), place_(std::move(place)) {
  if (!object_.is_object()) {
    throw ConfigError(str(place_, " is ", briefly(object_), ", expected an object"));
  }
}

std::string Fields::place_of(const std::string& key) const {
  // The place of the whole file is its name.
  return place_ + (place_.find(": ") == std::string::npos ? ": " : ".") + key;
}

bool Fields::has(const std::string& key) const {
  return object_.contains(key);
}

const OrderedJson& Fields::value(const std::string& key) {
  seen_.insert(key);
  const auto found = object_.find(key);
  return found == object_.end() ? kNull : *found;
}

void Fields::wrong(const std::string& key, const std::string& expected) const {
  const auto found = object_.find(key);
  throw ConfigError(
      found == object_.end()
          ? str(place_of(key), " is missing, expected ", expected)
          : str(place_of(key), " is ", briefly(*found), ", expected ", expected));
}

std::string Fields::text(const std::string& key) {
  const OrderedJson& found = value(key);
  if (!found.is_string()) {
    wrong(key, "a text");
  }
  return found.get<std::string>();
}

std::string Fields::text(const std::string& key, const std::string& otherwise) {
  return value(key).is_null() ? otherwise : text(key);
}

bool Fields::flag(const std::string& key, bool otherwise) {
  return maybe_flag(key).value_or(otherwise);
}

std::optional<bool> Fields::maybe_flag(const std::string& key) {
  const OrderedJson& found = value(key);
  if (found.is_null()) {
    return {};
  }
  if (!found.is_boolean()) {
    wrong(key, "true or false");
  }
  return found.get<bool>();
}

std::int64_t Fields::number(const std::string& key, std::int64_t otherwise) {
  const OrderedJson& found = value(key);
  if (found.is_null()) {
    return otherwise;
  }
  if (!found.is_number_unsigned() || found.get<std::uint64_t>() > (std::uint64_t{1} << 31U)) {
    wrong(key, "a whole number, 0 or more");
  }
  return found.get<std::int64_t>();
}

void Fields::must_be_unset(const std::string& key) {
  const OrderedJson& found = value(key);
  const bool unset = found.is_null() || found == false || found == "" ||
                     (found.is_number() && found.get<double>() == 0) ||
                     ((found.is_array() || found.is_object()) && found.empty());
  if (!unset) {
    refuse(key, "null");
  }
}

void Fields::ignore(const std::string& key) {
  seen_.insert(key);
}

void Fields::refuse(const std::string& key, const std::string& known) const {
  const auto found = object_.find(key);
  if (found == object_.end()) {
    throw ConfigError(str(place_of(key), " is missing; implemented: ", known));
  }
  throw ConfigError(str(
      place_of(key), " is ", briefly(*found), ", which is not implemented; implemented: ", known));
}

void Fields::done() const {
  for (const auto& item : object_.items()) {
    if (seen_.count(item.key()) == 0) {
      throw ConfigError(str(
          place_of(item.key()), " is ", briefly(item.value()), "; this key is not implemented"));
    }
  }
}

} // namespace tessera::data
