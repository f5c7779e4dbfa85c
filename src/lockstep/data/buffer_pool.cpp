#include "lockstep/data/buffer_pool.h"

#include <new>

namespace lockstep::data {

namespace {
constexpr std::align_val_t kAlignment{64};
}

void BufferPool::Free::operator()(std::byte* block) const noexcept {
  ::operator delete(block, kAlignment);
}

std::shared_ptr<BufferPool> BufferPool::make(std::size_t block_bytes, std::size_t max_idle) {
  return std::shared_ptr<BufferPool>(new BufferPool(block_bytes, max_idle));
}

std::shared_ptr<std::byte> BufferPool::acquire() {
  Block block;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      block = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (!block) block.reset(static_cast<std::byte*>(::operator new(block_bytes_, kAlignment)));
  std::byte* bytes = block.release();
  return {bytes, [pool = weak_from_this()](std::byte* returned) {
            Block owned(returned);
            if (const auto alive = pool.lock()) alive->give_back(std::move(owned));
          }};
}

void BufferPool::give_back(Block block) noexcept {
  const std::lock_guard lock(mutex_);
  if (idle_.size() < max_idle_) idle_.push_back(std::move(block));
}

}  // namespace lockstep::data
