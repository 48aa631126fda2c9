// What a result hangs on besides the device: temperature, clock, battery, where the system shows them.
#pragma once

#include <string>

namespace player {

std::string conditions_json();

}  // namespace player
