#include "lockstep/comm/nccl_engine.h"

#include <array>
#include <future>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/host/process.h"

namespace lockstep::comm {
namespace {

constexpr unsigned kNonBlockingStream = 1;  // cudaStreamNonBlocking: not ordered with the legacy default stream
constexpr unsigned kEventWithoutTimes = 2;  // cudaEventDisableTiming

int nccl_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::kU8:
      return 1;
    case Dtype::kI32:
      return 2;
    case Dtype::kI64:
      return 4;
    case Dtype::kF16:
      return 6;
    case Dtype::kF32:
      return 7;
    case Dtype::kF64:
      return 8;
    case Dtype::kBF16:
      return 9;
  }
  LOCKSTEP_CHECK(!"dtype out of range");
}

int nccl_op(ReduceOp op) {
  return op == ReduceOp::kSum ? 0 : op == ReduceOp::kMax ? 2 : 3;
}

/// What the helper thread of meet() fills; it may outlive the engine.
struct Connection {
  DeviceApi api;
  int device = 0;
  int size = 1;
  int rank = 0;
  NcclId id;
  void* nccl = nullptr;
  std::string failure;
  std::promise<void> done;

  void run() {
    if (const int code = api.cuda.set_device(device); code != 0) {
      failure = text("cudaSetDevice(", device, "): ", api.cuda.error_text(code));
    } else if (const int code_of_start = api.nccl.init_rank(&nccl, size, id, rank); code_of_start != 0) {
      failure = text("ncclCommInitRank: ", api.nccl.describe(code_of_start, nccl));
    }
    done.set_value();
  }
};

}  // namespace

CudaEvent::CudaEvent(const CudaApi& cuda) : cuda_(cuda) {
  if (const int code = cuda.event_create(&handle_, kEventWithoutTimes); code != 0) {
    throw CommError(text("cudaEventCreate: ", cuda.error_text(code)));
  }
}

NcclEngine::NcclEngine(Communicator& host, NcclOptions options, const DeviceApi& api)
    : api_(api), options_(std::move(options)), rank_(host.rank()), size_(host.size()) {
  for (int rank = 0; rank < size_; ++rank) {
    const RankLink link = host.link(rank);
    peers_.push_back({link.page, link.pid, link.pid != 0 && rank != rank_ ? host::open_process(link.pid) : UniqueFd()});
  }
  must(api_.cuda.set_device(options_.device), "cudaSetDevice");
  check_devices_differ(host);
  if (auto* page = own_page()) page->reset();
  meet(host);
  share_launch_group(host);
  int least = 0, greatest = 0;
  must(api_.cuda.stream_priority_range(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  // Ahead of the kernels of backward, so that a bucket does not wait for the whole of it.
  void* stream = nullptr;
  must(api_.cuda.stream_create(&stream, kNonBlockingStream, greatest), "cudaStreamCreateWithPriority");
  stream_ = Handle(stream, api_.cuda.stream_destroy);
  input_ready_ = std::make_unique<CudaEvent>(api_.cuda);
  watcher_ = std::thread([this] { watch(); });
}

// NCCL itself would say "invalid usage", or hang.
void NcclEngine::check_devices_differ(Communicator& host) {
  using BusId = std::array<char, 64>;
  BusId own{};
  must(api_.cuda.device_pci_bus_id(own.data(), static_cast<int>(own.size()), options_.device), "cudaDeviceGetPCIBusId");
  std::vector<BusId> all(static_cast<std::size_t>(size_));
  host.all_gather({own.data(), own.size(), Dtype::kU8}, {all.data(), own.size() * all.size(), Dtype::kU8}).wait();
  for (std::size_t r = 0; r < all.size(); ++r) {
    for (std::size_t s = r + 1; s < all.size(); ++s) {
      if (all[r] != all[s]) continue;
      throw ConfigError(text("ranks ", r, " and ", s, " are both on the GPU at ", all[r].data(),
                             ": every rank needs a GPU of its own"),
                        "start as many ranks as there are GPUs, and take the device from LOCAL_RANK");
    }
  }
}

// Rank 0's group, for all threads of the process.
void NcclEngine::share_launch_group(Communicator& host) {
  bool are_threads = size_ > 1;
  for (const auto& peer : peers_) are_threads = are_threads && peer.page != nullptr && peer.pid == 0;
  if (!are_threads) return;
  if (rank_ == 0) launch_group_ = std::make_shared<LaunchGroup>(api_.nccl, size_);
  auto address = reinterpret_cast<std::intptr_t>(&launch_group_);
  host.broadcast({&address, sizeof(address), Dtype::kU8}, 0).wait();
  if (rank_ != 0) launch_group_ = *reinterpret_cast<const std::shared_ptr<LaunchGroup>*>(address);
  host.barrier();  // until all have taken it, rank 0's engine stays where it is
}

// Blocking start-up in a helper thread: a wait that NCCL does not bound is bounded here.
void NcclEngine::meet(Communicator& host) {
  auto connection = std::make_shared<Connection>();
  connection->api = api_;
  connection->device = options_.device;
  connection->size = size_;
  connection->rank = rank_;
  if (rank_ == 0) must(api_.nccl.unique_id(&connection->id), "ncclGetUniqueId");
  host.broadcast({connection->id.bytes, sizeof(connection->id.bytes), Dtype::kU8}, 0).wait();
  auto done = connection->done.get_future();
  std::thread helper([connection] { connection->run(); });
  if (done.wait_for(options_.limits.rendezvous_timeout) != std::future_status::ready) {
    helper.detach();
    throw TimeoutError(text("rank ", rank_, ": NCCL did not connect the ", size_, " GPUs within ",
                            format_duration(options_.limits.rendezvous_timeout)),
                       "NCCL_DEBUG=INFO shows what it waits for; with NCCL_P2P_DISABLE=1 it goes round faulty "
                       "peer-to-peer access");
  }
  helper.join();
  if (!connection->failure.empty()) {
    throw CommError(text("rank ", rank_, " on GPU ", options_.device, ": ", connection->failure),
                    "NCCL_DEBUG=INFO shows more; `lockstep doctor` looks at this machine");
  }
  nccl_ = Handle(connection->nccl, api_.nccl.abort);
}

NcclEngine::~NcclEngine() {
  // A rank may leave once its own collectives are done; while the watcher runs, their end is bounded.
  std::unique_lock lock(mutex_);
  while (!flights_.empty() && !failure_ && std::uncaught_exceptions() == 0) {
    wake_watcher_.notify_all();
    wake_watcher_.wait_for(lock, std::chrono::milliseconds(1));
  }
  const bool in_order = flights_.empty() && !failure_;
  stopping_ = true;
  wake_watcher_.notify_all();
  lock.unlock();
  watcher_.join();
  if (auto* page = own_page(); page != nullptr && !has_failed_) {
    page->set_state(in_order ? FlightPage::State::kLeft : FlightPage::State::kFailed);
  }
  if (in_order) {
    api_.nccl.destroy(nccl_.release());
  } else if (has_failed_) {
    static_cast<void>(nccl_.release());  // fail() has aborted it
  }
}

void NcclEngine::must(int cuda_code, std::string_view what) const {
  if (cuda_code == 0) return;
  throw CommError(text("rank ", rank_, " on GPU ", options_.device, ": ", what, ": ", api_.cuda.error_text(cuda_code)));
}

std::shared_ptr<CudaEvent> NcclEngine::take_event() {
  for (const auto& event : events_) {
    if (event.use_count() == 1) return event;
  }
  return events_.emplace_back(std::make_shared<CudaEvent>(api_.cuda));
}

int NcclEngine::call_nccl(const Request& request, const Operands& operands) const {
  const auto& nccl = api_.nccl;
  const auto [input, output] = operands;
  const int type = nccl_type(static_cast<Dtype>(request.dtype));
  const int op = nccl_op(static_cast<ReduceOp>(request.op));
  switch (request.kind) {
    case Kind::kAllReduce:
      return nccl.all_reduce(input, output, request.count, type, op, nccl_.get(), stream_.get());
    case Kind::kReduceScatter:
      return nccl.reduce_scatter(input, output, request.count, type, op, nccl_.get(), stream_.get());
    case Kind::kAllGather:
      return nccl.all_gather(input, output, request.count, type, nccl_.get(), stream_.get());
    case Kind::kBroadcast:
      return nccl.broadcast(input, output, request.count, type, request.root, nccl_.get(), stream_.get());
    case Kind::kBarrier:
      break;
  }
  LOCKSTEP_CHECK(!"a barrier goes through the host");
}

std::shared_ptr<CudaEvent> NcclEngine::start(Request request, std::string_view label, const Operands& operands) {
  check();
  request.sequence = ++sequence_;
  request.label = label_hash(label);
  must(api_.cuda.event_record(input_ready_->handle(), options_.current_stream()), "cudaEventRecord");
  must(api_.cuda.stream_wait_event(stream_.get(), input_ready_->handle(), 0), "cudaStreamWaitEvent");
  // The watcher, too, drops events: it does so under the mutex.
  std::unique_lock lock(mutex_);
  const auto done = take_event();
  if (!label.empty()) labels_.try_emplace(request.label, label);
  flights_.push_back({request, done, false, Clock::now()});
  lock.unlock();
  if (auto* page = own_page()) page->begin(request);
  const auto call = [&] { return call_nccl(request, operands); };
  std::optional<int> launched;
  if (launch_group_) {
    launched = launch_group_->launch(call, [this] { return has_failed_.load(); });
    // Another rank gave up. Its flight recorder says so, and the watcher will say why.
    while (!launched && !has_failed_.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  } else {
    launched = call();
  }
  check();  // the watcher aborted it meanwhile, and knows why
  const int code = launched.value_or(0);
  if (code != 0 && code != NcclApi::kInProgress) {
    fail(std::make_exception_ptr(CommError(
             text("rank ", rank_, " in ", request.to_string(), ": NCCL: ", api_.nccl.describe(code, nccl_.get())),
             "NCCL_DEBUG=WARN shows more")),
         FlightPage::State::kFailed);
    check();
  }
  must(api_.cuda.event_record(done->handle(), stream_.get()), "cudaEventRecord");
  lock.lock();
  flights_.back().is_launched = true;
  return done;
}

bool NcclEngine::is_finished(const CudaEvent& event) {
  check();
  const int code = api_.cuda.event_query(event.handle());
  if (code != CudaApi::kNotReady) must(code, "cudaEventQuery");
  return code == 0;
}

void NcclEngine::wait(const CudaEvent& event) {
  check();
  must(api_.cuda.stream_wait_event(options_.current_stream(), event.handle(), 0), "cudaStreamWaitEvent");
}

void NcclEngine::check() {
  if (!has_failed_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  std::rethrow_exception(failure_);
}

}  // namespace lockstep::comm
