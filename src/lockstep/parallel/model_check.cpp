#include "lockstep/parallel/model_check.h"

#include <string>

#include <c10/core/ScalarType.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::parallel {

namespace {

void describe(std::string& out, const std::string& name, const at::Tensor& tensor) {
  out += text(name, " ", c10::toString(tensor.scalar_type()), " [");
  for (const auto extent : tensor.sizes()) out += text(extent, ",");
  if (out.back() == ',') out.pop_back();
  out += "]\n";
}

// Every rank's text, in rank order; the texts may differ in length.
std::vector<std::string> gather_texts(comm::Communicator& communicator, const std::string& mine) {
  const auto size = static_cast<std::size_t>(communicator.size());
  const auto my_length = static_cast<std::int64_t>(mine.size());
  std::vector<std::int64_t> lengths(size);
  communicator.all_gather({&my_length, 1, comm::Dtype::kI64}, {lengths.data(), size, comm::Dtype::kI64}).wait();
  std::size_t longest = 0;
  for (const auto length : lengths) longest = std::max(longest, static_cast<std::size_t>(length));
  std::string padded = mine;
  padded.resize(longest);
  std::string all(longest * size, '\0');
  communicator.all_gather({padded.data(), longest, comm::Dtype::kU8}, {all.data(), all.size(), comm::Dtype::kU8})
      .wait();
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < size; ++r) texts.push_back(all.substr(r * longest, static_cast<std::size_t>(lengths[r])));
  return texts;
}

}  // namespace

void check_same_model(comm::Communicator& communicator, const optim::ParameterArena& arena,
                      const std::vector<optim::NamedTensor>& buffers) {
  std::string mine;
  for (auto segment = arena.segments().rbegin(); segment != arena.segments().rend(); ++segment) {
    describe(mine, segment->name, segment->parameter);
  }
  for (const auto& buffer : buffers) describe(mine, buffer.name, buffer.tensor);

  const auto texts = gather_texts(communicator, mine);
  const auto reference = split(texts[0], '\n');
  for (std::size_t r = 1; r < texts.size(); ++r) {
    const auto lines = split(texts[r], '\n');
    for (std::size_t l = 0; l < std::max(lines.size(), reference.size()); ++l) {
      const std::string here = l < lines.size() && !lines[l].empty() ? lines[l] : "nothing more";
      const std::string there = l < reference.size() && !reference[l].empty() ? reference[l] : "nothing more";
      if (here == there) continue;
      throw CommError(
          text("the model of rank ", r, " differs from rank 0's: rank 0 has ", there, ", rank ", r, " has ", here),
          "build the same model on every rank");
    }
  }
}

}  // namespace lockstep::parallel
