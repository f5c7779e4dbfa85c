#include "lockstep/comm/nccl.h"

#include "lockstep/base/error.h"
#include "lockstep/comm/nccl_engine.h"

namespace lockstep::comm {
namespace {

class NcclWork final : public Work::State {
 public:
  NcclWork(std::shared_ptr<NcclEngine> engine, std::shared_ptr<CudaEvent> done)
      : engine_(std::move(engine)), done_(std::move(done)) {}
  bool test() override { return engine_->is_finished(*done_); }
  void wait() override { engine_->wait(*done_); }

 private:
  std::shared_ptr<NcclEngine> engine_;
  std::shared_ptr<CudaEvent> done_;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(Communicator& host, std::shared_ptr<NcclEngine> engine) : host_(host), engine_(std::move(engine)) {}

  int rank() const noexcept override { return host_.rank(); }
  int size() const noexcept override { return host_.size(); }
  const char* backend() const noexcept override { return "nccl"; }

  Work all_reduce(Buffer buffer, ReduceOp op) override {
    check_buffer(buffer);
    if (buffer.memory == Memory::kHost) return host().all_reduce(buffer, op);
    return start({.count = buffer.count, .kind = Kind::kAllReduce}, buffer, op, {buffer.data, buffer.data});
  }
  Work reduce_scatter(ConstBuffer input, Buffer output, ReduceOp op) override {
    check_parts(output, input, size());
    if (input.memory == Memory::kHost) return host().reduce_scatter(input, output, op);
    return start({.count = output.count, .kind = Kind::kReduceScatter}, output, op, {input.data, output.data});
  }
  Work all_gather(ConstBuffer input, Buffer output) override {
    check_parts(input, output, size());
    if (input.memory == Memory::kHost) return host().all_gather(input, output);
    return start({.count = input.count, .kind = Kind::kAllGather}, input, ReduceOp::kSum, {input.data, output.data});
  }
  Work broadcast(Buffer buffer, int root) override {
    check_buffer(buffer);
    LOCKSTEP_CHECK(root >= 0 && root < size());
    if (buffer.memory == Memory::kHost) return host().broadcast(buffer, root);
    return start({.count = buffer.count, .root = root, .kind = Kind::kBroadcast}, buffer, ReduceOp::kSum,
                 {buffer.data, buffer.data});
  }
  /// Of the ranks' threads: work that they have queued for their GPUs may still run.
  void barrier() override { host().barrier(); }
  void progress() override { host().progress(); }
  RankLink link(int rank) const override { return {nullptr, host_.link(rank).pid}; }

 private:
  Communicator& host() {
    engine_->check();
    host_.label(label());
    return host_;
  }
  Work start(Request request, const ConstBuffer& elements, ReduceOp op, const NcclEngine::Operands& operands) {
    request.dtype = static_cast<std::uint8_t>(elements.dtype);
    request.op = static_cast<std::uint8_t>(op);
    auto done = engine_->start(request, label(), operands);
    return Work(std::make_unique<NcclWork>(engine_, std::move(done)));
  }

  Communicator& host_;
  std::shared_ptr<NcclEngine> engine_;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(Communicator& host, NcclOptions options) {
  return make_nccl_communicator(host, std::move(options), find_device_api());
}

std::unique_ptr<Communicator> make_nccl_communicator(Communicator& host, NcclOptions options, const DeviceApi& api) {
  LOCKSTEP_CHECK(options.current_stream != nullptr);
  return std::make_unique<NcclCommunicator>(host, std::make_shared<NcclEngine>(host, std::move(options), api));
}

}  // namespace lockstep::comm
