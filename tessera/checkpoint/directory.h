#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/file_system.h"
#include "tessera/checkpoint/records.h"
#include "tessera/checkpoint/retention.h"

namespace tessera::checkpoint {

// The folder of a job's checkpoints has this content:
//
//     newest             the tag to resume from
//     TAG/               a complete checkpoint: meta.json and the files it lists
//     .saving-TAG/       being written; complete as soon as it has meta.json
//     .replaced-TAG/     the previous checkpoint of the same tag, until the new one is in its place
//     .deleting-TAG/     being removed
//
// A checkpoint is built in .saving-TAG and renamed, so TAG/ is never half written. Whenever the
// writer dies, `newest` names a checkpoint that is complete in one of the first three folders of
// its tag.
//
// Threads: any thread; one process at a time changes a folder.
// Not collective.

inline const char* const kMetaName = "meta.json";
inline const char* const kNewestName = "newest";

/// Checks a tag. Throws: CheckpointError when `tag` cannot be a folder's name: empty, longer than
/// 200 bytes, with '/' or control characters, beginning with '.', or "newest".
void check_tag(const std::string& tag);

std::string saving_directory(const std::string& directory, const std::string& tag);
std::string replaced_directory(const std::string& directory, const std::string& tag);

/// A checkpoint that claims to be complete: its meta.json is whole and every file has the size
/// listed there.
struct Candidate {
  std::string path;
  Meta meta;
};

/// Reads a checkpoint's claim. Throws: CheckpointError naming file and reason.
Candidate read_candidate(const std::string& path);

/// Returns the folder that holds the checkpoint `tag`, in whichever state an interrupted save left
/// it. Throws: CheckpointError that says what is wrong with it.
Candidate find_tag(const std::string& directory, const std::string& tag);

/// Returns all tags that have a folder, whole or not, ascending by name.
/// Throws: CheckpointError when the folder cannot be read.
std::vector<std::string> tags_in(
    const std::string& directory,
    FileSystem& files = real_file_system());

/// Returns what the whole checkpoints of a folder say of themselves, ascending by tag.
/// Throws: CheckpointError when the folder cannot be read.
std::vector<Saving> whole_in(const std::string& directory, FileSystem& files = real_file_system());

/// Returns the tag of the whole checkpoint with the lowest score; nullopt when no one has a score.
/// Throws: CheckpointError when the folder cannot be read.
std::optional<std::string> find_best(const std::string& directory);

/// Returns the content of the file `newest`; nullopt when there is no such file.
/// Throws: CheckpointError when it holds no tag.
std::optional<std::string> read_newest(const std::string& directory);

/// Repairs the folder after a writer died: finishes a save that was complete, removes one that was
/// not.
/// Throws: CheckpointError when the file system refuses.
void tidy(const std::string& directory, FileSystem& files);

/// Removes a tag's folder such that it stays whole or becomes invisible.
/// Returns the error, or "".
std::string remove_tag(const std::string& directory, const std::string& tag, FileSystem& files);

/// Renames the complete .saving-TAG to TAG.
/// Throws: CheckpointError; TAG is then the old checkpoint or the new one, whole.
void publish(const std::string& directory, const std::string& tag, FileSystem& files);

/// Returns errno as text.
std::string system_reason();

} // namespace tessera::checkpoint
