#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep {

/// How far a rank has come in meeting the other ranks of its job. Programs that never meet through us stay at kNone.
enum class Meeting : std::int32_t { kNone = 0, kWaiting, kDone };

/// A small shared-memory board on which each rank of a job shows the launcher how far it has come, so that a rank that
/// dies of any cause, SIGKILL included, can be reported with its step. Costs a rank one relaxed store a step.
///
/// The launcher makes it and hands the descriptor down in LOCKSTEP_STATUS_FD; nothing is left on disk.
class StatusBoard {
 public:
  static constexpr const char* kVariable = "LOCKSTEP_STATUS_FD";

  /// Launcher: a board for `num_ranks` local ranks. The descriptor is close-on-exec until it is handed to a child.
  explicit StatusBoard(int num_ranks);

  /// Rank: the board that the launcher handed down, or nullopt when there is none.
  static std::optional<StatusBoard> from_environment();

  int fd() const noexcept { return fd_.get(); }

  /// Number of optimizer steps that local rank `local_rank` has finished; -1 before the first report.
  std::int64_t step(int local_rank) const;
  void set_step(int local_rank, std::int64_t step);

  Meeting meeting(int local_rank) const;
  void set_meeting(int local_rank, Meeting meeting);

  int num_ranks() const noexcept { return static_cast<int>(memory_.size_bytes() / sizeof(Slot)); }

 private:
  struct alignas(64) Slot {
    std::atomic<std::int64_t> step_plus_one{0};
    std::atomic<std::int32_t> meeting{0};
  };
  StatusBoard() = default;
  Slot& slot(int local_rank) const;

  UniqueFd fd_;
  MappedMemory memory_;
};

/// Hands the text of a refusal to the launcher, which tells the user once instead of once a rank: an error with exit
/// code 2 (arguments, environment, input) or a CheckpointError, since all ranks refuse these alike. False when it is no
/// such error, no launcher of ours started this process, or the text cannot be written: the caller then prints it.
bool hand_over_refusal(const Error& error);

/// Launcher: what the rank whose TORCHELASTIC_ERROR_FILE is in `rank_folder` handed over.
std::optional<std::string> take_refusal(const std::filesystem::path& rank_folder);

}  // namespace lockstep
