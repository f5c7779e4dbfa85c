#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace lockstep::telemetry {

/// Appends one JSON object a line to events.jsonl: {"schema":"lockstep.event/1","time":UTC,"event":TYPE, ...fields}.
///
/// Types and their fields (docs/reference/events.md):
///   run_start   strategy world_size device global_batch lr steps_per_epoch resumed_from_step backend
///   step        step epoch loss lr samples
///   epoch       epoch steps train_loss eval_loss eval_accuracy eval_correct eval_total seconds
///               images_per_second peak_memory_bytes
///   checkpoint  step path seconds bytes
///   fault       kind message step rank
///   run_end     exit ("completed" | "stopped" | "failed") steps final_weights_sha256 message (of a failure)
///
/// Every event reaches the file (the system's page cache) before write() returns, in one write() with O_APPEND: exit(),
/// an exception, SIGTERM or SIGKILL right after it loses nothing, several writers do not mix within a line, and nothing
/// that is in the file already is ever truncated. Costs about 10 us an event, so events are for every Nth step.
/// NaN and infinities become null. A failing disk is reported once and never stops training. Thread-safe.
class EventWriter {
 public:
  /// Opens or creates the file. Throws SystemError that names the path.
  explicit EventWriter(const std::filesystem::path& path);
  EventWriter(EventWriter&&) noexcept;
  EventWriter& operator=(EventWriter&&) noexcept;
  ~EventWriter();

  /// `fields` must be an object. Never throws for reasons of the disk.
  void write(std::string_view type, nlohmann::json fields);

  /// Makes what was written durable against the loss of the machine (fdatasync); may take long on a slow disk.
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

  /// A reader that skips what the file holds now, such as the events of an earlier run that is resumed.
  static EventReader from_end(std::filesystem::path path);

  /// The complete events that were added since the last call; empty when there is no file yet. Throws SystemError when
  /// the file exists and cannot be read.
  std::vector<nlohmann::json> poll();
  std::size_t damaged_lines() const noexcept { return damaged_lines_; }

 private:
  std::filesystem::path path_;
  std::uint64_t offset_ = 0;
  std::size_t damaged_lines_ = 0;
};

}  // namespace lockstep::telemetry
