// Compiles compute pipelines with the first Vulkan device and tells what its compiler made of them. Runs nothing.
//
// The first line on stdout is the device, or what is wrong with it. Then each line of stdin is a pipeline, in fields between
// tabs, and gives one line on stdout, both of JSON:
//
//     ID  SECONDS  SPIRV_FILE  BINDINGS  PUSH_BYTES  SUBGROUP_SIZE  ISA_FILE  WORD,WORD,...
//
// BINDINGS storage buffers lie in set 0, or what its letters say: b a storage buffer, s a sampled image, i a storage image;
// the words are specialization constants from id 0 on; a SUBGROUP_SIZE of 0 asks for
// none; ISA_FILE, which may be empty, gets the compiler's internal representations. Compilers hang and abort: each pipeline
// has a process of its own, forked before there is a device, which is killed after SECONDS of processor time, so that a busy
// machine changes no verdict, or where it sleeps, after kWaits times as long.
//
//     {"id": "7", "outcome": "compiled", "compile_ms": 41.2, "executables": [{"name": ..., "statistics": {...}}]}
//     {"id": "8", "outcome": "refused", "call": "vkCreateComputePipelines", "result": -13}
//     {"id": "9", "outcome": "signal", "signal": 6, "said": "... Assertion `x' failed."}      also "timeout", "exit"
#include "program.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { kMaxSeconds = 3600, kSaidBytes = 400, kWaits = 8 };

PFN_vkGetInstanceProcAddr vkGetInstanceProcAddr;

double seconds_of(clockid_t clock) {
  struct timespec time = {0};
  clock_gettime(clock, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

void put_text(FILE* out, const char* text) {
  fputc('"', out);
  for (const unsigned char* at = (const unsigned char*)text; *at != 0; ++at) {
    if (*at == '"' || *at == '\\')
      fprintf(out, "\\%c", *at);
    else if (*at < 0x20 || *at > 0x7e)  // no driver says more than ASCII on purpose
      fprintf(out, "\\u%04x", *at);
    else
      fputc(*at, out);
  }
  fputc('"', out);
}

void fail(const char* call, int result) {
  fputs("{\"error\": ", stdout);
  put_text(stdout, call);
  printf(", \"result\": %d}\n", result);
  fflush(stdout);
  _exit(3);
}

struct Text {
  char* bytes;
  size_t size, room;
};

// False at the end of the file.
static bool take(int file, struct Text* text) {
  if (text->room - text->size < 65536) text->bytes = realloc(text->bytes, text->room += 1 << 17);
  const ssize_t got = read(file, text->bytes + text->size, 65535);
  if (got < 0) return errno == EINTR;
  text->size += (size_t)got;
  text->bytes[text->size] = 0;
  return got > 0;
}

// Reads what the child answers and says, until it ends or its time is over: false then.
static bool listen_to(pid_t child, int answers, int says, double seconds, struct Text* answer, struct Text* said) {
  const double until = seconds_of(CLOCK_MONOTONIC) + kWaits * seconds;
  clockid_t clock;
  if (clock_getcpuclockid(child, &clock) != 0) fail("clock_getcpuclockid", errno);
  struct pollfd files[2] = {{answers, POLLIN, 0}, {says, POLLIN, 0}};
  struct Text* texts[2] = {answer, said};
  while (files[0].fd >= 0 || files[1].fd >= 0) {
    // It has several threads at most for moments: so long it may compute, and is looked at again.
    const double left = seconds - seconds_of(clock);
    if (left <= 0 || seconds_of(CLOCK_MONOTONIC) >= until) return false;
    if (poll(files, 2, (int)(1e3 * (left < 1 ? left : 1)) + 1) <= 0) continue;
    for (int i = 0; i < 2; ++i)
      if (files[i].revents != 0 && !take(files[i].fd, texts[i])) files[i].fd = -1;
    if (said->size > 1 << 20) said->size = 0;  // only the end is of interest
  }
  return true;
}

static void put_failure(const struct Job* job, const char* outcome, int status, const struct Text* said) {
  fputs("{\"id\": ", stdout);
  put_text(stdout, job->id);
  printf(", \"outcome\": \"%s\"", outcome);
  if (WIFSIGNALED(status)) printf(", \"signal\": %d", WTERMSIG(status));
  if (WIFEXITED(status)) printf(", \"status\": %d", WEXITSTATUS(status));
  fputs(", \"said\": ", stdout);
  put_text(stdout, said->size > kSaidBytes ? said->bytes + said->size - kSaidBytes : said->bytes);
  fputs("}\n", stdout);
}

static void run(const struct Offer* offer, const struct Job* job) {
  int answers[2], says[2];
  if (pipe(answers) != 0 || pipe(says) != 0) fail("pipe", errno);
  fflush(stdout);
  const pid_t child = fork();
  if (child < 0) fail("fork", errno);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(says[1], STDERR_FILENO);
    dup2(says[1], STDOUT_FILENO);  // drivers print there too
    close(answers[0]);
    FILE* out = fdopen(answers[1], "w");
    compile(out, offer, job);
    fflush(out);
    _exit(0);  // no destructors: drivers would wait for their threads
  }
  close(answers[1]);
  close(says[1]);
  struct Text answer = {calloc(1, 1), 0, 1}, said = {calloc(1, 1), 0, 1};
  const bool in_time = listen_to(child, answers[0], says[0], job->seconds, &answer, &said);
  if (!in_time) kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  close(answers[0]);
  close(says[0]);
  if (!in_time)
    put_failure(job, "timeout", status, &said);
  else if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && answer.size > 0)
    fwrite(answer.bytes, 1, answer.size, stdout);
  else
    put_failure(job, WIFSIGNALED(status) ? "signal" : "exit", status, &said);
  fflush(stdout);
  free(answer.bytes);
  free(said.bytes);
}

// A line as a job; its fields stay in the line.
static bool parse(char* line, struct Job* job) {
  char* fields[8];
  line[strcspn(line, "\n")] = 0;
  for (int i = 0; i < 8; ++i) {
    fields[i] = strsep(&line, "\t");
    if (fields[i] == NULL) return false;
  }
  *job = (struct Job){.id = fields[0], .spirv_file = fields[2], .isa_file = fields[6], .seconds = strtod(fields[1], NULL)};
  const size_t letters = strspn(fields[3], "bsi");
  job->kinds = letters > 0 ? fields[3] : NULL;
  job->bindings = letters > 0 ? (uint32_t)letters : (uint32_t)strtoul(fields[3], NULL, 10);
  if (letters > 0 && fields[3][letters] != 0) return false;
  job->push_bytes = (uint32_t)strtoul(fields[4], NULL, 10);
  job->subgroup_size = (uint32_t)strtoul(fields[5], NULL, 10);
  job->words = calloc(strlen(fields[7]) / 2 + 1, sizeof *job->words);
  for (char* word; (word = strsep(&fields[7], ",")) != NULL;)
    if (word[0] != 0) job->words[job->word_count++] = (uint32_t)strtoul(word, NULL, 10);
  return line == NULL && job->seconds > 0 && job->seconds <= kMaxSeconds && job->bindings <= 4096;
}

int main(void) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // what started it may be killed
  const struct rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none);
  void* library = dlopen("libvulkan.so.1", RTLD_NOW);
  if (library == NULL) fail(dlerror(), 0);
  vkGetInstanceProcAddr = (PFN_vkGetInstanceProcAddr)dlsym(library, "vkGetInstanceProcAddr");
  struct Offer offer = {0};
  find_device(&offer);
  char* line = NULL;
  size_t room = 0;
  while (getline(&line, &room, stdin) > 0) {
    struct Job job;
    if (!parse(line, &job)) {
      fprintf(stderr, "this is no job: %s\n", line);
      return 2;
    }
    run(&offer, &job);
    free(job.words);
  }
  return 0;
}
