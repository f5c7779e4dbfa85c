#pragma once

/// The one header that a program includes.
///
///     #include <lockstep/lockstep.h>
///     int main(int argc, char** argv) {
///       return lockstep::main(argc, argv, [](lockstep::Session& session) {
///         auto model = session.place(MyNet());
///         auto optimizer = lockstep::optim::SGD(model->parameters(), {.lr = session.scaled_lr(0.01, 32)});
///         auto engine = session.engine(model, optimizer);
///         auto loader = session.loader(lockstep::data::fashion_mnist(), {.batch_size = 32});
///         for (auto epoch : session.epochs(5))
///           for (auto& batch : loader.epoch(epoch))
///             engine.step(batch, [&](auto& x, auto& y) {
///               return torch::nn::functional::cross_entropy(model->forward(x), y);
///             });
///       });
///     }
///
/// The same binary runs alone, as `./prog --nproc 4`, under `lockstep run` and under `torchrun --no-python`.

#include "lockstep/amp/autocast.h"
#include "lockstep/amp/grad_scaler.h"
#include "lockstep/api/main.h"
#include "lockstep/api/session.h"
#include "lockstep/base/error.h"
#include "lockstep/data/image_dataset.h"
#include "lockstep/data/loader.h"
#include "lockstep/models/loss.h"
#include "lockstep/models/model.h"
#include "lockstep/models/recompute.h"
#include "lockstep/optim/ema.h"
#include "lockstep/optim/large_batch.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/schedule.h"
#include "lockstep/parallel/hook.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "lockstep/parallel/zero.h"
#include "lockstep/train/device.h"
#include "lockstep/train/weights.h"
