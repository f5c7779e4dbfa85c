#pragma once

#include <filesystem>

#include "lockstep/base/file.h"
#include "lockstep/comm/store.h"

namespace lockstep::comm {

/// A store in a folder of a local file system, one file a key: for tests and single hosts. The folder is made when it
/// is missing and is never removed. Waiting is polling.
class FileStore final : public Store {
 public:
  /// Throws SystemError when the folder cannot be made.
  explicit FileStore(std::filesystem::path folder);

  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override;
  std::int64_t add(std::string_view key, std::int64_t amount) override;

 private:
  std::filesystem::path path_of(std::string_view key) const;
  void replace(std::string_view key, std::string_view value);

  std::filesystem::path folder_;
};

}  // namespace lockstep::comm
