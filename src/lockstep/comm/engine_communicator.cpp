#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/comm/engine.h"

namespace lockstep::comm {
namespace {

void check_host(const ConstBuffer& buffer) {
  check_buffer(buffer);
  if (buffer.memory == Memory::kHost) return;
  throw CommError("a tensor on a GPU cannot go through the ranks' shared memory",
                  "exchange it through a communicator of make_nccl_communicator(), or copy it to the CPU first");
}

void check_host_parts(const ConstBuffer& small, const ConstBuffer& large, int size) {
  check_parts(small, large, size);
  check_host(small);
  check_host(large);
}

class EngineWork final : public Work::State {
 public:
  EngineWork(std::shared_ptr<Engine> engine, std::uint64_t end) : engine_(std::move(engine)), end_(end) {}
  bool test() override { return engine_->test(end_); }
  void wait() override { engine_->wait(end_); }

 private:
  std::shared_ptr<Engine> engine_;
  std::uint64_t end_;
};

class EngineCommunicator final : public Communicator {
 public:
  explicit EngineCommunicator(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}
  EngineCommunicator(const EngineCommunicator&) = delete;
  EngineCommunicator& operator=(const EngineCommunicator&) = delete;
  ~EngineCommunicator() override { engine_->close(); }

  int rank() const noexcept override { return engine_->rank(); }
  int size() const noexcept override { return engine_->size(); }
  const char* backend() const noexcept override { return engine_->backend(); }

  Work all_reduce(Buffer buffer, ReduceOp op) override {
    check_host(buffer);
    return start(Kind::kAllReduce, buffer.data, buffer.data, buffer.count, buffer.dtype, op, 0);
  }
  Work reduce_scatter(ConstBuffer input, Buffer output, ReduceOp op) override {
    check_host_parts(output, input, size());
    return start(Kind::kReduceScatter, input.data, output.data, output.count, output.dtype, op, 0);
  }
  Work all_gather(ConstBuffer input, Buffer output) override {
    check_host_parts(input, output, size());
    return start(Kind::kAllGather, input.data, output.data, input.count, input.dtype, ReduceOp::kSum, 0);
  }
  Work broadcast(Buffer buffer, int root) override {
    check_host(buffer);
    LOCKSTEP_CHECK(root >= 0 && root < size());
    return start(Kind::kBroadcast, buffer.data, buffer.data, buffer.count, buffer.dtype, ReduceOp::kSum, root);
  }
  void barrier() override {
    engine_->wait(engine_->start(Kind::kBarrier, nullptr, nullptr, 0, Dtype::kU8, ReduceOp::kSum, 0, label()));
  }
  void progress() override { engine_->progress(); }
  RankLink link(int rank) const override {
    const Segment& segment = engine_->segment();
    const bool is_process = segment.scope() == FutexScope::kProcesses;
    return {&segment.flights(rank).device, is_process ? segment.control(rank).pid.load() : 0};
  }

 private:
  Work start(Kind kind, const void* input, void* output, std::size_t count, Dtype dtype, ReduceOp op, int root) {
    const std::uint64_t end = engine_->start(kind, input, output, count, dtype, op, root, label());
    return Work(std::make_unique<EngineWork>(engine_, end));
  }

  std::shared_ptr<Engine> engine_;
};

class LoneCommunicator final : public Communicator {
 public:
  explicit LoneCommunicator(const char* backend) : backend_(backend) {}

  int rank() const noexcept override { return 0; }
  int size() const noexcept override { return 1; }
  const char* backend() const noexcept override { return backend_; }

  Work all_reduce(Buffer buffer, ReduceOp) override {
    check_buffer(buffer);
    return {};
  }
  Work reduce_scatter(ConstBuffer input, Buffer output, ReduceOp) override { return copy(input, output); }
  Work all_gather(ConstBuffer input, Buffer output) override { return copy(input, output); }
  Work broadcast(Buffer buffer, int root) override {
    check_buffer(buffer);
    LOCKSTEP_CHECK(root == 0);
    return {};
  }
  void barrier() override {}
  void progress() override {}

 private:
  static Work copy(const ConstBuffer& input, const Buffer& output) {
    check_host_parts(input, output, 1);
    if (input.count != 0) std::memmove(output.data, input.data, input.count * size_bytes(input.dtype));
    return {};
  }
  const char* backend_;
};

}  // namespace

std::unique_ptr<Communicator> make_engine_communicator(std::shared_ptr<Engine> engine) {
  return std::make_unique<EngineCommunicator>(std::move(engine));
}

std::unique_ptr<Communicator> make_lone_communicator(const char* backend) {
  return std::make_unique<LoneCommunicator>(backend);
}

std::unique_ptr<Communicator> make_single_communicator() {
  return make_lone_communicator("single");
}

}  // namespace lockstep::comm
