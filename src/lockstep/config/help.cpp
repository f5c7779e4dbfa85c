#include "lockstep/config/help.h"

#include <algorithm>

#include "lockstep/base/text.h"

namespace lockstep::config {

namespace {

constexpr std::size_t kWidth = 100;

// `words` wrapped at kWidth with every line but the first indented; the first line already holds `used` columns.
std::string wrap(std::string_view words, std::size_t indent, std::size_t used) {
  std::string out;
  for (const auto& word : split(words, ' ')) {
    if (used > indent && used + 1 + word.size() > kWidth) {
      out += text("\n", std::string(indent, ' '));
      used = indent;
    } else if (used > indent) {
      out += ' ';
      ++used;
    }
    out += word;
    used += word.size();
  }
  return out;
}

std::string flag_head(const Flag& flag) {
  const std::string shorter = flag.short_name ? text("-", flag.short_name, ", ") : "";
  const std::string value = flag.kind == FlagKind::kChoice ? join(flag.choices, "|") : flag.value_name;
  return text(shorter, "--", flag.name, value.empty() ? "" : " ", value);
}

std::string default_note(const Flag& flag) {
  const std::string& shown = flag.fallback_note.empty() ? flag.fallback : flag.fallback_note;
  return shown.empty() ? "" : text(" (default: ", shown, ")");
}

// The categories in the order of their first flag.
std::vector<std::string> categories(const CommandSpec& command) {
  std::vector<std::string> names;
  for (const auto& flag : command.flags) {
    if (std::find(names.begin(), names.end(), flag.category) == names.end()) names.push_back(flag.category);
  }
  return names;
}

std::string flag_help(const Flag& flag, bool full) {
  constexpr std::size_t kColumn = 28;
  std::string line = text("  ", flag_head(flag));
  if (line.size() + 2 > kColumn) {
    line += text("\n", std::string(kColumn, ' '));
  } else {
    line.resize(kColumn, ' ');
  }
  line += wrap(flag.help + default_note(flag), kColumn, kColumn);
  if (full && !flag.details.empty()) {
    line += text("\n", std::string(kColumn, ' ')) + wrap(flag.details, kColumn, kColumn);
  }
  return line + "\n";
}

}  // namespace

std::string overview_help(const std::vector<CommandSpec>& commands) {
  std::string out =
      "lockstep trains PyTorch-style models on one or many devices, with no Python in the running program.\n\n"
      "usage: lockstep COMMAND [FLAGS]\n\ncommands:\n";
  std::size_t longest = 0;
  for (const auto& command : commands) longest = std::max(longest, command.name.size());
  for (const auto& command : commands) {
    std::string name = command.name;
    name.resize(longest, ' ');
    out += text("  ", name, "  ", command.summary, "\n");
  }
  return out +
         "\nlockstep COMMAND --help lists a command's flags, lockstep help COMMAND explains them, lockstep --version\n"
         "prints the version. Exit codes: 0 ok, 1 ran and the answer is no, 2 usage or environment error.\n";
}

std::string command_help(const CommandSpec& command, bool full, std::string_view program) {
  std::string out = text("usage: ", program, " ", command.usage, "\n\n", wrap(command.description, 0, 0), "\n");
  for (const auto& category : categories(command)) {
    out += text("\n", category, ":\n");
    for (const auto& flag : command.flags) {
      if (flag.category == category) out += flag_help(flag, full);
    }
  }
  if (!command.examples.empty()) out += "\nexamples:\n";
  for (const auto& example : command.examples) out += text("  ", example, "\n");
  if (!full && !command.flags.empty()) out += text("\nlockstep help ", command.name, " says more about each flag.\n");
  for (const auto& subcommand : command.subcommands) out += text("\n", command_help(subcommand, true, program));
  return out;
}

namespace {

// Text for man(7): dashes that must stay ASCII dashes, and no line that starts as a request.
std::string roff(std::string_view words) {
  std::string out;
  for (const char c : words) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) {
      out += text("\\&", c);
    } else {
      out += c;
    }
  }
  return out;
}

std::string man_command(const CommandSpec& command) {
  std::string out = text(".SS lockstep ", roff(command.usage), "\n", roff(command.description), "\n");
  for (const auto& flag : command.flags) {
    out += text(".TP\n.B ", roff(flag_head(flag)), "\n", roff(flag.help + default_note(flag)), ".");
    out += text(flag.details.empty() ? "" : " ", roff(flag.details), "\n");
  }
  for (const auto& example : command.examples) out += text(".PP\n.EX\n", roff(example), "\n.EE\n");
  for (const auto& subcommand : command.subcommands) out += man_command(subcommand);
  return out;
}

}  // namespace

std::string man_page(const std::vector<CommandSpec>& commands, const std::string& version) {
  std::string out =
      text(".TH LOCKSTEP 1 \"\" \"lockstep ", version, "\"\n.SH NAME\nlockstep \\- train PyTorch\\-style ",
           "models on one or many devices\n.SH SYNOPSIS\n.B lockstep\nCOMMAND [FLAGS]\n.SH COMMANDS\n");
  for (const auto& command : commands) out += man_command(command);
  return out +
         ".SH EXIT STATUS\n0 ok; 1 ran and the answer is no; 2 usage or environment error, nothing started; a failed "
         "job: "
         "the code of the first rank that failed, or 128 plus the signal's number; 130 on Ctrl\\-C.\n";
}

namespace {

std::string dashed_names(const CommandSpec& command) {
  std::string out = "--help";
  for (const auto& flag : command.flags) out += text(" --", flag.name);
  return out;
}

std::string command_names(const std::vector<CommandSpec>& commands) {
  std::vector<std::string> names;
  for (const auto& command : commands) names.push_back(command.name);
  return join(names, " ");
}

// "make check" of data.
std::string subcommand_names(const CommandSpec& command) {
  std::vector<std::string> names;
  for (const auto& subcommand : command.subcommands) names.push_back(subcommand.name.substr(command.name.size() + 1));
  return join(names, " ");
}

// The commands and, under their two words, their sub-commands.
std::vector<CommandSpec> with_subcommands(const std::vector<CommandSpec>& commands) {
  std::vector<CommandSpec> all;
  for (const auto& command : commands) {
    all.push_back(command);
    all.insert(all.end(), command.subcommands.begin(), command.subcommands.end());
  }
  return all;
}

// Inside single quotes of a shell.
std::string quoted(std::string_view words) {
  std::string out = "'";
  for (const char c : words) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace

std::string bash_completion(const std::vector<CommandSpec>& commands) {
  std::string out = text(
      "_lockstep() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]}\n"
      "  COMPREPLY=()\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ] || { [ \"$command\" = help ] && [ \"$COMP_CWORD\" -eq 2 ]; }; then\n"
      "    COMPREPLY=($(compgen -W '",
      command_names(commands), " --help --version' -- \"$word\"))\n    return\n  fi\n");
  for (const auto& command : commands) {
    if (command.subcommands.empty()) continue;
    out += text("  if [ \"$command\" = ", command.name, " ]; then\n    if [ \"$COMP_CWORD\" -eq 2 ]; then\n",
                "      COMPREPLY=($(compgen -W '", subcommand_names(command), " --help' -- \"$word\"))\n      return\n",
                "    fi\n    command=\"$command ${COMP_WORDS[2]}\"\n  fi\n");
  }
  out += "  case \"$command $previous\" in\n";
  const auto all = with_subcommands(commands);
  for (const auto& command : all) {
    for (const auto& flag : command.flags) {
      const std::string head = text("    '", command.name, " --", flag.name, "') COMPREPLY=($(compgen ");
      if (!flag.choices.empty()) {
        out += text(head, "-W '", join(flag.choices, " "), "' -- \"$word\")); return ;;\n");
      } else if (flag.kind == FlagKind::kPath) {
        out += text(head, "-f -- \"$word\")); return ;;\n");
      } else if (flag.kind != FlagKind::kSwitch) {
        out += text("    '", command.name, " --", flag.name, "') return ;;\n");
      }
    }
  }
  out += "  esac\n  case \"$command\" in\n";
  for (const auto& command : all) {
    out += text("    '", command.name, "') COMPREPLY=($(compgen -W '", dashed_names(command), "' -- \"$word\")) ;;\n");
  }
  return out + "  esac\n}\ncomplete -o default -F _lockstep lockstep\n";
}

namespace {

std::string zsh_flag(const Flag& flag) {
  std::string help = flag.help;
  for (const std::string_view special : {"\\", "[", "]", ":"}) {
    for (std::size_t at = 0; (at = help.find(special, at)) != std::string::npos; at += 2) help.insert(at, 1, '\\');
  }
  std::string spec = text("--", flag.name, flag.kind == FlagKind::kSwitch ? "" : "=", "[", help, "]");
  if (!flag.choices.empty()) {
    spec += text(":", flag.name, ":(", join(flag.choices, " "), ")");
  } else if (flag.kind == FlagKind::kPath) {
    spec += text(":", flag.name, ":_files");
  } else if (flag.kind != FlagKind::kSwitch) {
    spec += text(":", flag.name, ": ");
  }
  return quoted(spec);
}

}  // namespace

std::string zsh_completion(const std::vector<CommandSpec>& commands) {
  std::string out =
      text("#compdef lockstep\n_lockstep() {\n  if (( CURRENT == 2 )); then\n    compadd -- ", command_names(commands),
           " --help --version\n    return\n  fi\n", "  local command=$words[2]\n  shift words\n  (( CURRENT-- ))\n");
  for (const auto& command : commands) {
    if (command.subcommands.empty()) continue;
    out += text("  if [[ $command == ", command.name, " ]]; then\n    if (( CURRENT == 2 )); then\n      compadd -- ",
                subcommand_names(command), " --help\n      return\n    fi\n",
                "    command=\"$command $words[2]\"\n    shift words\n    (( CURRENT-- ))\n  fi\n");
  }
  out += "  case $command in\n";
  for (const auto& command : with_subcommands(commands)) {
    out += text("    ", quoted(command.name), ")\n      _arguments '--help[list the flags]'");
    for (const auto& flag : command.flags) out += text(" \\\n        ", zsh_flag(flag));
    out += " \\\n        '*:file:_files' ;;\n";
  }
  return out + "  esac\n}\ncompdef _lockstep lockstep\n";
}

}  // namespace lockstep::config
