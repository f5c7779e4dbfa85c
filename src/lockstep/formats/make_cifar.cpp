#include <span>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/formats/cifar.h"
#include "lockstep/formats/gratings.h"
#include "lockstep/formats/hash.h"

namespace lockstep::formats {

namespace fs = std::filesystem;

namespace {

constexpr ImageShape kShape{3, 32, 32};
constexpr std::size_t kRecordBytes = 1 + 3 * 32 * 32;
constexpr int kTrainFiles = 5;
constexpr const char* kClassNames =
    "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n";  // the blank line is official too
constexpr const char* kGeneratedNotice =
    "Generated images in CIFAR-10's binary format, not CIFAR-10: the class names mean nothing.\n";

// Images `first_index` and on, one for each label.
GeneratedCifar::File write_batch(const fs::path& path, const Gratings& gratings, std::int64_t first_index,
                                 std::span<const std::uint8_t> labels) {
  std::string content(labels.size() * kRecordBytes, '\0');
  auto* record = reinterpret_cast<std::uint8_t*>(content.data());
  for (std::size_t i = 0; i < labels.size(); ++i, record += kRecordBytes) {
    record[0] = labels[i];
    gratings.draw(first_index + static_cast<std::int64_t>(i), labels[i], record + 1);
  }
  write_file_atomic(path, content);
  return {path.filename().string(), static_cast<std::int64_t>(labels.size()),
          sha256_hex(std::as_bytes(std::span(content)))};
}

void refuse_foreign_batches(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder / "GENERATED.txt", error)) return;
  for (const char* name : {"data_batch_1.bin", "test_batch.bin"}) {
    if (fs::exists(folder / name, error)) {
      throw ConfigError(text((folder / name).string(), ": is there and was not generated; it would be overwritten"),
                        "choose another folder");
    }
  }
}

}  // namespace

GeneratedCifar make_cifar10(const fs::path& folder, std::int64_t images, std::uint64_t seed) {
  if (images < kMinGeneratedImages || images > kMaxGeneratedImages) {
    throw ConfigError(text("cannot make ", images, " images, expected ", kMinGeneratedImages, " to ",
                           kMaxGeneratedImages, " (five files of at least one)"));
  }
  refuse_foreign_batches(folder);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw ConfigError(text(folder.string(), ": cannot make the folder: ", error.message()));

  // First, so that a run that is cut off leaves no batches without the notice.
  write_file_atomic(folder / "GENERATED.txt", kGeneratedNotice);
  const Gratings gratings(kShape, seed);
  GeneratedCifar made{{}, images, images / 5};
  const auto train_labels = Gratings::shuffled_labels(images, seed);
  std::int64_t begin = 0;
  for (int number = 1; number <= kTrainFiles; ++number) {
    const std::int64_t end = images * number / kTrainFiles;
    const auto part =
        std::span(train_labels).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
    made.files.push_back(write_batch(folder / text("data_batch_", number, ".bin"), gratings, begin, part));
    begin = end;
  }
  const auto test_labels = Gratings::shuffled_labels(made.test_images, ~seed);
  made.files.push_back(write_batch(folder / "test_batch.bin", gratings, images, test_labels));
  write_file_atomic(folder / "batches.meta.txt", kClassNames);
  return made;
}

}  // namespace lockstep::formats
