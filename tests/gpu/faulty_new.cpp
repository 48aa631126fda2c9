// Stands before libstdc++ and libc and fails: the allocations of one library or program, and what a program does to
// files. A call is counted where the code of OURS makes it, by itself or through libstdc++. Number `fail_at`, from 1,
// fails, and does nothing. VKCONV_FAIL is OURS:KIND:NUMBER, where KIND is `new` or `file`; processes that set the
// variables by themselves give the number 0. With VKCONV_FAIL_LOG, each process writes its calls there as it ends.
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <new>

extern "C" {
int calls, fail_at;
void* sites[1 << 16];  // where each call was made
}

namespace {

char ours[64], kind[8], log_path[512];
thread_local int inside;  // to look takes memory itself
bool ready;

void begin() {
  ready = true;
  const char* told = getenv("VKCONV_FAIL");
  if (!told || sscanf(told, "%63[^:]:%7[^:]:%d", ours, kind, &fail_at) != 3) kind[0] = 0;
  if (const char* path = getenv("VKCONV_FAIL_LOG")) snprintf(log_path, sizeof log_path, "%s", path);
}

struct Range {
  uintptr_t begin = 0, end = 0;
  bool has(void* at) const { return reinterpret_cast<uintptr_t>(at) >= begin && reinterpret_cast<uintptr_t>(at) < end; }
} own, library;  // the code of OURS, and of libstdc++

int look(dl_phdr_info* info, size_t, void*) {
  char name[512] = "";
  if (*info->dlpi_name) snprintf(name, sizeof name, "%s", info->dlpi_name);
  else if (readlink("/proc/self/exe", name, sizeof name - 1) < 0) return 0;
  Range* range = strstr(name, ours) ? &own : strstr(name, "libstdc++") ? &library : nullptr;
  for (int i = 0; range && i < info->dlpi_phnum; ++i)
    if (info->dlpi_phdr[i].p_type == PT_LOAD && (info->dlpi_phdr[i].p_flags & PF_X))
      *range = {info->dlpi_addr + info->dlpi_phdr[i].p_vaddr, info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz};
  return 0;
}

// Whether the caller, which returns to `from`, is to see a failure.
__attribute__((noinline)) bool fails(const char* what, void* from) {
  if (!ready) begin();
  if (strcmp(kind, what) != 0 || inside) return false;
  ++inside;
  if (!own.end || !library.end) dl_iterate_phdr(look, nullptr);  // until it is loaded
  void* site = own.has(from) ? from : nullptr;
  if (library.has(from)) {
    void* frames[16];
    const int count = backtrace(frames, 16);
    int i = 0;
    while (i < count && !library.has(frames[i])) ++i;
    while (i < count && library.has(frames[i])) ++i;
    if (i < count && own.has(frames[i])) site = frames[i];
  }
  --inside;
  if (!site) return false;
  if (calls < static_cast<int>(sizeof sites / sizeof *sites)) sites[calls] = site;
  return ++calls == fail_at;
}

struct Log {
  ~Log() { write_log(); }
  static void write_log() {
    if (!*log_path) return;
    ++inside;
    if (FILE* file = fopen(log_path, "a")) {
      fprintf(file, "%d", calls);
      for (int i = 0; i < calls && i < 1 << 16; ++i) fprintf(file, " %p", sites[i]);
      fputc('\n', file);
      fclose(file);
    }
    --inside;
  }
} at_end;

template <typename F>
F next(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

void* take(std::size_t size, void* from) {
  if (fails("new", from)) throw std::bad_alloc();
  if (void* made = malloc(size ? size : 1)) return made;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t size) { return take(size, __builtin_return_address(0)); }
void* operator new[](std::size_t size) { return take(size, __builtin_return_address(0)); }
void operator delete(void* place) noexcept { free(place); }
void operator delete[](void* place) noexcept { free(place); }
void operator delete(void* place, std::size_t) noexcept { free(place); }
void operator delete[](void* place, std::size_t) noexcept { free(place); }

extern "C" {

void _exit(int code) {
  Log::write_log();
  static const auto real = next<void (*)(int)>("_exit");
  real(code);
  __builtin_unreachable();
}

#define STANDS_BEFORE(type, name, parameters, arguments, failure) \
  type name parameters {                                          \
    static const auto real = next<type(*) parameters>(#name);     \
    if (fails("file", __builtin_return_address(0))) return errno = EIO, failure;               \
    return real arguments;                                        \
  }
STANDS_BEFORE(FILE*, fopen, (const char* path, const char* mode), (path, mode), nullptr)
STANDS_BEFORE(FILE*, fopen64, (const char* path, const char* mode), (path, mode), nullptr)
STANDS_BEFORE(ssize_t, read, (int file, void* to, size_t count), (file, to, count), -1)
STANDS_BEFORE(ssize_t, write, (int file, const void* from, size_t count), (file, from, count), -1)
STANDS_BEFORE(ssize_t, writev, (int file, const iovec* from, int count), (file, from, count), -1)
STANDS_BEFORE(int, fflush, (FILE * file), (file), EOF)
STANDS_BEFORE(int, fclose, (FILE * file), (file), EOF)
STANDS_BEFORE(int, mkdir, (const char* path, mode_t mode), (path, mode), -1)
STANDS_BEFORE(int, pipe, (int* ends), (ends), -1)
STANDS_BEFORE(pid_t, fork, (), (), -1)

}  // extern "C"
