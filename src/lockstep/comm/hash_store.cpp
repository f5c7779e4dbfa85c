#include "lockstep/comm/hash_store.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::comm {

void HashStore::set(std::string_view key, std::string_view value) {
  const std::lock_guard lock(mutex_);
  values_.insert_or_assign(std::string(key), std::string(value));
  changed_.notify_all();
}

std::string HashStore::get(std::string_view key, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  auto found = values_.end();
  const auto is_set = [&] { return (found = values_.find(key)) != values_.end(); };
  // Against the system clock: ThreadSanitizer of GCC 12 does not know the wait on the steady one.
  if (!changed_.wait_until(lock, std::chrono::system_clock::now() + timeout, is_set)) {
    throw TimeoutError(text("nobody set the key \"", key, "\" in the store within ", format_duration(timeout)));
  }
  return found->second;
}

std::int64_t HashStore::add(std::string_view key, std::int64_t amount) {
  const std::lock_guard lock(mutex_);
  const auto [entry, is_new] = values_.try_emplace(std::string(key), "0");
  long long number = 0;
  if (!parse_number(entry->second, number)) throw CommError(text("the store's key \"", key, "\" holds no number"));
  number += amount;
  entry->second = text(number);
  if (is_new) changed_.notify_all();
  return number;
}

}  // namespace lockstep::comm
