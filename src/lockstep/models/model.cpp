#include "lockstep/models/model.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/models/cnn.h"
#include "lockstep/models/mlp.h"

namespace lockstep::models {

std::vector<std::string> model_names() {
  return {"cnn", "mlp"};
}

std::shared_ptr<Model> make_model(const std::string& name, const ModelShape& shape, const ModelOptions& options) {
  if (shape.channels < 1 || shape.height < 1 || shape.width < 1 || shape.classes < 1) {
    throw ConfigError(text("model ", name, ": channels ", shape.channels, ", height ", shape.height, ", width ",
                           shape.width, " and classes ", shape.classes, " must all be at least 1"));
  }
  if (name == "cnn") return std::make_shared<Cnn>(shape, options);
  if (name == "mlp") return std::make_shared<Mlp>(shape, options);
  const std::string near = nearest(name, model_names());
  throw ConfigError(text("unknown model '", name, "'; known models: ", join(model_names(), ", ")),
                    near.empty() ? std::string() : text("did you mean '", near, "'?"));
}

}  // namespace lockstep::models
