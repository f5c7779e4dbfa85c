#include "lockstep/telemetry/events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <fstream>
#include <functional>
#include <limits>
#include <stdexcept>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::telemetry {
namespace {

namespace fs = std::filesystem;

class Events : public testing::Test {
 protected:
  TemporaryDirectory folder_{"lockstep-events-test"};
  fs::path path_ = folder_.path() / "events.jsonl";

  std::vector<nlohmann::json> read() const { return EventReader(path_).poll(); }

  // Runs `body` in a child process that ends without the test program's own clean-up; returns its wait status.
  static int in_child(const std::function<void()>& body) {
    const pid_t child = ::fork();
    if (child == 0) {
      body();
      ::_exit(0);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return status;
  }
};

TEST_F(Events, HoldSchemaTimeTypeAndFields) {
  EventWriter(path_).write("step", {{"step", 3}, {"loss", 0.5}});
  const auto events = read();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["schema"], "lockstep.event/1");
  EXPECT_EQ(events[0]["event"], "step");
  EXPECT_EQ(events[0]["step"], 3);
  EXPECT_EQ(events[0]["time"].get<std::string>().size(), std::string("2026-11-30T11:16:31.123Z").size());
}

TEST_F(Events, NotANumberBecomesNullAndTheLineStaysValid) {
  EventWriter(path_).write(
      "step",
      {{"loss", std::nan("")}, {"lr", std::numeric_limits<double>::infinity()}, {"text", std::string("a\nb\xff")}});
  EventReader reader(path_);
  const auto events = reader.poll();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(reader.damaged_lines(), 0u);
  EXPECT_TRUE(events[0]["loss"].is_null());
  EXPECT_TRUE(events[0]["lr"].is_null());
}

TEST_F(Events, BR039_OneValueAndTheEndOfTheProgramLosesNothing) {
  const auto write_one = [&](EventWriter& writer) { writer.write("step", {{"step", 1}}); };
  in_child([&] {
    EventWriter writer(path_);
    write_one(writer);
  });
  EXPECT_EQ(read().size(), 1u) << "destroyed";
  in_child([&] {
    EventWriter writer(path_);
    write_one(writer);
    std::_Exit(0);
  });
  EXPECT_EQ(read().size(), 2u) << "exit without destructors";
  in_child([&] {
    try {
      EventWriter writer(path_);
      write_one(writer);
      throw std::runtime_error("training failed");
    } catch (const std::runtime_error&) {
    }
  });
  EXPECT_EQ(read().size(), 3u) << "exception";
  EXPECT_TRUE(WIFSIGNALED(in_child([&] {
    EventWriter writer(path_);
    write_one(writer);
    std::raise(SIGTERM);
  })));
  EXPECT_EQ(read().size(), 4u) << "SIGTERM";
}

TEST_F(Events, BR039_SigkillLosesNothingThatWasWritten) {
  // The child says on a pipe how many events it has written; the parent kills it in the middle.
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    EventWriter writer(path_);
    for (char written = 1;; ++written) {
      writer.write("step", {{"step", int{written}}});
      if (::write(ends[1], &written, 1) != 1) ::_exit(1);
    }
  }
  char written = 0;
  for (int i = 0; i < 50; ++i) ASSERT_EQ(::read(ends[0], &written, 1), 1);
  ::kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ::close(ends[0]);
  ::close(ends[1]);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_GE(read().size(), 50u);
}

TEST_F(Events, BR023_ManyWritersAtOnceNeitherTruncateNorMixLines) {
  constexpr int kWriters = 8;
  constexpr int kEach = 100;
  EventWriter(path_).write("run_start", nlohmann::json::object());
  std::vector<std::thread> threads;
  for (int w = 0; w < kWriters; ++w) {
    threads.emplace_back([&, w] {
      EventWriter writer(path_);
      for (int i = 0; i < kEach; ++i) writer.write("step", {{"writer", w}, {"padding", std::string(300, 'x')}});
    });
  }
  for (auto& thread : threads) thread.join();
  EventReader reader(path_);
  EXPECT_EQ(reader.poll().size(), 1u + kWriters * kEach);
  EXPECT_EQ(reader.damaged_lines(), 0u);
}

TEST_F(Events, AHalfLineIsLeftForTheNextPollAndADamagedOneIsCounted) {
  std::ofstream out(path_);
  out << R"({"event":"step","step":1})"
      << "\n"
      << R"({"event":"st)" << std::flush;
  EventReader reader(path_);
  EXPECT_EQ(reader.poll().size(), 1u);
  EXPECT_EQ(reader.poll().size(), 0u);
  out << R"(ep","step":2})"
      << "\nnot json\n[1,2]\n"
      << std::flush;
  const auto more = reader.poll();
  ASSERT_EQ(more.size(), 1u);
  EXPECT_EQ(more[0]["step"], 2);
  EXPECT_EQ(reader.damaged_lines(), 2u);
}

TEST_F(Events, AWriterThatFollowsAKilledOneStartsOnALineOfItsOwn) {
  std::ofstream(path_) << R"({"event":"step","st)" << std::flush;
  EventWriter(path_).write("run_start", {{"resumed_from_step", 5}});
  EventReader reader(path_);
  EXPECT_EQ(reader.poll().size(), 1u);
  EXPECT_EQ(reader.damaged_lines(), 1u);
}

TEST_F(Events, AReaderFromTheEndSkipsWhatWasThere) {
  EventWriter writer(path_);
  writer.write("step", {{"step", 1}});
  EventReader reader = EventReader::from_end(path_);
  EXPECT_TRUE(reader.poll().empty());
  writer.write("step", {{"step", 2}});
  ASSERT_EQ(reader.poll().size(), 1u);
  EXPECT_TRUE(EventReader(folder_.path() / "missing.jsonl").poll().empty());
}

TEST_F(Events, AFullDiskIsReportedOnceAndTrainingGoesOn) {
  EventWriter writer("/dev/full");
  testing::internal::CaptureStderr();
  for (int i = 0; i < 5; ++i) writer.write("step", {{"step", i}});
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, testing::HasSubstr("/dev/full: events cannot be written (No space left on device)"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
}

TEST_F(Events, AFolderThatIsMissingIsNamed) {
  EXPECT_THAT([&] { EventWriter(folder_.path() / "no" / "events.jsonl"); },
              testing::ThrowsMessage<SystemError>(testing::HasSubstr("no/events.jsonl")));
}

TEST_F(Events, AnEventTakesMicroseconds) {
  EventWriter writer(path_);
  constexpr int kEvents = 2000;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kEvents; ++i) writer.write("step", {{"step", i}, {"loss", 0.1}, {"lr", 0.01}});
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  // 10 us on an idle machine; the bound is for a loaded one under a sanitizer.
  EXPECT_LT(took.count() / kEvents, 1e-3);
  RecordProperty("us_per_event", std::to_string(took.count() / kEvents * 1e6));
}

}  // namespace
}  // namespace lockstep::telemetry
