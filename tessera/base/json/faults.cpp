#include "tessera/base/json/faults.h"

#include "tessera/base/json/field.h"
#include "tessera/base/text.h"

namespace tessera::form {

std::string Place::text() const {
  if (parent_ == nullptr) {
    return "";
  }
  const std::string before = parent_->text();
  if (key_.data() == nullptr) {
    return str(before, "[", index_, "]");
  }
  return str(before, before.empty() ? "" : ".", key_);
}

void Faults::wrong(const Place& at, const OrderedJson& found, const std::string& allowed) {
  const std::string path = at.text();
  if (wording_ == Wording::kWrite) {
    add(str(path, path.empty() ? "" : ": ", "found ", shown(found), "; write ", allowed));
  } else if (path.empty()) {
    add(str("expected ", allowed, ", found ", shown(found)));
  } else {
    add(str("'", path, "' must be ", allowed, ", found ", shown(found)));
  }
}

void Faults::missing(const Place& at) {
  add(wording_ == Wording::kWrite ? str(at.text(), ": missing")
                                  : str("field '", at.text(), "' is missing"));
}

void Faults::unknown(
    const Place& object,
    const std::string& key,
    const std::vector<std::string>& known) {
  const std::string path = object.text();
  const std::string prefix = path.empty() ? "" : path + ".";
  const std::string near = nearest_alike(key, known);
  if (wording_ == Wording::kWrite) {
    add(
        str(prefix,
            quoted_briefly(key),
            ": unknown field; ",
            near.empty() ? str("the known ones are ", join(known, ", "))
                         : str("the nearest known field is \"", near, "\"")));
    return;
  }
  const std::string brief = quoted_briefly(key);
  add(
      str("unknown field '",
          prefix,
          brief.substr(1, brief.size() - 2),
          "'; ",
          near.empty() ? str("the known ones are ", join(known, ", "))
                       : str("the nearest is '", prefix, near, "'")));
}

void Faults::other_version(const Place& at, const OrderedJson& found, int known) {
  if (wording_ == Wording::kWrite) {
    add(str(at.text(), ": found ", shown(found), "; this program reads version ", known));
  } else if (!found.is_number()) {
    wrong(at, found, "a number");
  } else {
    add(
        str("'",
            at.text(),
            "' is ",
            shown(found),
            "; this program reads version ",
            known,
            ", use the one that wrote it"));
  }
}

void Faults::broken(const Place& object, const std::string& what) {
  const std::string path = object.text();
  add(str(path, path.empty() ? "" : ": ", what));
}

void Faults::add(std::string message) {
  if (!gathers()) {
    throw Error(root_.empty() ? message : str(root_, ": ", message));
  }
  messages_.push_back(std::move(message));
}

} // namespace tessera::form
