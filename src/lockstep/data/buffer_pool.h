#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace lockstep::data {

/// Memory blocks of one size that go round: a block that nobody refers to any more is handed out again, so that a
/// steady loop touches the same few pages and never waits for the kernel to clear new ones. Thread-safe. Blocks may
/// outlive the pool.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  /// At most `max_idle` unused blocks are kept; each is aligned to 64 bytes.
  static std::shared_ptr<BufferPool> make(std::size_t block_bytes, std::size_t max_idle);

  /// A block of unspecified content. It comes back when the last copy of the pointer is gone.
  std::shared_ptr<std::byte> acquire();

 private:
  struct Free {
    void operator()(std::byte* block) const noexcept;
  };
  using Block = std::unique_ptr<std::byte, Free>;

  BufferPool(std::size_t block_bytes, std::size_t max_idle) : block_bytes_(block_bytes), max_idle_(max_idle) {
    idle_.reserve(max_idle);
  }
  void give_back(Block block) noexcept;

  const std::size_t block_bytes_;
  const std::size_t max_idle_;
  std::mutex mutex_;
  std::vector<Block> idle_;  // guarded by mutex_
};

}  // namespace lockstep::data
