#include "lockstep/telemetry/events.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::telemetry {

namespace fs = std::filesystem;

struct EventWriter::Impl {
  fs::path path;
  UniqueFd fd;
  std::mutex mutex;
  bool reported = false;
  bool line_is_broken = false;  // a short write left a line without its end

  void report_once(int error_number) {
    if (reported) return;
    reported = true;
    log::warning(text(path.string(), ": events cannot be written (", std::strerror(error_number),
                      "); training goes on without them"));
  }
};

namespace {

// Whether the file ends inside a line, which a killed writer or a full disk leaves.
bool ends_inside_line(int fd) {
  struct stat status {};
  char last = '\n';
  if (::fstat(fd, &status) != 0 || status.st_size == 0) return false;
  return ::pread(fd, &last, 1, status.st_size - 1) == 1 && last != '\n';
}

}  // namespace

EventWriter::EventWriter(const fs::path& path) : impl_(std::make_unique<Impl>()) {
  impl_->path = path;
  impl_->fd.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!impl_->fd) throw SystemError::from_errno(text(path.string(), ": events cannot be written"), errno);
  impl_->line_is_broken = ends_inside_line(impl_->fd.get());
}

EventWriter::EventWriter(EventWriter&&) noexcept = default;
EventWriter& EventWriter::operator=(EventWriter&&) noexcept = default;
EventWriter::~EventWriter() = default;

void EventWriter::write(std::string_view type, nlohmann::json fields) {
  LOCKSTEP_CHECK(fields.is_object());
  fields["schema"] = "lockstep.event/1";
  fields["time"] = utc_timestamp(std::chrono::system_clock::now());
  fields["event"] = type;
  // Bytes that are not UTF-8, in a path say, are replaced: the line must stay valid JSON.
  std::string line = fields.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";

  const std::lock_guard lock(impl_->mutex);
  if (impl_->line_is_broken) line.insert(0, 1, '\n');
  if (try_write_all(impl_->fd.get(), line)) {
    impl_->line_is_broken = false;
    return;
  }
  const int error_number = errno;
  impl_->line_is_broken = ends_inside_line(impl_->fd.get());
  impl_->report_once(error_number);
}

void EventWriter::flush() {
  const std::lock_guard lock(impl_->mutex);
  // EINVAL: a pipe or a device, which has nothing to make durable.
  if (::fdatasync(impl_->fd.get()) != 0 && errno != EINVAL) impl_->report_once(errno);
}

EventReader::EventReader(fs::path path) : path_(std::move(path)) {}

EventReader EventReader::from_end(fs::path path) {
  EventReader reader(std::move(path));
  std::error_code missing;
  const auto size = fs::file_size(reader.path_, missing);
  reader.offset_ = missing ? 0 : size;
  return reader;
}

namespace {

std::string read_from(const fs::path& path, std::uint64_t offset) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) {
    if (errno == ENOENT) return {};
    throw SystemError::from_errno(text(path.string(), ": events cannot be read"), errno);
  }
  std::string content;
  char block[1 << 16];
  for (;;) {
    const ssize_t got = ::pread(fd.get(), block, sizeof(block), static_cast<off_t>(offset + content.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw SystemError::from_errno(text(path.string(), ": events cannot be read"), errno);
    if (got == 0) return content;
    content.append(block, static_cast<std::size_t>(got));
  }
}

}  // namespace

std::vector<nlohmann::json> EventReader::poll() {
  const std::string content = read_from(path_, offset_);
  std::vector<nlohmann::json> events;
  std::size_t begin = 0;
  for (std::size_t end = 0; (end = content.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string_view line = std::string_view(content).substr(begin, end - begin);
    if (line.empty()) continue;
    auto event = nlohmann::json::parse(line, nullptr, false);
    if (event.is_object() && event.contains("event") && event["event"].is_string()) {
      events.push_back(std::move(event));
    } else {
      ++damaged_lines_;
    }
  }
  offset_ += begin;
  return events;
}

}  // namespace lockstep::telemetry
