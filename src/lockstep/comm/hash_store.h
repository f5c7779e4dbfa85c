#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "lockstep/comm/store.h"

namespace lockstep::comm {

/// A store in the memory of this process, for ranks that are threads.
class HashStore final : public Store {
 public:
  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override;
  std::int64_t add(std::string_view key, std::int64_t amount) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string, std::less<>> values_;
};

}  // namespace lockstep::comm
