#include "lockstep/base/rank_status.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdlib>

#include "lockstep/base/text.h"

namespace lockstep {

namespace fs = std::filesystem;

namespace {

constexpr const char* kRefusalFile = "refusal.txt";

}  // namespace

StatusBoard::StatusBoard(int num_ranks)
    : fd_(make_memory_file("lockstep-status", static_cast<std::size_t>(num_ranks) * sizeof(Slot))),
      memory_(MappedMemory::shared(fd_.get(), static_cast<std::size_t>(num_ranks) * sizeof(Slot))) {}

std::optional<StatusBoard> StatusBoard::from_environment() {
  const char* word = std::getenv(kVariable);
  long long fd = -1;
  struct stat status {};
  // A grandchild may see the variable without the descriptor, or with another file under its number.
  if (word == nullptr || !parse_number(word, fd) || ::fstat(static_cast<int>(fd), &status) != 0) return std::nullopt;
  if (!S_ISREG(status.st_mode) || status.st_nlink != 0 || status.st_size <= 0) return std::nullopt;
  if (static_cast<std::size_t>(status.st_size) % sizeof(Slot) != 0) return std::nullopt;
  StatusBoard board;
  board.memory_ = MappedMemory::shared(static_cast<int>(fd), static_cast<std::size_t>(status.st_size));
  return board;
}

StatusBoard::Slot& StatusBoard::slot(int local_rank) const {
  LOCKSTEP_CHECK(local_rank >= 0 && static_cast<std::size_t>(local_rank + 1) * sizeof(Slot) <= memory_.size_bytes());
  // All-zero bytes are a valid Slot, and the memory file starts as zeros.
  return reinterpret_cast<Slot*>(memory_.data())[local_rank];
}

std::int64_t StatusBoard::step(int local_rank) const {
  return slot(local_rank).step_plus_one.load(std::memory_order_relaxed) - 1;
}

void StatusBoard::set_step(int local_rank, std::int64_t step) {
  slot(local_rank).step_plus_one.store(step + 1, std::memory_order_relaxed);
}

Meeting StatusBoard::meeting(int local_rank) const {
  return static_cast<Meeting>(slot(local_rank).meeting.load(std::memory_order_relaxed));
}

void StatusBoard::set_meeting(int local_rank, Meeting meeting) {
  slot(local_rank).meeting.store(static_cast<std::int32_t>(meeting), std::memory_order_relaxed);
}

bool hand_over_refusal(const Error& error) {
  if (error.exit_code() != 2 && dynamic_cast<const CheckpointError*>(&error) == nullptr) return false;
  const char* error_file = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (std::getenv("LOCKSTEP_LAUNCHER") == nullptr || error_file == nullptr) return false;
  try {
    write_file_atomic(fs::path(error_file).parent_path() / kRefusalFile, error.what());
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

std::optional<std::string> take_refusal(const fs::path& rank_folder) {
  std::error_code none;
  const fs::path file = rank_folder / kRefusalFile;
  if (!fs::exists(file, none)) return std::nullopt;
  std::string message = read_file(file);
  fs::remove(file, none);
  return message;
}

}  // namespace lockstep
