#include "lockstep/comm/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/comm/comm_test_cases.h"
#include "lockstep/comm/file_store.h"
#include "lockstep/comm/hash_store.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;

void check_store(Store& store) {
  store.set("a/b c%", "first");
  EXPECT_EQ(store.get("a/b c%", milliseconds(0)), "first");
  store.set("a/b c%", std::string("two\0lines\n", 10));
  EXPECT_EQ(store.get("a/b c%", milliseconds(0)), std::string("two\0lines\n", 10));
  EXPECT_EQ(store.add("n", 0), 0);
  EXPECT_EQ(store.add("n", 5), 5);
  EXPECT_EQ(store.add("n", -7), -2);
  EXPECT_EQ(store.get("n", milliseconds(0)), "-2");
  EXPECT_THROW(store.add("a/b c%", 1), CommError);
  const std::string message = testing::message_of<TimeoutError>([&] { store.get("missing key", milliseconds(20)); });
  EXPECT_THAT(message, ::testing::HasSubstr("missing key"));
}

void check_threads(Store& store) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&store, i] {
      for (int k = 0; k < 50; ++k) store.add("sum", i);
      store.get("go", milliseconds(10000));
    });
  }
  store.set("go", "");
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store.add("sum", 0), 50 * (0 + 1 + 2 + 3));
}

TEST(HashStore, KeepsValuesCountsAndWaits) {
  HashStore store;
  check_store(store);
  check_threads(store);
}

TEST(FileStore, KeepsValuesCountsAndWaits) {
  const TemporaryDirectory folder("file-store");
  FileStore store(folder.path() / "made on demand");
  check_store(store);
  check_threads(store);
  FileStore other(folder.path() / "made on demand");
  EXPECT_EQ(other.get("n", milliseconds(0)), "-2");
}

TEST(FileStore, AFolderThatCannotBeMadeIsAnError) {
  EXPECT_THROW(FileStore("/proc/lockstep-no-such-folder"), SystemError);
}

}  // namespace
}  // namespace lockstep::comm
