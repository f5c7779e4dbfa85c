#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"

namespace lockstep::telemetry {

/// Appends one JSON object a line to events.jsonl: {"schema":"lockstep.event/1","time":UTC,"event":TYPE, ...fields}.
///
/// Types and their fields (docs/reference/events.md):
///   run_start   strategy world_size device global_batch lr steps_per_epoch resumed_from_step backend
///   step        step epoch loss lr samples
///   epoch       epoch steps train_loss eval_loss eval_accuracy seconds images_per_second peak_memory_bytes
///   checkpoint  step path seconds bytes
///   fault       kind message step rank
///   run_end     exit ("completed" | "stopped" | "failed") steps final_weights_sha256
///
/// Lines are written whole with O_APPEND; nothing already in the file is ever truncated. Buffered: flushed at every
/// type but `step`, at least every 2 s, and on destruction. A failing disk is reported once and never stops training.
class EventWriter {
 public:
  explicit EventWriter(const std::filesystem::path& path);
  EventWriter(EventWriter&&) noexcept;
  ~EventWriter();

  void write(std::string_view type, nlohmann::json fields);
  void flush();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Reads an events file as it grows. A last line without its newline is left for the next poll(); a damaged line is
/// skipped and counted.
class EventReader {
 public:
  explicit EventReader(std::filesystem::path path);

  /// The complete events that were added since the last call; empty when there is no file yet.
  std::vector<nlohmann::json> poll();
  std::size_t damaged_lines() const noexcept { return damaged_lines_; }

 private:
  std::filesystem::path path_;
  std::uint64_t offset_ = 0;
  std::size_t damaged_lines_ = 0;
};

}  // namespace lockstep::telemetry
