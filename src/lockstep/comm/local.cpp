#include "lockstep/base/error.h"
#include "lockstep/comm/engine.h"

namespace lockstep::comm {

std::vector<std::unique_ptr<Communicator>> make_local_communicators(int size, const CommOptions& options) {
  LOCKSTEP_CHECK(size >= 1);
  std::vector<std::unique_ptr<Communicator>> communicators;
  if (size == 1) {
    communicators.push_back(make_lone_communicator("local"));
    return communicators;
  }
  const std::size_t bytes = Segment::size_bytes(size);
  const UniqueFd fd = make_memory_file("lockstep-local", bytes);
  const auto segment = std::make_shared<Segment>(
      Segment::create(MappedMemory::shared(fd.get(), bytes), size, Nonce{}, FutexScope::kThreads));
  for (int rank = 0; rank < size; ++rank) {
    communicators.push_back(
        make_engine_communicator(std::make_shared<Engine>(segment, rank, "local", options, std::vector<PeerSocket>{})));
  }
  return communicators;
}

}  // namespace lockstep::comm
