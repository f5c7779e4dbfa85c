#include <array>

#include "lockstep/base/text.h"
#include "lockstep/doctor/checks.h"

namespace lockstep::doctor {

namespace fs = std::filesystem;

constexpr std::array kFiles{"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte",
                            "t10k-labels-idx1-ubyte"};

Result check_fashion_mnist(const Machine& machine) {
  const fs::path folder = machine.root / "usr/share/datasets/fashion-mnist";
  std::vector<std::string> missing;
  for (const char* name : kFiles) {
    std::error_code ignored;
    if (!fs::exists(folder / name, ignored) && !fs::exists(folder / text(name, ".gz"), ignored))
      missing.push_back(name);
  }
  if (missing.empty()) return {"", Status::kOk, text("Fashion-MNIST is in ", folder.string()), "", ""};
  return {"", Status::kInfo, text("Fashion-MNIST is not complete in ", folder.string()),
          text("missing: ", join(missing, ", ")),
          "apt-get install dataset-fashion-mnist, or say where it is: --data fashion-mnist:DIR"};
}

}  // namespace lockstep::doctor
