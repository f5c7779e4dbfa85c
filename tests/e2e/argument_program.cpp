// A program with arguments of its own: prints what lockstep::main leaves of its command line.
#include <lockstep/lockstep.h>

#include <string>

int main(int argc, char** argv) {
  const auto body = [](lockstep::Session& session) {
    std::string line = "size " + std::to_string(session.size());
    for (std::size_t w = 1; w < session.arguments().size(); ++w) line += " " + session.arguments()[w];
    session.print(line);
  };
  return lockstep::main(argc, argv, body, {.takes_arguments = true});
}
