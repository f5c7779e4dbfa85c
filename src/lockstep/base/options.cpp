#include "lockstep/base/options.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep {

void require_option(bool holds, std::string_view what, double value, std::string_view expected) {
  if (!holds) throw ConfigError(text(what, " is ", value, ": expected ", expected));
}

}  // namespace lockstep
