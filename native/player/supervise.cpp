#include "supervise.hpp"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>

#include "json.hpp"

namespace player {
namespace {

constexpr int kMostDeaths = 5;       // in a row, after which a device is left alone
constexpr double kRunsInLimit = 20;  // what a pack does without a word is so many runs at most
constexpr int kNoDevice = 3, kNoMemory = 4;  // how a child ends

constexpr const char* kTooLittle = "this machine has too little memory for it";

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Lines from child to parent: a letter for what it is, and a text without line breaks.
void send(int pipe, char what, const std::string& text) {
  std::string line = what + text + "\n";
  for (size_t i = 0; i + 1 < line.size(); ++i)
    if (line[i] == '\n') line[i] = ' ';
  for (size_t done = 0; done < line.size();) {
    const ssize_t wrote = write(pipe, line.data() + done, line.size() - done);
    if (wrote < 0 && errno != EINTR) _exit(1);
    if (wrote > 0) done += static_cast<size_t>(wrote);
  }
}

// Threads that a driver starts from here on are kept there too.
void pin(size_t cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  if (cpu >= CPU_SETSIZE || sched_setaffinity(0, sizeof set, &set))
    throw Refused("--cpu " + std::to_string(cpu) + ": this machine has no such processor, or does not let the player keep to it");
}

[[noreturn]] void child(int pipe, const Options& options, const Index& index, size_t first, size_t end) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  int code = 0;
  try {
    if (options.cpu) pin(*options.cpu);
    Device device(options.device, options.validate);
    const Facts& facts = device.facts;
    send(pipe, 'H', Object().text("schema", "vkconv.played/1").text("device", facts.properties.deviceName).text("driver", facts.driver_text())
                        .whole("api_version", facts.properties.apiVersion).real("timestamp_period_ns", facts.properties.limits.timestampPeriod)
                        .whole("timestamp_bits", device.timestamp_bits).truth("validated", device.validated).str());
    const Folder folder(options.folder);
    const Tell tell = [&](const std::string& phase, const std::string& what) { send(pipe, phase == "compile" ? 'C' : 'R', what); };
    bool dead = false;
    for (size_t i = first; i < end && !dead; ++i) {
      send(pipe, 'P', std::to_string(i));
      send(pipe, 'J', play(device, folder, index.packs[i].first, index.packs[i].second, options, tell, &dead));
    }
  } catch (const Refused& error) {
    send(pipe, 'E', error.what());
    code = kNoDevice;
  } catch (const Failed& error) {
    send(pipe, 'E', error.what);
    code = kNoDevice;
  } catch (const std::bad_alloc&) {  // what was begun is told by the parent
    code = kNoMemory;
  }
  _exit(code);  // what a driver's destructors would do is not waited for
}

class Parent {
 public:
  Parent(const Options& options, Index index) : options_(options), index_(std::move(index)) {}

  int run() {
    const size_t end = end_ = std::min(index_.packs.size(), options_.count == SIZE_MAX ? index_.packs.size() : options_.first + options_.count);
    if (options_.first >= end) return std::fprintf(stderr, "there is no pack %zu; the folder has %zu\n", options_.first, index_.packs.size()), 2;
    if (!options_.results.empty() && !(file_ = std::fopen(options_.results.c_str(), "w")))
      return std::fprintf(stderr, "cannot write %s: %s\n", options_.results.c_str(), std::strerror(errno)), 2;
    int deaths = 0;
    for (next_ = options_.first; next_ < end;) {
      const size_t before = next_;
      played_ = 0;
      if (!batch(end)) return code_;
      deaths = played_ > 1 ? 0 : deaths + (next_ < end);
      if (next_ == before || deaths >= kMostDeaths) {
        while (next_ < end) ended("not played", "the device failed " + std::to_string(deaths) + " times in a row before it");
      }
    }
    if (!options_.json)
      std::printf("%zu packs: %zu ok, %zu wrong, %zu refused\n", ok_ + wrong_ + refused_, ok_, wrong_, refused_);
    if (file_ && std::fclose(file_)) return std::fprintf(stderr, "cannot write %s: %s\n", options_.results.c_str(), std::strerror(errno)), 2;
    return wrong_ ? 1 : refused_ ? 2 : 0;
  }

 private:
  const Options& options_;
  Index index_;
  std::FILE* file_ = nullptr;
  size_t end_ = 0, next_ = 0, played_ = 0, ok_ = 0, wrong_ = 0, refused_ = 0;
  bool begun_ = false, told_ = false;  // a pack is at work; the header is written
  int code_ = 0;
  std::string phase_;
  double deadline_s_ = 0;

  // One child, until it ends. False where there is no device to go on with.
  bool batch(size_t end) {
    int pipes[2];
    if (pipe(pipes)) return std::perror("pipe"), code_ = 2, false;
    std::fflush(nullptr);
    const pid_t pid = fork();
    if (pid < 0) return std::perror("fork"), code_ = 2, false;
    if (pid == 0) close(pipes[0]), child(pipes[1], options_, index_, next_, end);
    close(pipes[1]);
    begun_ = false;
    phase("opening the device", options_.compile_limit_s);
    std::string text, killed, deaf;
    char block[1 << 16];
    for (;;) {
      const double left_s = deadline_s_ - now_s();
      pollfd wait{pipes[0], POLLIN, 0};
      const int ready = left_s > 0 ? poll(&wait, 1, static_cast<int>(std::min(left_s, 3600.0) * 1000) + 1) : 0;
      if (ready < 0 && errno == EINTR) continue;
      if (ready <= 0 && now_s() >= deadline_s_) {
        killed = phase_;
        kill(pid, SIGKILL);
        break;
      }
      if (ready <= 0) continue;
      const ssize_t got = read(pipes[0], block, sizeof block);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) {
        deaf = std::string("what it says cannot be read: ") + std::strerror(errno);
        kill(pid, SIGKILL);
      }
      if (got <= 0) break;
      text.append(block, static_cast<size_t>(got));
      for (size_t at; (at = text.find('\n')) != std::string::npos; text.erase(0, at + 1)) line(text.substr(0, at));
    }
    close(pipes[0]);
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    if (!killed.empty()) {
      if (!begun_ && !told_) return std::fprintf(stderr, "%s\n", killed.c_str()), code_ = kNoDevice, false;
      ended("timeout", killed);
    } else if (!deaf.empty()) {
      if (!begun_ && !told_) return std::fprintf(stderr, "%s\n", deaf.c_str()), code_ = kNoDevice, false;
      ended("error", deaf);
    } else if (WIFSIGNALED(status)) {
      const std::string how = std::string("the driver crashed (signal ") + std::to_string(WTERMSIG(status)) + ", " + strsignal(WTERMSIG(status)) + ") while " + phase_;
      if (!begun_ && !told_) return std::fprintf(stderr, "%s\n", how.c_str()), code_ = kNoDevice, false;
      ended("crashed", how);
    } else if (WEXITSTATUS(status) == kNoDevice) {
      if (!told_) return code_ = kNoDevice, false;
      ended("lost", "the device cannot be opened again");
    } else if (WEXITSTATUS(status) == kNoMemory) {
      if (!begun_ && !told_) return std::fprintf(stderr, "%s\n", kTooLittle), code_ = kNoDevice, false;
      ended("error", kTooLittle);
    }
    return true;
  }

  void phase(const std::string& what, double limit_s) {
    phase_ = what + " took more than " + std::to_string(static_cast<long>(limit_s)) + " s";
    deadline_s_ = now_s() + limit_s;
  }

  void line(const std::string& text) {
    const std::string rest = text.substr(1);
    const double silent_s = kRunsInLimit * options_.run_limit_s + 10 * options_.timing.min_time_s + options_.timing.cooldown_s;
    switch (text[0]) {
      case 'H':
        if (!told_) put(rest);
        told_ = true;
        break;
      case 'P': begun_ = true; phase("reading " + index_.packs[next_].first, silent_s); break;
      case 'C': phase("compiling " + rest, options_.compile_limit_s); break;
      case 'R': phase("running " + rest, silent_s); break;
      case 'E': std::fprintf(stderr, "%s\n", rest.c_str()); break;
      case 'J': took(rest); break;
    }
  }

  void took(const std::string& json) {
    begun_ = false;
    ++next_;
    ++played_;
    put(json);
    const auto field = [&](const std::string& name) {  // of the line that `play` wrote: its texts come first
      const std::string mark = "\"" + name + "\": \"";
      const size_t at = json.find(mark) + mark.size();
      size_t end = at;
      while (end < json.size() && json[end] != '"') end += json[end] == '\\' ? 2 : 1;
      return json.substr(at, end - at);
    };
    const std::string status = field("status"), why = field("why");
    (status == "ok" ? ok_ : status == "refused" ? refused_ : wrong_)++;
    if (options_.json) return;
    const size_t time = json.find("\"us_median\": ");
    const std::string us = time == std::string::npos ? "" : "  " + json.substr(time + 13, json.find(',', time) - time - 13).substr(0, 8) + " us";
    std::printf("%-8s %s%s%s%s\n", status.c_str(), field("label").c_str(), us.c_str(), why.empty() ? "" : "\n         ", why.c_str());
    std::fflush(stdout);
  }

  void ended(const std::string& status, const std::string& why) {
    if (next_ >= end_) return;  // what ends after all packs, as drivers do where devices are destroyed, is of none of them
    const auto& [pack, label] = index_.packs[next_];
    took(Object().text("pack", pack).text("label", label).text("status", status).text("why", why).str());
  }

  void put(const std::string& json) {
    if (options_.json) std::printf("%s\n", json.c_str()), std::fflush(stdout);
    if (!file_) return;
    // At once: what comes after may end this machine, or its cable.
    if (std::fprintf(file_, "%s\n", json.c_str()) < 0 || std::fflush(file_)) {
      std::fprintf(stderr, "cannot write %s: %s\n", options_.results.c_str(), std::strerror(errno));
      std::_Exit(2);
    }
  }
};

}  // namespace

int supervise(const Options& options) {
  try {
    return Parent(options, Folder(options.folder).index()).run();
  } catch (const Refused& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "%s\n", kTooLittle);
    return 2;
  }
}

}  // namespace player
