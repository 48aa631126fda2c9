// Packs are played in a child process: a driver that crashes, hangs or loses the device ends one pack, not the rest.
#pragma once

#include "play.hpp"

namespace player {

// The exit code: 0 all right, 1 something is wrong, 2 a pack cannot be played here, 3 no usable device.
int supervise(const Options& options);

}  // namespace player
