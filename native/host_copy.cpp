#include "host_copy.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include <unistd.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace vkconv {
namespace {

// What a thread takes at a time: long enough that taking it costs nothing, short enough that nobody waits long for the last one.
constexpr size_t kPieceBytes = 128 << 10;
constexpr unsigned kMostThreads = 64;

// Around the caches: memory that the host does not read is not fetched first, and nothing else leaves the caches for it.
void copy_past_caches(char* to, const char* from, size_t nbytes) {
#ifdef __SSE2__
  constexpr size_t kLine = 64;
  const size_t head = std::min(nbytes, (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine);
  std::memcpy(to, from, head);
  to += head, from += head, nbytes -= head;
  for (; nbytes >= kLine; to += kLine, from += kLine, nbytes -= kLine) {
    __m128i words[4];
    for (int i = 0; i < 4; ++i) words[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i);
    for (int i = 0; i < 4; ++i) _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i, words[i]);
  }
  std::memcpy(to, from, nbytes);
  _mm_sfence();  // these stores are in no order with what another thread is told after them
#else
  std::memcpy(to, from, nbytes);
#endif
}

// Walks the elements of an array in their order.
class Walk {
 public:
  Walk(const Strides& strides, const char* from, size_t first) : of_(strides), place_(strides.shape.size()), from_(from) {
    for (size_t axis = place_.size(); axis-- > 0; first /= of_.shape[axis]) {
      place_[axis] = first % of_.shape[axis];
      from_ += static_cast<ptrdiff_t>(place_[axis]) * of_.strides[axis];
    }
  }

  // The next `count` elements, in a row.
  void gather(char* to, size_t count) {
    const size_t last = place_.size() - 1;
    while (count > 0) {
      const size_t run = std::min(count, of_.shape[last] - place_[last]);
      take(to, run, of_.strides[last]);
      to += run * of_.item_bytes;
      count -= run;
      place_[last] += run;
      from_ += static_cast<ptrdiff_t>(run) * of_.strides[last];
      for (size_t axis = last; axis > 0 && place_[axis] == of_.shape[axis]; --axis) {
        from_ += of_.strides[axis - 1] - static_cast<ptrdiff_t>(of_.shape[axis]) * of_.strides[axis];
        place_[axis] = 0;
        ++place_[axis - 1];
      }
    }
  }

 private:
  template <typename Item>
  static void take_items(char* to, const char* from, size_t count, ptrdiff_t stride) {
    for (size_t i = 0; i < count; ++i, from += stride) std::memcpy(to + i * sizeof(Item), from, sizeof(Item));
  }

  void take(char* to, size_t count, ptrdiff_t stride) const {
    if (stride == static_cast<ptrdiff_t>(of_.item_bytes)) {
      std::memcpy(to, from_, count * of_.item_bytes);
      return;
    }
    switch (of_.item_bytes) {
      case 1: return take_items<uint8_t>(to, from_, count, stride);
      case 2: return take_items<uint16_t>(to, from_, count, stride);
      case 4: return take_items<uint32_t>(to, from_, count, stride);
      case 8: return take_items<uint64_t>(to, from_, count, stride);
      default:
        for (size_t i = 0; i < count; ++i)
          std::memcpy(to + i * of_.item_bytes, from_ + static_cast<ptrdiff_t>(i) * stride, of_.item_bytes);
    }
  }

  const Strides& of_;
  std::vector<size_t> place_;
  const char* from_;
};

struct Job {
  char* to;
  const char* from;
  size_t nbytes;
  bool past_caches;
  Cast how;
  const Strides* strides;
  InterruptsPtr interrupts;
  size_t pieces = 0;
  unsigned room = 0;  // helpers that may still join; under the pool's mutex
  std::atomic<size_t> next{0};
  std::atomic<size_t> there{SIZE_MAX};  // bytes that may be read, as their source has them
  std::atomic<bool> given_up{false};
  std::vector<std::atomic<bool>> whole;

  Job(char* to_, const char* from_, size_t nbytes_, bool past_caches_, Cast how_, const Strides* strides_,
      const InterruptsPtr& interrupts_, unsigned helpers)
      : to(to_), from(from_), nbytes(nbytes_), past_caches(past_caches_), how(how_), strides(strides_),
        interrupts(interrupts_), pieces((nbytes_ + kPieceBytes - 1) / kPieceBytes), room(helpers), whole(pieces) {}

  size_t end_of(size_t piece) const { return std::min(nbytes, (piece + 1) * kPieceBytes); }
  size_t source_end(size_t piece) const { return source_bytes(end_of(piece), how); }

  // What a thread does first: the others would wait for one that the device's interrupts hold up.
  void step_aside() const {
    if (interrupts != nullptr) interrupts->step_aside();
  }

  // One piece; false where all are taken, or none will come any more. Who awaits them waits; the others look.
  bool step(const Await& await = {}) {
    const size_t piece = next.fetch_add(1, std::memory_order_relaxed);
    if (piece >= pieces) return false;
    struct Left {  // behind an error nobody waits for the piece
      std::atomic<bool>& whole;
      ~Left() { whole.store(true, std::memory_order_release); }
    } const left{whole[piece]};
    const size_t end = source_end(piece);
    while (there.load(std::memory_order_acquire) < end) {
      // Who gave up may have waited for all of it before.
      if (given_up.load(std::memory_order_acquire) && there.load(std::memory_order_acquire) < end) return false;
      if (await)
        there.store(await(end), std::memory_order_release);
      else
        std::this_thread::yield();
    }
    const size_t begin = piece * kPieceBytes;
    const size_t count = end_of(piece) - begin;
    if (strides != nullptr)
      gather(begin, count);
    else
      copy(to + begin, from + source_bytes(begin, how), count);
    return true;
  }

 private:
  // What lies in a row, to `count` bytes.
  void copy(char* target, const char* source, size_t count) const {
    if (past_caches && how == Cast::none)
      copy_past_caches(target, source, count);
    else
      cast(target, source, count, how, past_caches);
  }

  // By way of memory that stays in the caches, whole lines at a time.
  void gather(size_t begin, size_t count) const {
    constexpr size_t kGatheredBytes = 16 << 10;
    alignas(64) char row[kGatheredBytes];
    const size_t item = how == Cast::none ? strides->item_bytes : 2;  // as it is stored
    const size_t most = kGatheredBytes / strides->item_bytes;
    Walk walk(*strides, from, begin / item);
    for (size_t done = 0; done < count;) {
      const size_t elements = std::min(most, (count - done) / item);
      walk.gather(row, elements);
      copy(to + begin + done, row, elements * item);
      done += elements * item;
    }
  }
};

class Pool {
 public:
  // The process's own: threads do not come along into a forked child, nor does anyone who could unlock what they held.
  static Pool& get() {
    static std::mutex mutex;
    static std::atomic<Pool*> instance{nullptr};
    Pool* pool = instance.load(std::memory_order_acquire);
    if (pool != nullptr && pool->process_ == getpid()) return *pool;
    if (pool != nullptr) {  // forked: the child's one thread makes its own, and leaves the parent's where it is
      pool = new Pool();
      instance.store(pool, std::memory_order_release);
      return *pool;
    }
    const std::lock_guard<std::mutex> lock(mutex);
    pool = instance.load(std::memory_order_acquire);
    if (pool == nullptr) instance.store(pool = new Pool(), std::memory_order_release);
    return *pool;
  }

  void add(const std::shared_ptr<Job>& job) {
    const unsigned wanted = job->room;  // once it is in the queue, helpers change that
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (stopped_) return;
      try {
        while (threads_.size() < wanted) threads_.emplace_back([this] { help(); });
      } catch (const std::system_error&) {
        // No more threads are to be had: those that are there, or the caller alone, do.
      }
      jobs_.push_back(job);
    }
    if (wanted == 1)
      wake_.notify_one();
    else
      wake_.notify_all();
  }

  void remove(const std::shared_ptr<Job>& job) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto place = std::find(jobs_.begin(), jobs_.end(), job);
    if (place != jobs_.end()) jobs_.erase(place);
  }

  void stop() {
    std::vector<std::thread> threads;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopped_ = true;
      threads.swap(threads_);
    }
    wake_.notify_all();
    for (auto& thread : threads) thread.join();
  }

 private:
  void help() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      // wait() would ask for the libstdc++ of GCC 12, which distributions that a wheel is for do not all have.
      while (!stopped_ && jobs_.empty()) wake_.wait_for(lock, std::chrono::hours(1));
      if (stopped_) return;
      const std::shared_ptr<Job> job = jobs_.front();
      if (--job->room == 0) jobs_.pop_front();
      lock.unlock();
      job->step_aside();
      while (job->step()) {
      }
      lock.lock();
      const auto place = std::find(jobs_.begin(), jobs_.end(), job);
      if (place != jobs_.end()) jobs_.erase(place);  // all its pieces are taken
    }
  }

  const pid_t process_ = getpid();
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Job>> jobs_;
  std::vector<std::thread> threads_;
  bool stopped_ = false;
};

}  // namespace

namespace {

// A copy whose helpers are at work; they are done with the memory when this is gone, also behind an error.
class Helped {
 public:
  Helped(void* to, const void* from, size_t nbytes, unsigned threads, const InterruptsPtr& interrupts, bool past_caches,
         Cast how, const Strides* strides, bool arriving) {
    const size_t pieces = (nbytes + kPieceBytes - 1) / kPieceBytes;
    const auto all = static_cast<unsigned>(std::min<size_t>({std::max(threads, 1u), pieces, kMostThreads}));
    job_ = std::make_shared<Job>(static_cast<char*>(to), static_cast<const char*>(from), nbytes, past_caches, how,
                                 strides, interrupts, all > 0 ? all - 1 : 0);
    if (arriving) job_->there = 0;
    if (job_->room > 0) Pool::get().add(job_);
    job_->step_aside();  // while helpers wake
  }
  Helped(const Helped&) = delete;
  Helped& operator=(const Helped&) = delete;
  ~Helped() {
    job_->given_up = true;  // what is not there by now does not come
    size_t taken = job_->next.exchange(job_->pieces);
    taken = std::min(taken, job_->pieces);
    for (size_t i = 0; i < taken; ++i)
      while (!job_->whole[i].load(std::memory_order_acquire)) std::this_thread::yield();
    Pool::get().remove(job_);
  }
  Job& operator*() const { return *job_; }
  Job* operator->() const { return job_.get(); }

 private:
  std::shared_ptr<Job> job_;
};

}  // namespace

void copy_bytes(void* to, const void* from, size_t nbytes, unsigned threads, const InterruptsPtr& interrupts,
                bool past_caches, Cast how, const Strides* strides, size_t chunk_bytes, const Arrived& arrived) {
  const Helped job(to, from, nbytes, threads, interrupts, past_caches, how, strides, false);
  size_t whole = 0;  // pieces at the front
  size_t told = 0;   // bytes
  const auto look = [&] {
    while (whole < job->pieces && job->whole[whole].load(std::memory_order_acquire)) ++whole;
    const size_t end = whole == 0 ? 0 : job->end_of(whole - 1);
    if (arrived && end > told && (end == nbytes || (chunk_bytes > 0 && end - told >= chunk_bytes))) arrived(told = end);
  };
  while (job->step()) look();
  while (whole < job->pieces) {
    look();
    if (whole < job->pieces) std::this_thread::yield();
  }
}

void copy_arriving(void* to, const void* from, size_t nbytes, unsigned threads, const InterruptsPtr& interrupts, Cast how,
                   const Await& await) {
  const Helped job(to, from, nbytes, threads, interrupts, false, how, nullptr, true);
  while (job->step(await)) {
  }
  // Helpers may hold pieces that are yet to come.
  const size_t all = source_bytes(nbytes, how);
  while (job->there < all) job->there = await(std::min<size_t>(all, job->there + 1));
}

void stop_copying() { Pool::get().stop(); }

}  // namespace vkconv
