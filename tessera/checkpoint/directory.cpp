#include "tessera/checkpoint/directory.h"

#include <algorithm>
#include <cerrno>
#include <set>
#include <system_error>

#include <sys/stat.h>

#include "tessera/base/error.h"

namespace tessera::checkpoint {

namespace {

const std::string kSaving = ".saving-";
const std::string kReplaced = ".replaced-";
const std::string kDeleting = ".deleting-";

bool exists(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0;
}

bool complete(const std::string& path) {
  try {
    read_candidate(path);
    return true;
  } catch (const CheckpointError&) {
    return false;
  }
}

[[noreturn]] void fail(const std::string& what) {
  throw CheckpointError(str(what, ": ", system_reason()));
}

void rename_or_fail(FileSystem& files, const std::string& from, const std::string& to) {
  if (files.rename(from, to) != 0) {
    fail(str("cannot rename ", from, " to ", to));
  }
}

void sync_or_fail(FileSystem& files, const std::string& directory) {
  if (files.sync_directory(directory) != 0) {
    fail(str("cannot sync the folder ", directory));
  }
}

void remove_or_fail(FileSystem& files, const std::string& path) {
  if (!remove_tree(files, path)) {
    fail(str("cannot remove ", path));
  }
}

std::vector<std::string> list_or_fail(FileSystem& files, const std::string& directory) {
  auto names = files.list(directory);
  if (!names) {
    fail(str("cannot read the folder ", directory));
  }
  return *std::move(names);
}

// "TAG" of ".saving-TAG"; empty when the name does not begin so.
std::string tag_after(const std::string& prefix, const std::string& name) {
  return name.compare(0, prefix.size(), prefix) == 0 ? name.substr(prefix.size()) : "";
}

} // namespace

std::string system_reason() {
  return std::generic_category().message(errno);
}

void check_tag(const std::string& tag) {
  const bool plain = std::all_of(tag.begin(), tag.end(), [](char letter) {
    return letter != '/' && static_cast<unsigned char>(letter) >= ' ' && letter != '\x7f';
  });
  if (tag.empty() || tag.size() > 200 || !plain || tag.front() == '.' || tag == kNewestName) {
    throw CheckpointError(
        str("\"",
            tag,
            "\" cannot be the tag of a checkpoint; use 1 to 200 letters, "
            "digits, '_' or '-', not beginning with '.', and not \"newest\""));
  }
}

std::string saving_directory(const std::string& directory, const std::string& tag) {
  return join(directory, kSaving + tag);
}

std::string replaced_directory(const std::string& directory, const std::string& tag) {
  return join(directory, kReplaced + tag);
}

Candidate read_candidate(const std::string& path) {
  const std::string meta_path = join(path, kMetaName);
  if (!exists(meta_path)) {
    throw CheckpointError(str(
        path,
        is_directory(path) ? " is torn or no checkpoint: it has no meta.json" : " does not exist"));
  }
  Candidate candidate{path, meta_from_json(read_file(meta_path), meta_path)};
  for (const auto& file : candidate.meta.files) {
    const std::string file_path = join(path, file.name);
    struct stat info {};
    if (::stat(file_path.c_str(), &info) != 0) {
      throw CheckpointError(str(path, " is torn: ", file.name, " is missing"));
    }
    const auto size_bytes = static_cast<std::uint64_t>(info.st_size);
    if (size_bytes != file.size_bytes) {
      throw CheckpointError(
          str(path,
              " is torn: ",
              file.name,
              " has ",
              size_bytes,
              " bytes instead of ",
              file.size_bytes));
    }
  }
  return candidate;
}

Candidate find_tag(const std::string& directory, const std::string& tag) {
  check_tag(tag);
  const std::string path = join(directory, tag);
  if (exists(path)) {
    return read_candidate(path);
  }
  // A writer that died between two renames left the checkpoint under one of the two names.
  for (const auto& other : {saving_directory(directory, tag), replaced_directory(directory, tag)}) {
    if (exists(other) && complete(other)) {
      return read_candidate(other);
    }
  }
  throw CheckpointError(str("there is no checkpoint \"", tag, "\" in ", directory));
}

std::vector<std::string> tags_in(const std::string& directory, FileSystem& files) {
  std::set<std::string> tags;
  for (const auto& name : list_or_fail(files, directory)) {
    if (!is_directory(join(directory, name))) {
      continue;
    }
    if (name.front() != '.') {
      tags.insert(name);
      continue;
    }
    for (const auto& prefix : {kSaving, kReplaced}) {
      const std::string tag = tag_after(prefix, name);
      // An unfinished save is no checkpoint, not even a torn one.
      if (!tag.empty() && complete(join(directory, name))) {
        tags.insert(tag);
      }
    }
  }
  return {tags.begin(), tags.end()};
}

std::vector<Saving> whole_in(const std::string& directory, FileSystem& files) {
  std::vector<Saving> whole;
  for (const auto& tag : tags_in(directory, files)) {
    try {
      const Meta meta = find_tag(directory, tag).meta;
      whole.push_back({tag, meta.sequence, meta.for_good, meta.score});
    } catch (const CheckpointError&) {
      // A torn file names no checkpoint.
    }
  }
  return whole;
}

std::optional<std::string> find_best(const std::string& directory) {
  const auto best = best_of(whole_in(directory));
  return best ? std::optional(best->tag) : std::nullopt;
}

std::optional<std::string> read_newest(const std::string& directory) {
  const std::string path = join(directory, kNewestName);
  if (!exists(path)) {
    return std::nullopt;
  }
  std::string tag = read_file(path, 4096);
  while (!tag.empty() && (tag.back() == '\n' || tag.back() == ' ')) {
    tag.pop_back();
  }
  try {
    check_tag(tag);
  } catch (const CheckpointError& error) {
    throw CheckpointError(str(path, " is damaged: ", error.what()));
  }
  return tag;
}

void publish(const std::string& directory, const std::string& tag, FileSystem& files) {
  const std::string path = join(directory, tag);
  const std::string saving = saving_directory(directory, tag);
  const std::string replaced = replaced_directory(directory, tag);
  const bool replaces = exists(path);
  if (replaces) {
    remove_or_fail(files, replaced);
    rename_or_fail(files, path, replaced);
  }
  if (files.rename(saving, path) != 0) {
    const std::string reason = system_reason();
    if (replaces) {
      files.rename(replaced, path); // else find_tag and tidy still find it
    }
    throw CheckpointError(str("cannot rename ", saving, " to ", path, ": ", reason));
  }
  sync_or_fail(files, directory);
}

void tidy(const std::string& directory, FileSystem& files) {
  for (const auto& name : list_or_fail(files, directory)) {
    const std::string path = join(directory, name);
    if (const auto tag = tag_after(kSaving, name); !tag.empty()) {
      if (!exists(join(directory, tag)) && complete(path)) {
        publish(directory, tag, files);
      } else {
        remove_or_fail(files, path);
      }
    }
  }
  for (const auto& name : list_or_fail(files, directory)) {
    const std::string path = join(directory, name);
    if (const auto tag = tag_after(kReplaced, name); !tag.empty()) {
      if (exists(join(directory, tag))) {
        remove_or_fail(files, path);
      } else {
        rename_or_fail(files, path, join(directory, tag));
        sync_or_fail(files, directory);
      }
    } else if (!tag_after(kDeleting, name).empty()) {
      remove_or_fail(files, path);
    } else if (name == str(".", kNewestName, ".tmp")) {
      files.remove_file(path);
    }
  }
}

std::string remove_tag(const std::string& directory, const std::string& tag, FileSystem& files) {
  const std::string path = join(directory, tag);
  const std::string deleting = join(directory, kDeleting + tag);
  if (!remove_tree(files, deleting) || files.rename(path, deleting) != 0 ||
      !remove_tree(files, deleting)) {
    return str("cannot remove the old checkpoint ", path, ": ", system_reason());
  }
  return "";
}

} // namespace tessera::checkpoint
