#include "cli/train/checkpoint_folder.h"

#include <cstdio>
#include <filesystem>

#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/file_system.h"

namespace tessera::cli {

namespace {

std::string mebibytes(double bytes) {
  char text[48];
  std::snprintf(text, sizeof(text), "%.1f MiB", bytes / (1 << 20));
  return text;
}

/// `there` is on the file system that `directory` is on, or will be.
std::string no_room(const std::string& directory, const std::string& there, std::int64_t bytes) {
  std::error_code error;
  const auto space = std::filesystem::space(there, error);
  if (error || space.available >= static_cast<std::uint64_t>(bytes)) {
    return "";
  }
  return str(
      "'checkpoint.directory' ",
      directory,
      " has ",
      mebibytes(static_cast<double>(space.available)),
      " free; one checkpoint of this model takes ",
      mebibytes(static_cast<double>(bytes)),
      "; make room or name another folder");
}

} // namespace

std::int64_t checkpoint_bytes(const Job& job, std::int64_t parameters) {
  constexpr std::int64_t number = sizeof(float);
  if (job.optimizer.type == "sgd") {
    return parameters * number * (job.optimizer.momentum > 0 ? 2 : 1);
  }
  // Both moments, in f32 whatever the optimizer keeps them in.
  return parameters * (2 * number + (has_masters(job) || !in_16_bits(job) ? number : 2));
}

// The process's number keeps the probes of two runs apart.
FolderProbe::FolderProbe(const std::string& directory, int rank)
    : path_(checkpoint::join(directory, str(".probe-", rank, "-", ::getpid()))) {
  auto& files = checkpoint::real_file_system();
  checkpoint::make_directories(files, directory);
  // A page: a full disk still takes an empty file.
  checkpoint::write_file(files, path_, std::string(4096, '.'));
}

FolderProbe::~FolderProbe() {
  checkpoint::real_file_system().remove_file(path_);
}

std::string judge_folder(
    const std::string& directory,
    const std::vector<std::string>& probes,
    std::int64_t bytes) {
  for (std::size_t rank = 0; rank < probes.size(); ++rank) {
    if (!std::filesystem::exists(probes[rank])) {
      return str(
          "'checkpoint.directory' ",
          directory,
          " is not one folder for all ranks: rank 0 does not "
          "see what rank ",
          rank,
          " wrote there; name a folder on a shared file system");
    }
  }
  return no_room(directory, directory, bytes);
}

std::string judge_future_folder(const std::string& directory, std::int64_t bytes) {
  namespace fs = std::filesystem;
  fs::path there = fs::absolute(directory).lexically_normal();
  std::error_code error;
  while (!fs::exists(there, error) && there != there.parent_path()) {
    there = there.parent_path();
  }
  try {
    const FolderProbe probe(there.string(), 0);
  } catch (const CheckpointError& caught) {
    return not_writable(directory, "", caught.what());
  }
  return no_room(directory, there.string(), bytes);
}

std::string
not_writable(const std::string& directory, const std::string& who, const std::string& why) {
  return str(
      "'checkpoint.directory' ",
      directory,
      " cannot be written",
      who,
      ": ",
      why,
      "; name a folder that can, or make this one so");
}

} // namespace tessera::cli
