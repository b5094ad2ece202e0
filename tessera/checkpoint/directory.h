#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/file_system.h"
#include "tessera/checkpoint/records.h"

namespace tessera::checkpoint {

// The folder of a job's checkpoints:
//
//     newest             the tag to resume from
//     TAG/               a complete checkpoint: meta.json and what it lists
//     .saving-TAG/       being written; complete as soon as it has meta.json
//     .replaced-TAG/     the one of the same tag before, until the new one is
//                        in its place
//     .deleting-TAG/     on its way out
//
// A checkpoint is built in .saving-TAG and renamed, so TAG/ is never half
// written. Whenever the writer dies, `newest` names a checkpoint that is
// complete in one of the first three folders of its tag.
//
// Threads: any thread; one process at a time changes a folder.
// Not collective.

inline const char* const kMetaName = "meta.json";
inline const char* const kNewestName = "newest";

/// Throws: CheckpointError when `tag` cannot be a folder's name: empty, longer
/// than 200 bytes, with '/' or control characters, beginning with '.', or
/// "newest".
void check_tag(const std::string& tag);

std::string saving_directory(const std::string& directory, const std::string& tag);
std::string replaced_directory(const std::string& directory, const std::string& tag);

/// A checkpoint that says it is complete: its meta.json is whole and every file
/// has the size listed there.
struct Candidate {
  std::string path;
  Meta meta;
};

/// Throws: CheckpointError naming file and reason.
Candidate read_candidate(const std::string& path);

/// The folder that holds the checkpoint `tag`, wherever an interrupted save
/// left it. Throws: CheckpointError that says what is wrong with it.
Candidate find_tag(const std::string& directory, const std::string& tag);

/// All tags with a folder, whole or not, ascending by name.
/// Throws: CheckpointError when the folder cannot be read.
std::vector<std::string> tags_in(
    const std::string& directory,
    FileSystem& files = real_file_system());

/// What the file `newest` says; nothing when there is no such file.
/// Throws: CheckpointError when it holds no tag.
std::optional<std::string> read_newest(const std::string& directory);

/// Brings the folder back in order after a writer died: finishes a save that
/// was complete, drops what was not.
/// Throws: CheckpointError when the disk refuses.
void tidy(const std::string& directory, FileSystem& files);

/// Removes a tag's folder in a way that leaves it whole or invisible.
/// Returns what went wrong, or "".
std::string remove_tag(const std::string& directory, const std::string& tag, FileSystem& files);

/// Puts the complete .saving-TAG in the place of TAG.
/// Throws: CheckpointError; TAG is then the old one or the new, whole.
void publish(const std::string& directory, const std::string& tag, FileSystem& files);

/// errno as text.
std::string system_reason();

} // namespace tessera::checkpoint
