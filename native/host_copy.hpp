// Copies in memory of the host by several threads, in pieces that end in order.
#pragma once

#include "cast.hpp"
#include "interrupts.hpp"

#include <cstddef>
#include <functional>
#include <vector>

namespace vkconv {

// How the elements of an array lie that are not in a row, the slowest dimension first: in bytes.
struct Strides {
  size_t item_bytes = 0;
  std::vector<size_t> shape;
  std::vector<ptrdiff_t> strides;
};

// What has arrived: all before `end`, which grows from call to call.
using Arrived = std::function<void(size_t end)>;

// Copies by the caller and up to `threads` - 1 helpers, which are started when they are first wanted. With `arrived`, the
// caller is told after every `chunk_bytes` that are whole, while helpers go on with what follows. `past_caches` writes around the
// caches, for memory that the host does not read. `how` says what `nbytes` are made of. With `strides` elements are gathered,
// and come to lie in a row. All of them first step aside from the CPUs that take `interrupts`, if any. Without the GIL.
void copy_bytes(void* to, const void* from, size_t nbytes, unsigned threads, const InterruptsPtr& interrupts,
                bool past_caches, Cast how = Cast::none, const Strides* strides = nullptr, size_t chunk_bytes = 0,
                const Arrived& arrived = {});

// Waits until all before `end` is there, or more, and says how much.
using Await = std::function<size_t(size_t end)>;

// The same of what is on its way: no byte is made before what it is made of is there, of which `await` has the bytes. The
// caller alone waits, and copies meanwhile what has come. What `await` throws ends the copy.
void copy_arriving(void* to, const void* from, size_t nbytes, unsigned threads, const InterruptsPtr& interrupts, Cast how,
                   const Await& await);

// Ends the helpers; copies after that are the caller's alone. In a forked child, which has none, it does nothing.
void stop_copying();

}  // namespace vkconv
