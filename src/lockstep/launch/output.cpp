#include "lockstep/launch/output.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"

namespace lockstep::launch {

namespace {

// A pipe that poll() calls writable takes this much without blocking (PIPE_BUF on Linux).
constexpr std::size_t kWriteBytes = 4096;
// Of a line that is kept to be repeated after a failure.
constexpr std::size_t kKeptLineBytes = 2000;
constexpr std::size_t kReadBytes = 1 << 16;
constexpr auto kRedrawInterval = std::chrono::seconds(2);

}  // namespace

void LineSplitter::feed(std::string_view bytes, const Emit& emit) {
  while (!bytes.empty()) {
    const auto newline = bytes.find('\n');
    const std::string_view piece = bytes.substr(0, newline);
    if (partial_.empty() && newline != std::string_view::npos && piece.size() <= kMaxLineBytes) {
      emit(piece);
    } else {
      partial_.append(piece);
      std::size_t begin = 0;
      for (; partial_.size() - begin > kMaxLineBytes; begin += kMaxLineBytes) {
        emit(std::string_view(partial_).substr(begin, kMaxLineBytes));
      }
      partial_.erase(0, begin);
      if (newline != std::string_view::npos) {
        emit(partial_);
        partial_.clear();
      }
    }
    if (newline == std::string_view::npos) return;
    bytes.remove_prefix(newline + 1);
  }
}

void LineSplitter::finish(const Emit& emit) {
  if (partial_.empty()) return;
  emit(partial_);
  partial_.clear();
}

bool LineSplitter::take_redraw(const Emit& emit) {
  const auto last = partial_.rfind('\r');
  if (last == std::string::npos) return false;
  // tqdm begins each drawing with '\r', others end it: the newest complete one is what follows, or else precedes.
  std::string_view drawing = std::string_view(partial_).substr(last + 1);
  if (drawing.empty()) {
    drawing = std::string_view(partial_).substr(0, last);
    drawing = drawing.substr(drawing.rfind('\r') + 1);  // npos + 1 is 0
  }
  if (!drawing.empty()) emit(drawing);
  partial_.clear();
  return true;
}

void ConsoleStream::push(std::string_view bytes) {
  if (broken_) return;
  queue_.append(bytes);
}

bool ConsoleStream::flush() {
  bool progress = false;
  while (!broken_ && written_ < queue_.size()) {
    pollfd writable{fd_, POLLOUT, 0};
    if (::poll(&writable, 1, 0) <= 0) break;
    const std::size_t size = std::min(kWriteBytes, queue_.size() - written_);
    const ssize_t written = ::write(fd_, queue_.data() + written_, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) break;
    if (written < 0) {
      broken_ = true;
      queue_.clear();
      written_ = 0;
      return true;
    }
    written_ += static_cast<std::size_t>(written);
    progress = true;
  }
  // Moving the rest to the front costs its size: only once it is smaller than what went out.
  if (written_ == queue_.size() || written_ > queue_.size() / 2) {
    queue_.erase(0, written_);
    written_ = 0;
  }
  return progress;
}

RankStream::RankStream(UniqueFd pipe, ConsoleStream* console, std::string prefix, const std::filesystem::path& log_file)
    : pipe_(std::move(pipe)), log_path_(log_file.string()), console_(console), prefix_(std::move(prefix)) {
  if (log_file.empty()) return;
  log_ = UniqueFd(::open(log_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!log_) throw SystemError::from_errno(text("cannot write the log file ", log_path_), errno);
}

void RankStream::read_available(std::size_t limit_bytes) {
  char block[kReadBytes];
  for (std::size_t total = 0; pipe_ && total < limit_bytes;) {
    const ssize_t got = ::read(pipe_.get(), block, sizeof(block));
    if (got > 0) {
      take_bytes(std::string_view(block, static_cast<std::size_t>(got)));
      total += static_cast<std::size_t>(got);
    } else if (got == 0) {
      pipe_.reset();
      splitter_.finish([this](std::string_view line) { take_line(line); });
    } else if (errno != EINTR) {
      return;
    }
  }
}

void RankStream::close() {
  // At least the whole pipe (1 MiB at most without privileges): what was written before the end is not lost.
  read_available(4 << 20);
  pipe_.reset();
  splitter_.finish([this](std::string_view line) { take_line(line); });
}

void RankStream::show_redraw(std::chrono::steady_clock::time_point now) {
  if (now - last_shown_ < kRedrawInterval) return;
  if (splitter_.take_redraw([this](std::string_view line) { take_line(line); })) last_shown_ = now;
}

void RankStream::take_bytes(std::string_view bytes) {
  if (log_ && !try_write_all(log_.get(), bytes)) {
    log::warning(SystemError::from_errno(text("the log file ", log_path_, " ends here"), errno).what());
    log_.reset();
  }
  splitter_.feed(bytes, [this](std::string_view line) { take_line(line); });
}

void RankStream::take_line(std::string_view line) {
  console_->push(prefix_);
  console_->push(line);
  console_->push("\n");
  last_lines_.emplace_back(line.substr(0, kKeptLineBytes));
  if (last_lines_.size() > kLinesKept) last_lines_.pop_front();
}

}  // namespace lockstep::launch
