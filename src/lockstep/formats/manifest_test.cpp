#include "lockstep/formats/manifest.h"

#include <gmock/gmock.h>

#include "lockstep/formats/hash.h"
#include "lockstep/formats/test_files.h"

namespace lockstep::formats {
namespace {

using ::testing::HasSubstr;
using Kind = ManifestProblem::Kind;

TEST(Hash, EqualsFips180Examples) {
  EXPECT_EQ(sha256_hex({}), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex(bytes_of("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 pieces;
  pieces.update(bytes_of("a"));
  pieces.update(bytes_of("bc"));
  EXPECT_EQ(pieces.finish_hex(), sha256_hex(bytes_of("abc")));
}

class Manifest : public FileTest {
 protected:
  void SetUp() override {
    write("model.safetensors", "weights");
    write("state.json", "{}");
    std::filesystem::create_directory(path("ranks"));
    write("ranks/0", "zero");
    write_manifest(folder_.path(), std::vector<std::string>{"model.safetensors", "state.json", "ranks/0"});
  }
  // The only problem, as "name kind".
  std::pair<std::string, Kind> only_problem() {
    const auto problems = verify_manifest(folder_.path());
    if (problems.size() != 1) {
      ADD_FAILURE() << problems.size() << " problems";
      return {};
    }
    EXPECT_THAT(problems[0].what, HasSubstr(path(problems[0].name).string()));
    return {problems[0].name, problems[0].kind};
  }
};

TEST_F(Manifest, WholeFolderHasNoProblem) {
  EXPECT_TRUE(verify_manifest(folder_.path()).empty());
  const auto files = read_manifest(folder_.path());
  ASSERT_EQ(files.size(), 3U);
  EXPECT_EQ(files[0].name, "model.safetensors");
  EXPECT_EQ(files[0].size_bytes, 7U);
  EXPECT_EQ(files[0].sha256, sha256_hex(bytes_of("weights")));
}

TEST_F(Manifest, NamesEachKindOfDamage) {
  write("model.safetensors", "weightz");
  EXPECT_EQ(only_problem(), std::pair(std::string("model.safetensors"), Kind::kChecksumDiffers));
  write("model.safetensors", "weight");
  EXPECT_EQ(only_problem(), std::pair(std::string("model.safetensors"), Kind::kSizeDiffers));
  std::filesystem::remove(path("model.safetensors"));
  EXPECT_EQ(only_problem(), std::pair(std::string("model.safetensors"), Kind::kMissing));
  write("model.safetensors", "weights");
  write("ranks/extra", "");
  EXPECT_EQ(only_problem(), std::pair(std::string("ranks/extra"), Kind::kNotListed));
}

TEST_F(Manifest, ReportsEveryProblemAtOnce) {
  write("model.safetensors", "weight");
  std::filesystem::remove(path("state.json"));
  EXPECT_EQ(verify_manifest(folder_.path()).size(), 2U);
}

TEST_F(Manifest, MissingOrDamagedManifestIsAProblem) {
  for (const char* content : {"", "{", "[]", R"({"schema":"lockstep.manifest/2","files":[]})",
                              R"({"schema":"lockstep.manifest/1","files":[{"name":"a","size":-1,"sha256":""}]})",
                              R"({"schema":"lockstep.manifest/1","files":[{"name":"a","size":1,"sha256":"xyz"}]})"}) {
    write(kManifestName, content);
    EXPECT_EQ(only_problem().second, Kind::kManifestDamaged) << content;
    EXPECT_THAT(verify_manifest(folder_.path()).front().what, Not(HasSubstr("[json"))) << content;
  }
  std::filesystem::remove(path(kManifestName));
  EXPECT_EQ(only_problem().second, Kind::kManifestMissing);
}

TEST_F(Manifest, NamesCannotLeaveTheFolder) {
  const std::string digest(64, 'a');
  for (const char* name : {"", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "MANIFEST.json"}) {
    EXPECT_THAT(error_of([&] {
                  write_manifest(folder_.path(), std::vector<ManifestEntry>{{name, 1, digest}});
                }),
                HasSubstr("no name of a file inside it"));
  }
  write(kManifestName,
        R"({"schema":"lockstep.manifest/1","files":[{"name":"../x","size":1,"sha256":")" + digest + "\"}]}");
  EXPECT_EQ(only_problem().second, Kind::kManifestDamaged);
}

}  // namespace
}  // namespace lockstep::formats
