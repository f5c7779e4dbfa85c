#pragma once

#include <filesystem>
#include <string>

#include "lockstep/base/file.h"

namespace lockstep::launch {

/// A small process that leads the job's process group and outlives the launcher: when the launcher is gone without
/// having said goodbye (SIGKILL), it kills every process of the job, also one that left the group, and removes
/// `temporary_folder`. It shares nothing with the launcher but a pipe, and holds none of its other descriptors.
class Guard {
 public:
  /// `job_mark` is the "NAME=value" that every process of the job has in its environment. Throws SystemError.
  Guard(const std::string& job_mark, const std::filesystem::path& temporary_folder);

  /// Kills the whole group, the guard too, and reaps it: the group's number cannot be reused before that.
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  /// Process group of the job; also the guard's pid.
  int group() const noexcept { return pid_; }

  /// SIGKILL to everything in the group. The guard dies with it and stays a zombie that reserves the number.
  void kill_group() const noexcept;

 private:
  int pid_ = 0;
  UniqueFd lifeline_;
};

}  // namespace lockstep::launch
